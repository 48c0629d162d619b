"""Bring every site to the best tier that is safe now, and down again when something demands it.

              plan is optimized                     no thread inside
    breakpoint ───────────────► optimizing ───────────────────────► optimized ──► gone: our bytes were changed
        ▲                         (works as a stop point)               │
        └───────────────────────────────────────────────────────────────┘
          a handler, a user's breakpoint, a setting, the guest's own probe or tracer; disabled: from and to anywhere
There is no unoptimizing that takes time: a branch is removed by one write while the guest is stopped, and a thread in
its detour continues there.

Sites on one straight-line run may share a branch, so they are planned together. A branch over several instructions is
written only when no saved PC is inside them (rule 3). A site that waits, for a thread to leave, for the guest to undo a
change of its text (PASSING) or for memory, is tried again at every stop that occurs anyway; one scan of the stacks
serves all sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from gdb_optprobe.detours.arena import Arena, Lack, Lender, data_range
from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.plan_request import Neighbours
from gdb_optprobe.detours.planner import (
    Neighbour,
    Plan,
    PlanRequest,
    TierLimits,
    load_before,
    may_share_detour,
    misses_hits,
    plan,
)
from gdb_optprobe.detours.refusal import PASSING, Reason, Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes import branch_patch, quiescence_wait, trap_patches
from gdb_optprobe.probes.arena_memory import ArenaMemory
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.collector import Collector, Trigger
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.journal_records import write_probe
from gdb_optprobe.probes.kernel_rethooks import ActiveCall, KernelRethooks
from gdb_optprobe.probes.kernel_stops import KernelStops
from gdb_optprobe.probes.kernel_traps import KernelTraps
from gdb_optprobe.probes.kretprobe import homing
from gdb_optprobe.probes.links import Links
from gdb_optprobe.probes.lost_branches import LostBranches
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.read_registers import ReadRegisters
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.rethook_records import read_rethooks
from gdb_optprobe.probes.session_maps import SessionMaps
from gdb_optprobe.probes.session_scripts import SessionScripts
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.site import Site, SiteState
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.throttle import Throttle
from gdb_optprobe.probes.tracepoint_handlers import TracepointHandlers

T = TypeVar("T")

_NEED_MEMORY = (Tier.OPTIMIZED, Tier.TRAPPED, Tier.BOOSTED)
FAR = 1 << 16
"""Bytes within which a straight-line run surely ends."""


@dataclass(frozen=True)
class _Planned:
    """A plan, and what it was made from: it holds until the guest runs, or something of that changes.

    neighbours: what was asked about probes nearby, by address.
    is_alone: whether it holds only while there is no other probe in its function.
    """

    plan: Plan
    limits: TierLimits
    neighbours: Mapping[int, Neighbour | None]
    is_alone: bool = False

    def is_valid(self, limits: TierLimits, neighbours: Neighbours) -> bool:
        """Return whether the same plan would be made again."""
        if self.limits != limits:
            return False
        return all(neighbours(at) == found for at, found in self.neighbours.items() if at != self.plan.address)


def _do_nothing() -> None:
    """Nothing is to be done."""


@dataclass
class Optimizer:
    """Decides and carries out the tiers of a session's sites.

    check_alive: raises OptprobeError where the guest is another one than was probed, after it was forgotten.
    recovered: called once lost branches are out of the text: hooks of returns that they led to may end.
    not_yet_run: from where to where nothing of the guest's text has run yet.
    _left_rings: memory of rings that no graph reads any more, but branches may lead to what writes there.
    _planned, _lowered: plans, and handlers with lowered programs by their probes, of this stop alone (_planned_at).
    """

    target: Target
    registry: Registry
    settings: Callable[[], Settings]
    check_alive: Callable[[], None]
    recovered: Callable[[], None] = field(default=_do_nothing, init=False)
    links: Links = field(init=False)
    read_registers: ReadRegisters = field(init=False)
    kernel_stops: KernelStops = field(init=False)
    rethooks: KernelRethooks = field(default_factory=KernelRethooks)
    collector: Collector = field(init=False)
    memory: ArenaMemory = field(init=False)
    throttle: Throttle = field(default_factory=Throttle)
    traps: KernelTraps = field(init=False)
    tracepoints: TracepointHandlers = field(init=False)
    maps: SessionMaps = field(init=False)
    scripts: SessionScripts = field(init=False)
    _cfgs: CfgCache = field(init=False)
    _lost_branches: LostBranches = field(default_factory=LostBranches)
    _planned: dict[int, _Planned] = field(default_factory=dict)
    _planned_at: object = None
    _lowered: dict[int, Handler] = field(default_factory=dict)
    not_yet_run: tuple[int, int] = (0, 0)
    _left_rings: list[Slot] = field(default_factory=list)
    _used_when_full: int = 0

    def __post_init__(self) -> None:
        self.links = Links(self.target.guest, self.registry)
        self.kernel_stops = KernelStops(self.target.guest, self.target.stops, self.registry, self.links)
        self.collector = Collector(self.target.guest, self.rethooks, self.check_alive)
        self.traps = KernelTraps(self.target.guest)
        self.tracepoints = TracepointHandlers(self.target.guest, self.registry, self.collector, self.may_stop_at)
        self.maps = SessionMaps(self.target.guest.machine)
        self.scripts = SessionScripts(self.target, self.maps)
        self.memory = ArenaMemory(self.target.arena_source)
        self._cfgs = CfgCache(self.target.guest.isa, self.target.guest.text)
        self.read_registers = ReadRegisters(self.target.guest, self.registry, self._cfgs)

    @property
    def arena(self) -> Arena | None:
        """The arena if one was taken."""
        return self.memory.arena

    # what would be best ------------------------------------------------------------------------------------------
    def plan(
        self,
        address: int,
        specs: Sequence[Spec],
        neighbours: Neighbours | None = None,
        limits: TierLimits | None = None,
    ) -> Plan:
        """Return the best plan for probes `specs` at `address` as all is now. Raises Refused where there is none.

        limits: of `specs`, where these are known.
        """
        if self._lost_branches.covers(address) or any(
            hook.address <= address < hook.end for hook in self.registry.hooks
        ):
            raise Refused(Refusal.TEXT_CHANGED.because(address=self.target.guest.text.spell(address)))
        limits = limits or self.limits(specs)
        best = self._plan_once(address, limits, neighbours or self.neighbours())
        if best.tier not in _NEED_MEMORY:
            return best
        try:
            why = branch_patch.out_of_reach(best, self.target.guest, self.find_arena())
        except Refused as refused:
            why = refused.reason
        return self.plan_without_detour(address, specs, why) if why is not None else best

    def load_before(self, address: int) -> int | None:
        """Return a load at which a probe counts for the instruction at `address`: see planner.load_before."""
        return load_before(address, self._cfgs)

    def expect_plans(self, found: Iterable[Plan], limits: TierLimits) -> None:
        """Take these for the plans of their addresses in this stop, for as long as nothing else is in their functions.
        """
        planned = self._planned_for_now()
        for one in found:
            planned[one.address] = _Planned(one, limits, {}, is_alone=True)

    def expected(self, addresses: Iterable[int], limits: TierLimits) -> list[Plan]:
        """Return the plans for `addresses` that were taken for theirs in this stop."""
        planned = self._planned_for_now()
        known = [planned[address] for address in addresses if address in planned]
        return [one.plan for one in known if one.is_alone and one.limits == limits]

    def can_be_carried_out(self, found: Sequence[Plan]) -> bool:
        """Return whether `plan` would return these, which it expects, where nothing else is in their functions; False
        where that is to be asked of each.
        """
        if self._lost_branches.branches or self.registry.hooks:
            return False
        branches = [one.address for one in found if one.tier in _NEED_MEMORY and one.tier is not Tier.TRAPPED]
        if not branches:
            return True
        try:
            reach = self.target.guest.isa.branch_reach
            return self.find_arena().free_code_of_all(min(branches), max(branches), reach) is not None
        except Refused:
            return False

    def planned(self, address: int) -> Plan | None:
        """Return the plan that was made in this stop, whether it can be carried out or not."""
        found = self._planned_for_now().get(address)
        return found.plan if found is not None else None

    def unplanned(self, addresses: Iterable[int]) -> list[int]:
        """Return those of `addresses` of which no plan was made in this stop."""
        planned = self._planned_for_now()
        return [address for address in addresses if address not in planned]

    def _planned_for_now(self) -> dict[int, _Planned]:
        """Return the plans of this stop."""
        moment = self.target.guest.moment(), self.target.debugger.breakpoints()
        if self._planned_at != moment:
            self._planned.clear()
            for handler in self._lowered.values():
                handler.forget_code()
            self._lowered.clear()
            self._planned_at = moment
        return self._planned

    def _plan_once(self, address: int, limits: TierLimits, neighbours: Neighbours) -> Plan:
        """Return the best plan for `address`: the one that was made already where nothing has changed since."""
        known = self._planned_for_now().get(address)
        if known is not None and known.is_valid(limits, neighbours) and (
            not known.is_alone or self._is_alone(address)
        ):
            return known.plan
        asked: dict[int, Neighbour | None] = {}

        def ask(at: int) -> Neighbour | None:
            # The plan counts a probe here, whether it is registered yet or not.
            found = asked[at] = neighbours(at) if at != address else None
            return found

        made = plan(PlanRequest(address, ask, self.target.debugger.breakpoints()), self._cfgs, limits)
        self._planned[address] = _Planned(made, limits, asked)
        return made

    def _is_alone(self, address: int) -> bool:
        """Return whether no other probe, and no breakpoint of the user's, is in the function around `address`."""
        start, end = self.bounds(address)
        if any(start <= at < end for at in self.target.debugger.breakpoints()):
            return False
        return not self.registry.has_other(start, end, address)

    def bounds(self, address: int) -> tuple[int, int]:
        """Return start and end of the function around `address`; of the byte there where none is known."""
        return self.target.guest.bounds(address) or (address, address + 1)

    def plan_without_detour(self, address: int, specs: Sequence[Spec], reason: Reason) -> Plan:
        """Return the best plan for `address` that needs no detour: a better one cannot be carried out, for `reason`.

        Raises Refused, for that reason, where no breakpoint counts all hits.
        """
        request = PlanRequest(address, breakpoints=self.target.debugger.breakpoints())
        without = replace(self.limits(specs), optimization=False, trap=False, boost=False)
        try:
            lower = plan(request, self._cfgs, without)
        except Refused as refused:
            raise Refused(reason) from refused  # with memory it would work
        refusals = tuple((tier, reason if tier in _NEED_MEMORY else why) for tier, why in lower.refused)
        return replace(lower, reason=reason, refused=refusals)

    def _lower_plan(self, site: Site, reason: Reason) -> Plan:
        """Return `plan_without_detour` of a site that works: a breakpoint, though it may miss hits: then that tier is
        among those that were refused.
        """
        try:
            return self.plan_without_detour(site.address, site.specs, reason)
        except Refused as refused:
            lower = _as_breakpoint(site.plan)
            if (missing := misses_hits(site.address, self._cfgs)) is not None:
                refused_tiers = (*((tier, reason) for tier in _NEED_MEMORY), (lower.tier, missing))
                return replace(lower, reason=reason, refused=refused_tiers)
            why = refused.__cause__.reason if isinstance(refused.__cause__, Refused) else reason
            return replace(lower, reason=why)

    def is_lost(self, address: int) -> bool:
        """Return whether a branch that could not be removed covers `address`."""
        return self._lost_branches.covers(address)

    def lost_branches(self) -> Sequence[Branch]:
        """Return the branches that could not be removed."""
        return self._lost_branches.branches

    def lost_heads(self) -> Iterator[int]:
        """Yield the bytes of text that branches cover which could not be removed."""
        for branch in self._lost_branches.branches:
            yield from range(branch.plan.head, branch.plan.patch_end)

    def detours_in_use(self) -> frozenset[int]:
        """Return where the detours are that the text may lead to, those of blocks aside."""
        return frozenset(one.detour.address for one in (*self.registry.branches(), *self._lost_branches.branches))

    def limits(self, specs: Sequence[Spec]) -> TierLimits:
        """Return what `specs` and the settings rule out."""
        settings = self.settings()
        forced = [Tier(spec.tier) for spec in specs if spec.tier]
        return TierLimits(
            optimization=settings.optimization,
            boost=settings.boost,
            emulation=settings.emulation,
            forced=min(forced) if forced else None,
            post_handler=any(spec.post_handler is not None for spec in specs),
            python_handler=any(spec.pre_handler is not None or spec.post_handler is not None for spec in specs),
            stacks_missing=self.target.guest.stacks_missing,
            trap=settings.trap,
            trap_missing=self.traps.missing,
            trap_paths=self.traps.paths,
        )

    def neighbours(self) -> Neighbours:
        """Return a function that finds the probe on an instruction; each is looked at once."""

        @cache
        def neighbour(address: int) -> Neighbour | None:
            site = self.registry.site(address)
            if site is None or not site.enabled:
                return None
            return Neighbour(site.enabled[0].number, not site.is_lost and may_share_detour(self.limits(site.specs)))

        return neighbour

    def find_arena(self) -> Arena:
        """Return the arena, or what would be it, the guest unchanged. Raises Refused where there is no memory."""
        return self.memory.find()

    def take_arena(self, borrow: bool = False) -> Arena:
        """Return the arena, taken at first need. Raises Refused.

        borrow: whether the guest may run so that its kernel lends memory: what was planned expires then.
        """
        return self.memory.take(self._on_arena, borrow)

    def _on_arena(self, arena: Arena) -> None:
        if arena.earlier is not None:
            self.rethooks.known += read_rethooks(arena.earlier, arena, homing(self.target.guest.isa))
        if arena.lender is not None:
            arena.lender.avoids(self.may_stop_at)
        for probe in self.registry.single_probes():
            write_probe(probe, arena.journal)

    def may_stop_at(self, address: int) -> bool:
        """Return whether something else may stop the guest there, or the text there may be half a branch.

        A thread that is about to run a whole branch is as safe there as without it.
        """
        if address in self.target.debugger.breakpoints():
            return True
        if any(change.address < address < change.end for change in self.registry.patches(address, address + 1)):
            return True
        branches = [site.branch for site in self.registry.near(address, LONGEST)]
        return any(one is None or one.plan.tier is not Tier.OPTIMIZED for one in branches)

    def release_arena(self) -> bool:
        """Give its memory back, and find some again at the next need. Return False while a thread may be inside."""
        if self.arena is not None:
            self._recover_lost()
            self._release_rings(self.arena)
            self.collector.collect(self.arena, Trigger.COMMIT)
            self.traps.dispatcher.remove()
            self.arena.release_reserve()
            self.arena.retire_probe_read()
            self.collector.collect(self.arena, Trigger.COMMIT)
            if self.arena.lender is not None and self.arena.lender.lent and self.arena.code.is_empty:
                self.arena.lender.give_back()
                self.collector.collect(self.arena, Trigger.COMMIT)
            # A branch that was changed by others may still lead there, and its counters are written.
            if not (self.arena.code.is_empty and self.arena.data.is_empty):
                self.arena.refill_reserve()
                return False
        self.memory.release()
        return True

    def end_earlier(self) -> None:
        """Give back what an earlier GDB has left without probes, as far as no thread is in its code."""
        if self.arena is None and self.target.arena_source.finish():
            self.target.debugger.guard()
            self.take_arena()
            self.release_arena()

    def watch_data(self) -> int:
        """Forget what found no room so far; return the bytes of data in use."""
        if self.arena is None:
            return 0
        self.arena.forget_lacks()
        return self.arena.data.used

    def data_used_since(self, before: int) -> int:
        return max(0, self.arena.data.used - before) if self.arena is not None else 0

    def lacking(self) -> Lack | None:
        """Return what found no room since `watch_data`, if the kernel may lend some; None where all did."""
        if self.arena is None or not (lacks := self.arena.lacks):
            return None
        lender = self.arena.lender  # it reads the guest to say why not
        if lender is None or lender.why_not():
            return None
        return next((lack for lack in lacks if not lack.is_code or _lends_code(lender, lack)), None)

    def journal_lack(self, size: int) -> Lack | None:
        """Return what to lend so that the journal holds so many bytes more; None where it does, or can have no more."""
        if self.arena is None or self.arena.lender is None or not self.arena.journal.is_short_of(size):
            return None
        return self.arena.lender.journal_lack

    def lend(self, lack: Lack, more: int) -> None:
        """See Lender. Raises OptprobeError."""
        arena = self.arena
        assert arena is not None and arena.lender is not None
        self.collector.collect(arena, Trigger.MEMORY)
        arena.lender.lend(lack, more)

    def lend_data(self, size: int, near: int, reach: int) -> None:
        """Have the guest's kernel lend data in one piece, for code at `near` that addresses them by distance.

        Nothing is lent where the kernel is known not to have so many bytes. Raises OptprobeError.
        """
        lender, lack = self.arena.lender if self.arena is not None else None, Lack(size, *data_range(near, reach, size))
        if lender is not None and lender.most(lack.low, lack.high) >= size:
            self.lend(lack, 0)

    def write_records(self, probes: Iterable[Probe] = (), gone: Iterable[Probe] = ()) -> None:
        """Have another GDB know what has changed, these probes among it."""
        if self.arena is not None:
            for probe in probes:
                write_probe(probe, self.arena.journal)
            for probe in gone:
                self.arena.journal.drop(Item.PROBE, probe.number)
            self.arena.journal.flush()

    # carrying it out ---------------------------------------------------------------------------------------------

    def settle(self, sites: Iterable[Site]) -> None:
        """Bring `sites`, and those that share their straight-line runs, to where they belong now.

        Sites that must wait work as stop points meanwhile. Raises OptprobeError, once all else is done, where a branch
        could not be taken away.
        """
        self.settle_around(site.address for site in sites)

    def settle_around(self, addresses: Iterable[int]) -> None:
        """Settle what shares a straight-line run with `addresses`: a probe or a breakpoint came or went there."""
        # Plan: a site that was planned in this stop, for the same neighbours and settings, keeps its plan.
        sites = self._affected_sites(tuple(addresses))
        neighbours, limits = self.neighbours(), dict[tuple[int, ...], TierLimits]()
        for site in sites:
            specs = site.specs
            if (of := tuple(map(id, specs))) not in limits:  # a glob's sites have one spec
                limits[of] = self.limits(specs)
            self.replan(site, neighbours, limits[of])
        self._planned.clear()  # what is written from here on may be in a plan's way
        # Find the threads that new branches have to wait for.
        groups, served = _groups(sites), _by_branch(sites)
        new = [group for group in groups if self.must_be_quiescent(group[0].plan) and not self._current_branch(group)]
        if new and self.arena is not None and self.arena.retired:
            self.collector.collect(self.arena, Trigger.BRANCH)
        detours = [site.detour for site in sites if site.detour is not None]
        blocked = quiescence_wait.find_busy([group[0].plan for group in new], detours, self.target.guest, self.arena)
        # Remove the branches that are wanted no more, or exchange them by one write; then write the new ones.
        failures: list[OptprobeError] = []
        for group in groups:
            if not blocked.get(group[0].plan.head):
                failures += self._exchange(group, served)
        failures += self._remove_branches(_by_branch(sites), groups)
        for site in sites:
            site.blocked_by = blocked.get(site.plan.head, "") if site.enabled else ""
        failures += self._trap_together(groups)
        for group in groups:
            failures += self._optimize([site for site in group if not site.is_lost])
        # All others stop the guest, or wait as breakpoints.
        for site in sites:
            if not site.is_lost and site.branch is None:
                self._install_breakpoint(site)
        self._lowered |= {probe.number: probe.handler for site in sites for probe in site.enabled}
        if failures:
            raise failures[0]

    def reserve(self, probe: Probe, plan: Plan) -> None:
        """Reserve what `probe` gathers in, before any branch is written, so that others keep theirs.

        Its program is lowered for that memory. Raises Refused, NotLowered.
        """
        if not self.needs_memory(probe, plan):
            return
        with self.suggesting_sizes(probe):
            arena, keeps = self.take_arena(), self.read_registers.in_function_of(plan.head)
            new = probe if probe.counter is None else None
            self.with_memory(lambda: branch_patch.reserve(probe, plan, self.target.guest, arena, keeps), arena)
            if probe.is_return:
                site = self.registry.site_of(probe)
                self.with_memory(lambda: self.rethooks.reserve(site, self.target.guest, arena, new), arena)

    @contextmanager
    def suggesting_sizes(self, probe: Probe) -> Iterator[None]:
        """Add to a refusal for lack of memory the sizes of tables and ring of `probe` that would fit."""
        try:
            yield
        except Refused as refused:
            if refused.reason.code != Refusal.ARENA_FULL.code:
                raise
            arena, needed = self.find_arena(), probe.handler.size
            free = arena.data.largest
            if arena.lender is not None:
                free = max(free, arena.lender.most(0, 1 << 64))
            if needed <= free:
                raise
            text = f"{refused.reason.text}: what the actions gather takes {needed} bytes, and {free} are free"
            smaller = probe.handler.fitting(free)
            if smaller is not None:
                hint = f"this fits: {', '.join(smaller.sizes)}"
            elif arena.lender is not None and (limit := arena.lender.max_memory_for(needed)):
                hint = f"set optprobe max-memory {limit}"
            else:
                hint = refused.reason.hint
            raise Refused(Reason(refused.reason.code, text, hint)) from None

    def needs_memory(self, probe: Probe, plan: Plan) -> bool:
        """Return whether `probe` needs memory before anything is written into the text."""
        has_maps = probe.handler.maps is not None  # which other probes have there, whatever this one's tier
        return probe.is_return or has_maps or (not plan.tier.stops and not probe.handler.is_plain)

    def may_be_busy(self, site: Site) -> bool:
        """Return whether a thread may be in a program of `site`, or in a retired detour, perhaps of the site."""
        return quiescence_wait.may_be_busy(site, self.target.guest, self.arena)

    def may_be_in_block(self, block: CountBlock) -> bool:
        """Return whether a thread may be in the detours of a block, or return there, or the same as above."""
        pieces = [(code.address, code.end) for code, _ in block.pieces()]
        return quiescence_wait.may_be_in(pieces, self.target.guest, self.arena)

    def retry(self, grow: bool = True) -> None:
        """Try the sites that wait, and free garbage. grow: also try those with half-full tables of calls."""
        enabled = [site for site in self.registry.sites() if site.enabled]
        some = [site for site in enabled if self._may_move_up(site) or (grow and self._grow_calls(site))]
        if some:
            self.check_alive()
            self.settle(some)
        self._recover_lost()
        self.tidy()

    def _recover_lost(self) -> None:
        """Branches that hold our bytes again."""
        if self.arena is not None:
            failures: list[OptprobeError] = []
            back = self._lost_branches.recover(self.links, self.target.guest, self.arena)
            for branch in back:
                self.traps.clear(branch.plan.head)
                self._release_tracer(branch.plan)
                failures += self._release_detour(branch, self.arena)
            for probe in self._lost_branches.take_unserved():
                self.release_counter(probe)
            still = {at for branch in self._lost_branches.branches for at in branch.addresses}
            failures += self._end_rethooks({at for branch in back for at in branch.addresses} - still, self.arena)
            if back:
                self.recovered()
            if failures:
                raise failures[0]

    def _end_rethooks(self, addresses: Collection[int], arena: Arena) -> Sequence[OptprobeError]:
        """Enter no more calls by the hooks of functions that lost branches at `addresses` served; return what went
        wrong.
        """
        served = {id(one) for at in addresses for one in self._rethooks_at(at)}
        failures: list[OptprobeError] = []
        for rethook in self.rethooks.of_functions(addresses):
            if id(rethook) not in served:
                try:
                    self.rethooks.end_tables(rethook, self.target.guest, arena)
                except OptprobeError as error:
                    failures.append(error)
        return failures

    def _rethooks_at(self, address: int) -> Iterator[Rethook]:
        """Yield the hooks that probes at `address` have."""
        if (site := self.registry.site(address)) is not None:
            yield from (one for one in (site.rethook, site.next_rethook) if one is not None)

    def must_be_quiescent(self, plan: Plan) -> bool:
        """Return whether a saved PC may be inside what `plan` displaces, and must not be."""
        return plan.needs_quiescence and not self.not_yet_run[0] <= plan.head < self.not_yet_run[1]

    def tidy(self) -> None:
        """Free what piles up."""
        if self.arena is not None:
            self._release_rings(self.arena)
            self.collector.collect_if_due(self.arena)

    def reclaim(self) -> int:
        """Free the slots that no thread is inside. Return how many are left that may be freed later."""
        if self.arena is None or self.target.guest.stacks_missing:
            return 0
        self.collector.collect(self.arena, Trigger.COMMIT)
        return len(self.collector.unsettled(self.arena))

    def _may_move_up(self, site: Site) -> bool:
        """Return whether `site` may move up without a change by us."""
        if site.blocked_by or site.is_lost or site.plan.reason is None:
            return bool(site.blocked_by)
        code = site.plan.reason.code
        return code in PASSING or (code == Refusal.ARENA_FULL.code and self._used() < self._used_when_full)

    def _used(self) -> int:
        """Return the bytes of the arena that are in use."""
        return self.arena.code.used + self.arena.data.used if self.arena is not None else 0

    def on_stop(self) -> None:
        """At a stop that occurred anyway; tables are read as often as that takes little of the time."""
        is_due = self.throttle.is_due
        self.retry(grow=is_due and self._is_some_half_full())
        if is_due and self.arena is not None:
            with self.throttle.measure():
                self.rethooks.drop_dead(self.target.guest, self.arena)

    def _is_some_half_full(self) -> bool:
        points = [site.rethook for site in self.registry.sites() if site.rethook is not None]
        with self.throttle.measure():
            return any(point.is_half_full(self.target.guest) for point in points)

    def clearing(self, sites: Iterable[Site]) -> AbstractContextManager[None]:
        """Return a block within which the hits of return probes at `sites` are cleared: their returns stay counted."""
        if self.arena is None:
            return nullcontext()
        return self.rethooks.clearing(sites, self.target.guest, self.arena)

    def active_calls(self, site: Site) -> Sequence[ActiveCall]:
        """Calls that the return probes of `site` saw entered and that have not returned."""
        tables = site.rethook.tables if site.rethook is not None else ()
        return self.rethooks.active_calls(self.target.guest, self.arena, tables) if self.arena is not None else ()

    def _grow_calls(self, site: Site) -> bool:
        """Return whether calls at `site` get a larger table; where there is no memory for one they are missed some day.
        """
        if site.rethook is None or self.arena is None:
            return False
        try:
            return self.rethooks.grow(site, self.target.guest, self.arena)
        except OptprobeError:
            return False

    def pin(self, sites: Sequence[Site]) -> None:
        """Bring these sites down to breakpoints until `unpin`: the original instructions are about to be stepped."""
        for site in sites:
            site.pinned = True
        self.settle(sites)

    def unpin(self, sites: Sequence[Site]) -> None:
        """Let the next `settle` optimize them again."""
        for site in sites:
            site.pinned = False

    def release_counter(self, probe: Probe) -> None:
        """Free a deleted probe's counter and pad together with the code that may still use them.

        A detour that was retired because of another's change counts until that change is undone.
        """
        if self.arena is None or self._lost_branches.keep(probe):
            return
        probe.remove_breakpoints()
        if probe.counter is not None:
            if not self.rethooks.keep_counter(probe.counter):
                self.arena.data.release(probe.counter)
            probe.counter = None
        if probe.handler.shared is not None:
            probe.handler.shared.release(probe.number, self.arena)
        self.maps.release(probe.number, self.arena)
        if probe.pad is not None:
            self.arena.pads.release(probe.pad.slot)
            probe.pad = None
        # The table of a lost branch is given back with the branch.
        is_there = self.registry.has(probe) and probe.is_in_kernel
        if probe.is_return and is_there and not self.registry.site_of(probe).is_lost:
            self.rethooks.release(self.registry.site_of(probe), probe, self.target.guest, self.arena)

    def leave_ring(self, memory: Slot) -> None:
        """Have `tidy` release the memory of a ring that probes have shared, once nothing leads to what writes there."""
        self._left_rings.append(memory)

    def _release_rings(self, arena: Arena) -> None:
        if not self._left_rings:
            return
        used = {*(memory for memory, _ in self.registry.recording()), *self._lost_branches.rings}
        for memory in self._left_rings:
            if memory not in used:
                arena.data.release(memory)
        self._left_rings = [memory for memory in self._left_rings if memory in used]

    def replan(self, site: Site, neighbours: Neighbours | None = None, limits: TierLimits | None = None) -> None:
        """Plan `site` for all of its probes. neighbours, limits: see `plan`."""
        if not site.enabled:
            return
        try:
            site.plan = self.plan(site.address, site.specs, neighbours, limits)
        except Refused as refused:
            # The guest's own kprobe came there, say: the decoded code is the old one.
            site.plan = replace(_as_breakpoint(site.plan), reason=refused.reason)

    def _affected_sites(self, addresses: Sequence[int]) -> list[Site]:
        """Return the sites on the runs of `addresses`, and those that share a branch with one of them, ascending.

        And the same of branches that overwrite what probes there read.
        What was one run when a branch was written may be several now: the guest put a kprobe into the function.
        """
        found: dict[int, Site] = {}
        more = {*addresses, *self.read_registers.overwritten(addresses)}
        while more:
            sites = [site for site in self._sites_near(more) if site.address not in found]
            found |= {site.address: site for site in sites}
            shared = {at for site in sites if site.branch is not None for at in site.branch.addresses}
            more = shared - found.keys()
        return [found[address] for address in sorted(found)]

    def _sites_near(self, addresses: Iterable[int]) -> list[Site]:
        """Return the sites on the straight-line runs that `addresses` lie on, ascending."""
        looked_at: set[int] = set()

        @cache
        def has_enabled(block: int) -> bool:
            """Return whether a site in this block of FAR bytes, or next to it, is enabled."""
            return self.registry.has_enabled((block - 1) * FAR, (block + 2) * FAR)

        for address in addresses:
            if address in looked_at:
                continue
            looked_at.add(address)
            if not has_enabled(address // FAR):
                continue
            cfg = self._cfgs.at(address)
            insn = cfg.containing(address) if cfg is not None else None
            if cfg is None or insn is None:
                continue
            if self.registry.has_other(cfg.function.start, cfg.function.end, address):
                # A branch may cover padding behind its run.
                looked_at |= cfg.served_together(cfg.owner_of_padding(insn))
        found = (self.registry.site(address) for address in sorted(looked_at))
        return [site for site in found if site is not None and not site.is_lost]

    def _exchange(self, group: Sequence[Site], served: Mapping[int, Sequence[Site]]) -> Sequence[OptprobeError]:
        """Redirect the old branch of `group` to its new detour, by one write: if GDB dies meanwhile, it still counts.

        served: the sites of each branch, by its head.

        Where that fails nothing has changed, and the old branch must be removed first. Return what went wrong with the
        old detour.
        """
        old = group[0].branch
        if old is None or self._current_branch(group) is old:
            return ()
        sites = [site for site in served[old.plan.head] if site.branch is old]
        if not self._is_exchangeable(old, group, sites):
            return ()
        arena = self.take_arena()
        try:
            self.links.remove(old)
        except OptprobeError:
            return ()
        for site in group:
            if site.branch is None:
                site.remove_breakpoint(self.target.guest, arena)
        try:
            keeps, lost = self.read_registers.in_function_of(old.plan.head), self._lost_branches.branches
            branch = branch_patch.install(group, self.target, arena, self.traps, keeps, lost, old)
        except BaseException as error:
            is_lost = group[0].is_lost
            for site in sites if is_lost else ():
                site.abandon()
            if is_lost:  # which of the two is there is not known
                self.registry.remove_branch(old)
            if not isinstance(error, OptprobeError):
                raise
            if not is_lost:
                self.links.add(old)
            return (error,) if is_lost else ()
        self.registry.remove_branch(old)
        for site in sites:
            if site.branch is old:  # else the new one is attached
                site.detach_branch()
        self._arm(branch, group)
        return self._release_detour(old, arena)

    def _release_detour(self, branch: Branch, arena: Arena) -> Sequence[OptprobeError]:
        """Release the detour of `branch`, which was removed. Return what went wrong: the branch is gone all the same.
        """
        try:
            branch.installed.release(self.target.guest, arena, reached=True)
        except OptprobeError as error:
            return (error,)
        return ()

    def _is_exchangeable(self, old: Branch, group: Sequence[Site], sites: Sequence[Site]) -> bool:
        """Return whether all that `old` serves is in `group` or disabled, and its bytes are those of the new branch."""
        wanted = group[0].plan
        if (old.plan.head, old.plan.tier, old.plan.ftrace) != (wanted.head, wanted.tier, wanted.ftrace):
            return False
        if old.patch.old != wanted.original or self.kernel_stops.is_lifted(old) or any(site.pinned for site in group):
            return False
        if any(site.branch not in (old, None) for site in group):
            return False
        return all(not site.enabled or any(site is one for one in group) for site in sites)

    def _remove_branches(
        self, served: Mapping[int, Sequence[Site]], groups: Sequence[Sequence[Site]]
    ) -> list[OptprobeError]:
        """Remove the branches that are not what `groups` want. Return what went wrong; some may be left.

        served: the sites of each branch, by its head.
        """
        failures: list[OptprobeError] = []
        standing = (self._current_branch(group) for group in groups if not any(site.pinned for site in group))
        stay = {branch.plan.head for branch in standing if branch is not None}
        for head, sites in served.items():
            branch = sites[0].branch
            if head in stay or branch is None:
                continue
            assert self.arena is not None
            self.registry.remove_branch(branch)
            try:
                self.links.remove(branch)
                lifted = self.kernel_stops.forget_branch(branch)
                branch_patch.remove(branch, sites, self.target.guest, self.arena, lifted)
                self.traps.clear(branch.plan.head)
            except BaseException as error:  # of GDB's own errors too
                self._lost_branches.branches.append(branch)
                # Our bytes were changed by others: they are left alone, and so is the detour that they may lead to.
                for site in sites:
                    site.abandon()
                if not isinstance(error, OptprobeError):
                    raise
                failures.append(error)
            else:
                self._release_tracer(branch.plan)
                failures += self._release_detour(branch, self.arena)
                for at in branch.staying:  # a vCPU that has come there has run the program
                    self.target.stops.passed(at)
        return failures

    def _current_branch(self, group: Sequence[Site]) -> Branch | None:
        """Return the branch of `group`, if it is installed as planned."""
        branch = group[0].branch
        wanted = branch_patch.probe_numbers(group), group[0].plan.displaced, group[0].plan.tier
        if branch is None or (branch.probe_numbers, branch.plan.displaced, branch.plan.tier) != wanted:
            return None
        if any(site.next_rethook is not None for site in group):
            return None
        return branch if self.read_registers.is_preserved(branch) else None

    def _optimize(self, group: Sequence[Site]) -> Sequence[OptprobeError]:
        """Write the branch of `group`, if it is not installed and no thread is in the way. Return what went wrong."""
        if not group or group[0].branch is not None or any(site.blocked_by or site.pinned for site in group):
            return ()
        for site in group:
            site.remove_breakpoint(self.target.guest, self.arena)
        wanted = group[0].plan
        keeps, lost = self.read_registers.in_function_of(wanted.head), self._lost_branches.branches
        try:
            arena = self.take_arena()
            branch = self.with_memory(
                lambda: branch_patch.install(group, self.target, arena, self.traps, keeps, lost), arena
            )
        except Refused as refused:
            self._release_tracer(wanted)
            for site in group:
                site.plan = self._lower_plan(site, refused.reason)
        except OptprobeError as error:
            if not group[0].is_lost:
                self._release_tracer(wanted)
                for site in group:
                    site.blocked_by = error.message
            return (error,)
        else:
            self._arm(branch, group)
        return ()

    def _trap_together(self, groups: Iterable[Sequence[Site]]) -> Sequence[OptprobeError]:
        """Write the traps of those of `groups` that can be written together, where they are many; else none: then each
        is tried by itself, which tells what is in the way. Return why traps may be left that are not known to be right.
        """
        sites = [group[0] for group in groups if trap_patches.can_be_together(group)]
        if len(sites) < trap_patches.LEAST:
            return ()
        for site in sites:
            site.remove_breakpoint(self.target.guest, self.arena)
        keeps = [self.read_registers.in_function_of(site.plan.head) for site in sites]
        lost = self._lost_branches.branches
        before = len(lost)
        try:
            branches = trap_patches.install(sites, self.target, self.take_arena(), self.traps, keeps, lost)
        except OptprobeError as error:
            return (error,) if len(lost) > before else ()
        for branch in branches:
            self._arm(branch, [site for site in sites if site.branch is branch])
        return ()

    def _arm(self, branch: Branch, group: Sequence[Site]) -> None:
        self.registry.add_branch(branch)
        self.links.add(branch)
        for site in group:
            self.kernel_stops.install(site)

    def _release_tracer(self, wanted: Plan) -> None:
        if wanted.ftrace is not None:
            self.target.tracer.release(wanted.ftrace)

    def _install_breakpoint(self, site: Site) -> None:
        """Have `site` stop the guest as its plan says, or not at all when nothing there is enabled."""
        if not site.enabled:
            site.remove_breakpoint(self.target.guest, self.arena)
            return
        wanted = _as_breakpoint(site.plan) if not site.plan.tier.stops or site.pinned else site.plan
        if site.state is SiteState.BREAKPOINT and site.tier is wanted.tier and not site.is_stale:
            return
        site.remove_breakpoint(self.target.guest, self.arena)
        if wanted.tier is not Tier.BOOSTED:
            site.install_breakpoint(wanted, self.target, self.arena)
            return
        try:
            arena = self.take_arena()
            self.with_memory(lambda: site.install_breakpoint(wanted, self.target, arena), arena)
        except Refused as refused:
            site.plan = self._lower_plan(site, refused.reason)
            site.install_breakpoint(site.plan, self.target, self.arena)

    def with_memory(self, action: Callable[[], T], arena: Arena) -> T:
        """Do it; where the arena is full, collect what is proven empty and try once more."""
        try:
            return action()
        except Refused as refused:
            if refused.reason.code != Refusal.ARENA_FULL.code:
                raise
            before = arena.data.used
            freed = self.collector.collect(arena, Trigger.MEMORY)
            self._used_when_full = self._used()
            if not freed and arena.data.used >= before:
                raise
            arena.forget_lacks()
            return action()


def _lends_code(lender: Lender, lack: Lack) -> bool:
    start, end = lender.code_place(lack.low, lack.high)
    return end - start >= lack.size


def _groups(sites: Sequence[Site]) -> list[list[Site]]:
    """Return the enabled sites that are planned not to stop the guest, by the branch or the trap they share."""
    groups: dict[int, list[Site]] = {}
    for site in sites:
        if site.enabled and not site.plan.tier.stops:
            groups.setdefault(site.plan.head, []).append(site)
    return list(groups.values())


def _by_branch(sites: Iterable[Site]) -> dict[int, list[Site]]:
    """Return the sites that each installed branch serves, by its head."""
    found: dict[int, list[Site]] = {}
    for site in sites:
        if site.branch is not None:
            found.setdefault(site.branch.plan.head, []).append(site)
    return found


def _as_breakpoint(wanted: Plan) -> Plan:
    """Return the plan of a site that waits: a breakpoint, which needs nothing."""
    insn = (wanted.insn,)
    return replace(
        wanted, tier=Tier.BREAKPOINT, displaced=insn, original=b"", needs_quiescence=False, ftrace=None, stays=None
    )
