"""Probes on the kernel, kprobes and kretprobes: planned, their memory reserved, installed.

    Spec ──plan──► Plan, Handler, a registered Probe ──reserve──► its memory, its program lowered ──install──► the guest

user/uprobes.py has the same verbs for probes on programs. A plan and a lowered program hold until the guest runs or
what they were made for changes (Optimizer.plan, Handler.code), so that `install` makes neither again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour, build_count, build_detour
from gdb_optprobe.detours.plan_request import Neighbours
from gdb_optprobe.detours.planner import Plan, TierLimits
from gdb_optprobe.detours.refusal import NO_MEMORY, PASSING, Reason, Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import WORD
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.maps.call_table import MISSED
from gdb_optprobe.probes import kernel_rethooks, kretprobe, site_views
from gdb_optprobe.probes.event_probes import handled, names_at, names_at_return
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour, trial
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_views import SiteCode, SiteView, explain_view
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.rethook import Costs, Rethook
from gdb_optprobe.probes.session_maps import SessionMaps
from gdb_optprobe.probes.settings import DEFAULT_TABLE_KEYS, Settings, sizes_of
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import ExplainView

LENT = "the guest's kernel is to lend memory for it, for which the guest runs"
WOULD_STOP = OptprobeError(
    "a hit would stop the guest: optprobe explain FUNCTION says why; optprobe add FUNCTION or -tier breakpoint takes it"
)
_KEPT_IN_GLOBS = NO_MEMORY | PASSING | {
    reason.code
    for reason in (
        Refusal.OPTIMIZATION_OFF,
        Refusal.PYTHON_HANDLER,
        Refusal.POST_HANDLER,
        Refusal.TIER_FORCED,
        Refusal.USER_BREAKPOINT,
        Refusal.OVERLAPS_PROBE,
    )
}
"""Why a probe of a glob may stop the guest: that was asked for, the guest stops there anyway, or something is in the
way for now: memory is lacking, or the guest has patched its own text.
"""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A function among a glob's that gets no probe: the handler does not compile for it, or a hit would stop the guest.
    """

    address: int
    error: OptprobeError


@dataclass(frozen=True, slots=True)
class MapSpace:
    """See shared_maps.Space. Maps larger than by default may be in memory that the kernel lends."""

    optimizer: Optimizer
    settings: Callable[[], Settings]

    @property
    def free(self) -> int:
        try:
            return self.optimizer.find_arena().data.largest
        except Refused:  # the probes' plans say why
            return 0

    @property
    def lent(self) -> int:
        if self.settings().table_keys <= DEFAULT_TABLE_KEYS or not self.free:
            return 0
        lender = self.optimizer.find_arena().lender
        return lender.most(0, 1 << 64) if lender is not None else 0


