"""Which of thousands of functions can be probed together, and by which plans.

    addresses ──► tracer's sites that are idle ──► one plan for all
           └───► other entries, each planned  ──► kept as long as they hold (entry_plans.py)
                 nothing of the user's or of another probe may be in their functions
A site is one instruction that nothing else rewrites: the tracer's nop, or what is at the function's entry before it. So
its plan is known without decoding, and no thread can be inside it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.plan_request import TierLimits
from gdb_optprobe.detours.planner import Plan, may_share_detour
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.text import FtraceSite, IdleSites
from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes import quiescence_wait
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.entry_plans import MANY, EntryPlans
from gdb_optprobe.probes.kept_plans import KeptPlans
from gdb_optprobe.probes.lone_plans import Lone, lone, lone_plans
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.shared_returns import SharedReturns
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

LEAST = 64
"""Probes that are worth a block."""
LEAST_RECORDED = 1
"""The same of calls that are recorded: what is shared gives threads at rest their return addresses back in the end."""


def least(spec: Spec) -> int:
    """Return how many probes of `spec` are worth a block."""
    return LEAST if spec.records is None else LEAST_RECORDED


@dataclass(frozen=True)
class BlockPlanner:
    """Plans for many probes of one `add`; nothing is changed in the guest."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    returns: SharedReturns
    entry_plans: EntryPlans = field(default_factory=EntryPlans)

    def may_be_together(self, spec: Spec, addresses: Sequence[int]) -> bool:
        if spec.in_program or spec.has_python_handler:
            return False
        if not (self.returns.can_share(spec) if spec.is_return else spec.is_typed or spec.is_recorded):
            return False
        return len(addresses) >= least(spec) and may_share_detour(self.optimizer.limits([spec]))

    def places(self, parts: Sequence[tuple[Spec, Sequence[int]]]) -> list[tuple[IdleSites, Sequence[Plan]]]:
        """Return, for each spec and its addresses, the tracer's sites among these that have one plan, and plans of
        others.
        """
        sites = [self._sites(*part) for part in parts]
        # What returns share begins at a tracer's site.
        others = [
            (spec, set(addresses).difference(idle.addresses) if not spec.is_return else set[int]())
            for (spec, addresses), idle in zip(parts, sites, strict=True)
        ]
        with self._expecting(others):
            return [(idle, self.plans_of(*other)) for idle, other in zip(sites, others, strict=True)]

    def _sites(self, spec: Spec, addresses: Sequence[int]) -> IdleSites:
        found = self._free(self.target.guest.idle_sites(addresses, self.target.tracer.kept_off))
        return self.returns.seen(found) if spec.is_return else found

    def may_share_returns(self, address: int) -> bool:
        """Return whether the function at `address` can be one of many with a return probe."""
        if (known := self.returns.returning.get(address)) is not None:
            return known
        sites = self.target.guest.idle_sites([address], self.target.tracer.kept_off)
        return bool(self.returns.seen(sites).addresses)

    def stopping(self, spec: Spec, addresses: Collection[int]) -> set[int]:
        """Return those of `addresses` that can be probed only where each hit stops the guest, or not at all."""
        limits, occupied = self.optimizer.limits([spec]), self._all_occupied()
        plan = self._planner(spec, limits)
        bounds = self.optimizer.bounds
        alone = [address for address in sorted(addresses) if self._is_apart(address, bounds(address), occupied)]
        self.entry_plans.of(alone, self.target.guest, limits, plan)
        found = {address for address in alone if self.entry_plans.stops(address)}
        for address in {*addresses}.difference(alone):  # what it is now holds while that is there
            try:
                stops = plan(address).tier.stops > 0
            except Refused:
                stops = True
            if stops:
                found.add(address)
        return found

    def stops(self, spec: Spec, address: int) -> bool:
        """Return whether `stopping` has an address; from what is known, where that is enough."""
        if not self.entry_plans.has(address):
            return bool(self.stopping(spec, [address]))
        return self.entry_plans.stops(address)

    def expect_lone(self, spec: Spec, wanted: Mapping[int, Lone]) -> None:
        """Take the plans for `spec` that follow from these instructions alone for theirs in this stop."""
        limits, guest = self.optimizer.limits([spec]), self.target.guest
        if not may_share_detour(limits):
            return
        unknown = {*self.entry_plans.unknown(sorted(wanted), guest, limits)}
        self.optimizer.expect_plans(lone_plans({at: wanted[at] for at in unknown}, guest), limits)

    def lone(self, addresses: Collection[int]) -> dict[int, Lone]:
        """Return those of `addresses` that have such plans."""
        return lone(self.entry_plans.known(addresses), self.target.guest.isa)

    def _planner(self, spec: Spec, limits: TierLimits) -> Callable[[int], Plan]:
        neighbours = self.optimizer.neighbours()
        return lambda address: self.optimizer.plan(address, [spec], neighbours, limits)

    def plans_of(self, spec: Spec, addresses: Collection[int]) -> list[Plan]:
        """Return plans for those of `addresses` that have no tracer's site and nothing else in their functions.

        None of modules: each of these is put in by itself, and goes with its module.
        """
        if not addresses:
            return []
        guest, bounds, blocks = self.target.guest, self.optimizer.bounds, self.registry.blocks
        taken = sorted({bounds(address) for address in self._all_occupied()})
        starts, ends = [start for start, _ in taken], [end for _, end in taken]

        def is_alone(address: int) -> bool:
            if bisect_right(starts, address) != bisect_right(ends, address) or self._may_go(address):
                return False
            return not blocks or not any(block.has_within(*bounds(address)) for block in blocks)

        alone = [address for address in sorted(addresses) if is_alone(address)]
        limits = self.optimizer.limits([spec])
        planner = self._planner(spec, limits)
        with self._expecting([(spec, alone)]):
            unknown = self.entry_plans.unknown(alone, guest, limits)
            expected = self.optimizer.expected(unknown, limits)
            known = expected if self.optimizer.can_be_carried_out(expected) else ()
            asked = len(expected) - len(known)
            found = self.entry_plans.of(alone, guest, limits, planner, asked, anywhere=spec.is_recorded, known=known)
        self.optimizer.expect_plans(self.entry_plans.trapped(alone), limits)  # they are installed one by one
        return found

    @contextmanager
    def _expecting(self, parts: Iterable[tuple[Spec, Collection[int]]]) -> Iterator[None]:
        """Have the plans of these addresses known that are kept for all boots, where they are many, and keep those that
        are made meanwhile.
        """
        guest, by_limits = self.target.guest, dict[TierLimits, set[int]]()
        for spec, addresses in parts:
            by_limits.setdefault(self.optimizer.limits([spec]), set()).update(addresses)
        missing = list[tuple[KeptPlans, list[int]]]()
        for limits, wanted in by_limits.items():
            unknown = self.optimizer.unplanned(self.entry_plans.unknown(sorted(wanted), guest, limits))
            if len(unknown) < MANY or (kept := self._kept(limits)) is None:
                continue
            self.optimizer.expect_plans(kept.load(frozenset(unknown)), limits)
            missing.append((kept, self.optimizer.unplanned(unknown)))
        yield
        for kept, unknown in missing:
            kept.store(filter(None, map(self.optimizer.planned, unknown)))

    def _kept(self, limits: TierLimits) -> KeptPlans | None:
        """Return the plans that are kept for all boots; None where none can be."""
        guest = self.target.guest
        text = guest.lasting_text()
        if text is None:
            return None
        guest.read_ahead(0)
        return KeptPlans(text, limits, guest.isa, guest.text)

    def sample(self, site: FtraceSite, spec: Spec) -> Plan | None:
        """Return the plan of a site as the planner makes it; None where it is not what the others' is taken for."""
        try:
            plan = self.optimizer.plan(site.address, [spec])
        except Refused:
            return None
        isa, insn = self.target.guest.isa, plan.insn
        whole = len(plan.displaced) == 1 and insn.data == site.idle and insn.address == site.address
        alike = plan.ftrace == site or (plan.ftrace is None and isa.moves_as_it_is(insn))
        # What a register holds at one function's entry may not be there at another's; what a tracer may clobber is dead
        # at each.
        dead = isa.dead_at_entry()
        clobbered = dead.registers <= plan.dead.registers and dead.flags <= plan.dead.flags
        same = plan.tier is Tier.OPTIMIZED and whole and alike and clobbered
        return replace(plan, dead=dead, base=None) if same else None

    def busy(self, plans: Sequence[Plan]) -> frozenset[int]:
        """Return the heads of those of `plans` that a thread may be inside of. One scan serves all."""
        waits = [plan for plan in plans if self.optimizer.must_be_quiescent(plan)]
        arena = self.optimizer.arena
        if waits and arena is not None and arena.retired:
            self.optimizer.collector.collect(arena, Trigger.BRANCH)
        found = quiescence_wait.find_busy(waits, (), self.target.guest, arena)
        return frozenset(head for head, why in found.items() if why)

    def ready(self, blocks: Sequence[CountBlock]) -> frozenset[int]:
        """Return the sites of disabled blocks that can be written as they are."""
        sites = [block.sites[index] for block in blocks if block.is_uniform for index in block.members]
        idle = self._free(self.target.guest.idle_sites(sites, self.target.tracer.kept_off)).addresses
        others = [block.sites[index] for block in blocks if not block.is_uniform for index in block.members]
        plans = self.plans_of(blocks[0].spec, others)
        return frozenset([*idle, *(plan.head for plan in plans)]) - self.busy(plans)

    def _free(self, sites: IdleSites) -> IdleSites:
        """Return those of `sites` on and around which nothing of the user's or of other probes is."""
        starts, taken = sites.addresses, set[int]()
        around = [(at - LONGEST, at + LONGEST) for at in (*self.target.debugger.breakpoints(), *self._occupied())]
        # A program there would have to leave alone what a probe of the function reads.
        for first, behind in (*around, *self.optimizer.read_registers.functions()):
            taken.update(starts[bisect_left(starts, first) : bisect_left(starts, behind)])
        for block in self.registry.blocks:
            taken.update(block.sites[index] for index in block.members)
        return replace(sites, addresses=[start for start in starts if start not in taken]) if taken else sites

    def _is_apart(self, address: int, bounds: tuple[int, int], occupied: Sequence[int]) -> bool:
        """Return whether the text there stays, and none of `occupied` is in its function, which has these bounds."""
        return not (_is_any(occupied, *bounds) or self._may_go(address))

    def _may_go(self, address: int) -> bool:
        """Return whether the text there goes with its module: a block outlasts it, and so does a plan that is kept."""
        return self.target.modules.identity(address) is not None

    def _all_occupied(self) -> Sequence[int]:
        """Return where the user's breakpoints are, and probes and patches that are in no block, ascending."""
        return sorted({*self.target.debugger.breakpoints(), *self._occupied()})

    def _occupied(self) -> Iterator[int]:
        """Yield where probes and patches are that are in no block."""
        yield from self.registry.addresses()
        yield from self.optimizer.lost_heads()


def _is_any(ascending: Sequence[int], start: int, end: int) -> bool:
    """Return whether any number is from `start` to before `end`."""
    place = bisect_left(ascending, start)
    return place < len(ascending) and ascending[place] < end