@dataclass
class Kprobes:
    """What a session does to probes on its guest's kernel."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]

    @property
    def maps(self) -> SessionMaps:
        """Return the maps of the session."""
        return self.optimizer.maps

    def addresses(self, spec: Spec) -> tuple[int, ...]:
        """Return where a spec's location is now; nowhere where its probe is to wait. Raises OptprobeError."""
        if spec.tier and spec.tier not in {tier.value for tier in Tier}:
            tiers = ", ".join(tier.value for tier in Tier)
            raise OptprobeError(f"no tier is called '{spec.tier}'", f"there are: {tiers}")
        if (event := spec.event) is not None and (handler := handled(spec)) is not None:
            return self.optimizer.tracepoints.addresses(event, handler)
        try:
            return self.target.debugger.resolve(spec.location, spec.glob)
        except OptprobeError:
            if not spec.pending or not self.target.modules.can_wait(spec):
                raise
            return ()

    def share(self, spec: Spec, probes: int) -> SharedMaps | None:
        """Return maps for the probes of one `add` to share; None where each has its own."""
        if not spec.glob or probes < 2 or spec.is_plain_count or spec.has_script:
            return None
        return SharedMaps(self.settings().table_keys, probes, MapSpace(self.optimizer, self.settings))

    def plan(
        self, spec: Spec, addresses: Sequence[int], maps: SharedMaps | None = None
    ) -> tuple[list[Probe], list[LeftOut]]:
        """Plan and compile a probe at each of `addresses`; return them, registered. The guest is as it was.

        Of a glob's addresses, those that cannot be probed are left out; those are returned for which the handler does
        not compile, or at which a hit would stop the guest. maps: that the probes share. Raises OptprobeError with none
        registered.
        """
        neighbours, limits = self.optimizer.neighbours(), self.optimizer.limits([spec])
        found = [self.plan_at(address, spec, neighbours, limits) for address in addresses]
        plans, settings = [plan for plan in found if plan is not None], self.settings()
        handlers = [(plan, self._take_or_leave_out(spec, plan, settings, maps)) for plan in plans]
        probes: list[Probe] = []
        left_out: list[LeftOut] = []
        for plan, handler in handlers:
            if isinstance(handler, LeftOut):
                left_out.append(handler)
                continue
            probe = Probe(
                self.registry.next_number(), spec, plan.address, handler, sizes_of(settings), moved=plan.moved
            )
            self.registry.add(probe, self.registry.site(plan.address) or Site(plan.address, plan))
            probes.append(probe)
        return probes, left_out

    def plan_at(
        self, address: int, spec: Spec, neighbours: Neighbours | None = None, limits: TierLimits | None = None
    ) -> Plan | None:
        """Return the plan for a probe of `address`; None where it is one of a glob's that cannot be probed.

        A function at the entry of which the guest's own tracer is in use is probed at the next instruction, which runs
        as often; an instruction between a load that reserves memory and its store, at that load.
        neighbours, limits: see Optimizer.plan. Raises Refused.
        """
        try:
            plan = self._plan_here_or_at_load(address, spec, neighbours, limits)
            self.check_tier(plan, spec)
            if spec.is_return:
                kretprobe.check_function(plan.address, self.target.guest)
        except Refused:
            if spec.glob:
                return None
            raise
        refused = plan.why_not(Tier.OPTIMIZED)
        if refused is None or refused.code != Refusal.FTRACE_IN_USE.code or spec.is_exact:
            return plan
        behind = self.optimizer.plan(plan.insn.end, [spec], neighbours, limits)
        return replace(behind, moved=refused) if behind.tier is Tier.OPTIMIZED else plan

    def _plan_here_or_at_load(
        self, address: int, spec: Spec, neighbours: Neighbours | None, limits: TierLimits | None
    ) -> Plan:
        try:
            return self.optimizer.plan(address, [spec], neighbours, limits)
        except Refused as refused:
            if refused.reason.code != Refusal.RESERVATION.code or spec.has_python_handler or spec.is_return:
                raise
            if (load := self.optimizer.load_before(address)) is None:
                raise
            return replace(self.optimizer.plan(load, [spec], neighbours, limits), moved=refused.reason)

    def check_tier(self, plan: Plan, spec: Spec) -> None:
        """Raise Refused where `-tier` asks for a tier that this address cannot have."""
        why = plan.why_not(Tier(spec.tier)) if spec.tier else None
        if why is not None:
            text = f"{self.target.guest.text.spell(plan.address)} cannot be {spec.tier}: {why.text}"
            moved = site_views.moved_note(plan.moved, plan.address, self.target.guest)
            raise Refused(Reason(why.code, "; ".join(filter(None, (text, moved))), why.hint))

    def takes(self, spec: Spec, address: int) -> bool:
        """Return whether `add` of a glob has a probe at `address`."""
        plan = self.plan_at(address, spec)
        return plan is not None and isinstance(self._take_or_leave_out(spec, plan, self.settings()), Handler)

    def _take_or_leave_out(
        self, spec: Spec, plan: Plan, settings: Settings, maps: SharedMaps | None = None
    ) -> Handler | LeftOut:
        """Return what a hit at `plan` does, or why a glob leaves this function out: it lacks what the handler names, or
        a hit would stop the guest.

        Raises OptprobeError as `compile` does where it is no glob.
        """
        try:
            handler = self.compile(spec, plan, settings, maps)
        except (Unreadable, Unreachable):
            raise
        except OptprobeError as error:
            if not spec.glob:
                raise
            return LeftOut(plan.address, error)
        if spec.glob and stops_unasked(spec, plan, handler):
            return LeftOut(plan.address, WOULD_STOP)
        return handler

    def compile(
        self,
        spec: Spec,
        plan: Plan,
        settings: Settings,
        maps: SharedMaps | None = None,
        function: int | None = None,
    ) -> Handler:
        """Return what a hit at `plan` does. Raises OptprobeError that points at what was typed.

        maps: that it shares with others. function: its key there, where that is not its address now.
        """
        if spec.is_plain_count:
            return Handler()
        limits = ProgramLimits(text=settings.string_length, stack=settings.stack_size // WORD)
        if spec.has_script:
            scope, entry = self._names(spec, plan), spec.entry or EntryProgram()
            program = spec.program or self.optimizer.scripts.compile(spec, scope, plan.address)
        elif spec.is_return:
            program, scope, entry = kretprobe.compile_kretprobe(spec, plan.address, self.target.guest, limits)
        else:
            scope, entry = names_at(spec, plan.address, self.target.guest), EntryProgram()
            program = compile_handler(spec.condition_part, spec.action_parts, scope.names, limits)
        bits = [number.bit_length() - 1 for number in (settings.table_keys, settings.ring_records)]
        made = Handler.of(program, scope.per_cpu, scope.cpu, scope.reads, *bits, overwrites=spec.overwrite)
        made = replace(
            made, entry=entry, per_cpu_register=self.target.guest.isa.system.per_cpu, records=spec.records
        )
        made = made.using(self.maps)
        if plan.moved is not None and plan.moved.code == Refusal.RESERVATION.code:
            self._check_at_load(plan, plan.moved, made, spec)
        return made if maps is None else made.sharing(maps, plan.address if function is None else function)

    def _check_at_load(self, plan: Plan, why: Reason, made: Handler, spec: Spec) -> None:
        """Raise Refused where what a probe does is not the same at the load: it reads or shows registers."""
        isa = self.target.guest.isa
        typed = (spec.condition, *spec.actions)
        if not (made.stops or made.reads & {*isa.registers} - isa.system.fixed or any("$pc" in each for each in typed)):
            return
        load = self.target.guest.text.spell(plan.address)
        text = f"{why.text}; a probe at the load, {load}, counts for it, but its registers are those of before"
        raise Refused(Reason(why.code, text, why.hint))

    def _names(self, spec: Spec, plan: Plan) -> NamesAt:
        """Return what names mean in a script's program at `plan`."""
        found = names_at_return(spec, plan.address, self.target.guest) if spec.is_return else None
        return found or names_at(spec, plan.address, self.target.guest)

    def reserve(self, probe: Probe) -> None:
        """Reserve memory for what `probe` gathers, and lower its program for it.

        Raises Refused where there is no memory, OptprobeError that points at what native code cannot do.
        """
        site = self.registry.site_of(probe)
        if len(site.probes) > 1:
            self.optimizer.replan(site)
        with probe.handler.errors_at_source(probe.spec):
            if probe.is_return or not self.optimizer.needs_memory(probe, site.plan):
                self.lower(probe, site.plan)
            self.optimizer.reserve(probe, site.plan)

    def lower(self, probe: Probe, plan: Plan) -> None:
        """Lower the program of `probe` where no memory is reserved for it: its address serves.

        Raises OptprobeError that points at what native code cannot do.
        """
        if probe.handler.is_plain:
            return
        with probe.handler.errors_at_source(probe.spec):
            if probe.is_return:
                kretprobe.check_code(probe.handler, plan, self.target.guest)
                return
            self._trial_code(probe.handler, plan, plan.address)

    def install(self, probes: Sequence[Probe]) -> list[Probe]:
        """Bring the sites of `probes` to their tiers; return those of globs that lack memory for the tier asked for.

        On every function, for any tier at which no hit stops the guest. At an instruction where a breakpoint may miss
        hits, for any other.
        Raises Refused where one that is no glob's lacks it.
        """
        self.settle(probes)
        return [probe for probe in probes if self._lacks_memory(probe)]

    def _lacks_memory(self, probe: Probe) -> bool:
        plan = self.registry.site_of(probe).plan
        if probe.spec.is_whole_kernel and plan.tier.stops:
            return plan.reason is not None and plan.reason.code in NO_MEMORY
        try:
            if plan.reason is not None and plan.why_not(plan.tier) is not None:
                raise Refused(plan.reason)
            self.check_tier(plan, probe.spec)
        except Refused as refused:
            # A probe that shares the site may ask for a lower tier, which is that of both meanwhile.
            if refused.reason.code not in NO_MEMORY:
                return False
            if not probe.spec.glob:
                raise
            return True
        return False

    def settle(self, probes: Sequence[Probe]) -> None:
        """Bring the sites of those of `probes` that are in the kernel to their tiers. Raises OptprobeError."""
        self.optimizer.settle(self.registry.sites(probes))

    def is_left(self, probe: Probe) -> bool:
        """Return whether its branch was changed by others and so stays in the guest."""
        return probe.is_in_kernel and self.registry.site_of(probe).is_lost

    def missed(self, probe: Probe) -> int:
        """Return how many calls of its function, or events, found no room, of a return probe or of a tracepoint."""
        found = [site_views.read_calls(site, probe, self.target.guest) for site in self.registry.sites([probe])]
        events = self.optimizer.tracepoints.missed(probe.address)
        return events + sum(calls.missed for calls in found if calls is not None)

    def missed_words(self, probe: Probe) -> tuple[int, ...]:
        """Return where the guest counts what `missed` tells, but for what is over."""
        found = [site.rethook for site in self.registry.sites([probe]) if probe.is_return]
        words = [table.memory.address + MISSED for rethook in found if rethook is not None for table in rethook.tables]
        return (*words, *self.optimizer.tracepoints.missed_words(probe.address))

    def needs_memory(self, spec: Spec, addresses: Sequence[int]) -> bool:
        """Return whether a probe at one of `addresses` needs memory of the guest."""
        return any(self._needs_memory_at(address, spec) for address in addresses)

    def _needs_memory_at(self, address: int, spec: Spec) -> bool:
        try:
            if spec.is_return or (spec.program is not None and spec.program.maps):
                return True
            return self.optimizer.plan(address, [spec]).tier not in (Tier.BREAKPOINT, Tier.EMULATED)
        except Refused:
            return False

    # looking ---------------------------------------------------------------------------------------------------------

    def site_view(self, probe: Probe) -> SiteView:
        """Return what a row shows of the place that `probe` is on."""
        if probe.absence is not None:
            return site_views.absent_site_view(probe, self.target)
        site = self.registry.site_of(probe)
        view = site_views.site_view(probe, site, self.target, self.optimizer.active_calls)
        return replace(view, missed=view.missed + self.optimizer.tracepoints.missed(probe.address))

    def site_code(self, probe: Probe) -> SiteCode:
        """Return what `show` lists of it. Raises OptprobeError where its text is not there."""
        if (why := probe.absence) is not None:
            raise OptprobeError(f"probe {probe.number} has no code to show: {why.text}", why.hint)
        return site_views.site_code(self.registry.site_of(probe), self.target.guest)

    def explain(self, spec: Spec, addresses: Sequence[int]) -> Iterator[ExplainView]:
        """Yield what a probe at each of `addresses` would be, asking what `add` asks; the guest is as it was.

        A Refused is the answer. Raises any other OptprobeError as `add` does.
        """
        if not addresses:
            why = self.target.modules.waits(spec.location, "")
            yield site_views.unprobeable_view(0, why, self.target.guest)
        errors: list[OptprobeError] = []
        maps = self.share(spec, len(addresses))
        views = [self._explain_at(address, spec, errors, maps) for address in addresses]
        if errors and not any(view.tier for view in views):
            raise errors[0]
        yield from views

    def _explain_at(
        self, address: int, spec: Spec, errors: list[OptprobeError], maps: SharedMaps | None
    ) -> ExplainView:
        """Return what a probe at `address` would be. errors: gets why a glob leaves it out."""
        try:
            plan = self.plan_at(address, replace(spec, glob=False))
            assert plan is not None, "no glob leaves anything out"
            settings = self.settings()
            handler = self._take_or_leave_out(spec, plan, settings, maps)
            if isinstance(handler, LeftOut):
                errors.append(handler.error)
                return site_views.left_out_view(handler.address, handler.error, self.target.guest)
            probe = Probe(0, spec, plan.address, handler, sizes_of(settings))
            self.lower(probe, plan)
            plan = replace(self._plan_with_memory(plan, probe), moved=plan.moved)
        except Refused as refused:
            return site_views.unprobeable_view(address, refused.reason, self.target.guest)
        notes = (site_views.plan_note(plan, self.target.guest), handler.note, self._loan_note(probe))
        cost = self._cost(plan, probe)
        return explain_view(plan, self.target.guest.symbol, spec, cost, "; ".join(filter(None, notes)))

    def _loan_note(self, probe: Probe) -> str:
        """Return that the kernel would lend data for `probe`; "" where there are enough."""
        try:
            needed = 0 if probe.handler.is_plain else probe.handler.size
            return LENT if needed > self.optimizer.find_arena().data.largest else ""
        except Refused:
            return ""

    def _cost(self, plan: Plan, probe: Probe) -> tuple[int, int]:
        """Return what a hit would add, alone in its detour, most and least; 0 where it is not known beforehand."""
        guest, isa, handler = self.target.guest, self.target.guest.isa, probe.handler
        if plan.tier.stops:
            return 0, 0
        if handler.is_plain and not probe.is_return:
            return (count := site_views.count_cost(plan, guest)), count
        try:
            arena, costs = self.optimizer.find_arena(), Costs(0, 0, 0)
            with handler.errors_at_source(probe.spec):
                if probe.is_return:
                    rethook = Rethook.tried(probe, plan, guest, arena)
                    code, costs = rethook.entry_code(plan.dead, guest), rethook.costs
                else:
                    memory = arena.check_room(handler.size, plan.address, isa.data_reach)
                    code = self._trial_code(handler, plan, memory)
            detour = trial(plan.head, lambda at: build_detour(plan, isa, at, {plan.address: code}), guest, arena)
        except Refused:  # until garbage is collected, no place is known
            return 0, 0
        return costs.of_call(*site_views.hit_cost(plan, detour, guest))

    def _trial_code(self, handler: Handler, plan: Plan, memory: int) -> Code:
        """Return the program of `handler` with all that it calls at the probed address. Raises NotLowered."""
        at = plan.address
        readers = None if isinstance(handler.unmapped, Missing) else ProbeReadRoutines(at, at)
        return handler.code(self.target.guest.isa, plan, plan.dead, memory, readers, StopPad(Slot(at, 0), b""))

    def _plan_with_memory(self, plan: Plan, probe: Probe) -> Plan:
        """Return `plan` as it is possible beside the probes that are there and in free memory. Raises Refused."""
        site, spec = self.registry.site(plan.address), probe.spec
        specs = [*site.specs, spec] if site is not None else [spec]
        if len(specs) > 1:
            plan = self.optimizer.plan(plan.address, specs)
        if self.optimizer.needs_memory(probe, plan):
            with self.optimizer.suggesting_sizes(probe):
                self._check_data(probe)
        try:
            self._check_code(plan)
        except Refused as refused:
            plan = self.optimizer.plan_without_detour(plan.address, specs, refused.reason)
        if spec.tier:
            why = plan.why_not(Tier(spec.tier))
            if why is not None and why.code in NO_MEMORY:
                self.check_tier(plan, spec)
        return plan

    def _check_data(self, probe: Probe) -> None:
        """Raises Refused where there is no memory for what `probe` gathers."""
        arena, reach = self.optimizer.find_arena(), self.target.guest.isa.data_reach
        _unless_full(arena, lambda: arena.check_room(probe.handler.size, probe.address, reach))
        if probe.is_return and self.registry.site(probe.address) is None:
            kernel_rethooks.check_memory(probe, self.target.guest, arena)

    def _check_code(self, plan: Plan) -> None:
        """Raises Refused where there is no memory for a detour of `plan`."""
        if plan.tier in (Tier.BREAKPOINT, Tier.EMULATED):
            return
        arena, isa = self.optimizer.find_arena(), self.target.guest.isa

        def lay_out(at: int) -> Detour:
            if plan.tier is Tier.BOOSTED:
                return build_detour(plan, isa, at)
            return build_count(plan, isa, at, at + site_views.COUNTER_DISTANCE)

        _unless_full(arena, lambda: InstalledDetour.check_memory(plan.head, lay_out, self.target.guest, arena))


def stops_unasked(spec: Spec, plan: Plan, handler: Handler) -> bool:
    """Return whether each hit would stop the guest without being asked to: a glob leaves such a function out."""
    if spec.tier or handler.stops or not plan.tier.stops:
        return False
    return plan.reason is None or plan.reason.code not in _KEPT_IN_GLOBS


def _unless_full(arena: Arena, check: Callable[[], object]) -> None:
    """Raise Refused as `check` does; but not where the arena is full of garbage that can be collected."""
    try:
        check()
    except Refused as refused:
        if refused.reason.code != Refusal.ARENA_FULL.code or not (arena.dirty() or arena.data.dirty):
            raise
