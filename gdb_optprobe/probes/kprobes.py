"""Probes on the kernel, kprobes and kretprobes: planned, their memory reserved, installed.

    Spec ──plan──► Plan, Handler, a registered Probe ──reserve──► its memory, its program lowered ──install──► the guest

user/uprobes.py has the same verbs for probes on programs. A plan and a lowered program hold until the guest runs or
what they were made for changes (Optimizer.plan, Handler.code), so that `install` makes neither again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import NO_MEMORY, Reason, Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import WORD
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.probes import kretprobe, site_views
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Spec


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A function among a glob's for which the handler does not compile."""

    address: int
    error: OptprobeError


@dataclass
class Kprobes:
    """What a session does to probes on its guest's kernel."""

    guest: Guest
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]

    def plan(self, spec: Spec, addresses: Sequence[int]) -> tuple[list[Probe], list[LeftOut]]:
        """Plan and compile a probe at each of `addresses`; return them, registered. The guest is as it was.

        Of a glob's addresses, those that cannot be probed are left out; those are returned for which the handler does
        not compile. Raises OptprobeError with none registered.
        """
        found = [self.plan_at(address, spec) for address in addresses]
        plans, settings = [plan for plan in found if plan is not None], self.settings()
        handlers = [(plan, self.compile_or_leave_out(spec, plan, settings)) for plan in plans]
        probes: list[Probe] = []
        left_out: list[LeftOut] = []
        for plan, handler in handlers:
            if isinstance(handler, LeftOut):
                left_out.append(handler)
                continue
            probe = Probe(self.registry.next_number(), spec, plan.address, handler, sizes_of(settings))
            self.registry.add(probe, self.registry.site(plan.address) or Site(plan.address, plan))
            probes.append(probe)
        return probes, left_out

    def plan_at(self, address: int, spec: Spec) -> Plan | None:
        """Return the plan for a probe of `address`; None where it is one of a glob's that cannot be probed.

        A function at the entry of which the guest's own tracer is in use is probed at the next instruction, which runs
        as often. Raises Refused.
        """
        try:
            plan = self.optimizer.plan(address, [spec])
            self.check_tier(plan, spec)
            if spec.is_return:
                kretprobe.check_function(plan.address, self.guest)
        except Refused:
            if spec.glob:
                return None
            raise
        refused = plan.why_not(Tier.OPTIMIZED)
        if refused is None or refused.code != Refusal.FTRACE_IN_USE.code or spec.location.startswith("*"):
            return plan
        behind = self.optimizer.plan(plan.insn.end, [spec])
        return replace(behind, moved=refused) if behind.tier is Tier.OPTIMIZED else plan

    def check_tier(self, plan: Plan, spec: Spec) -> None:
        """Raise Refused where `-tier` asks for a tier that this address cannot have."""
        why = plan.why_not(Tier(spec.tier)) if spec.tier else None
        if why is not None:
            text = f"{self.guest.text.spell(plan.address)} cannot be {spec.tier}: {why.text}"
            raise Refused(Reason(why.code, text, why.hint))

    def takes(self, spec: Spec, address: int) -> bool:
        """Return whether `add` of a glob has a probe at `address`."""
        plan = self.plan_at(address, spec)
        return plan is not None and isinstance(self.compile_or_leave_out(spec, plan, self.settings()), Handler)

    def compile_or_leave_out(self, spec: Spec, plan: Plan, settings: Settings) -> Handler | LeftOut:
        """Return what a hit at `plan` does, or why a glob leaves this function out: it lacks what the handler names.

        Raises OptprobeError as `compile` does where it is no glob.
        """
        try:
            return self.compile(spec, plan, settings)
        except (Unreadable, Unreachable):
            raise
        except OptprobeError as error:
            if not spec.glob:
                raise
            return LeftOut(plan.address, error)

    def compile(self, spec: Spec, plan: Plan, settings: Settings) -> Handler:
        """Return what a hit at `plan` does. Raises OptprobeError that points at what was typed."""
        if spec.is_plain_count:
            return Handler()
        limits = ProgramLimits(text=settings.string_length, stack=settings.stack_size // WORD)
        if spec.is_return:
            program, scope, entry = kretprobe.compile_kretprobe(spec, plan.address, self.guest, limits)
        else:
            scope, entry = self.guest.names_at(plan.address), EntryProgram()
            program = compile_handler(spec.condition_part, spec.action_parts, scope.names, limits)
        bits = [number.bit_length() - 1 for number in (settings.table_keys, settings.ring_records)]
        return replace(Handler.of(program, scope.per_cpu, scope.cpu, scope.reads, *bits), entry=entry)

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
                kretprobe.check_code(probe.handler, plan, self.guest)
                return
            at, handler = plan.address, probe.handler
            readers = None if isinstance(handler.unmapped, Missing) else ProbeReadRoutines(at, at)
            handler.code(self.guest.isa, plan, plan.dead, at, readers, StopPad(Slot(at, 0), b"", at))

    def install(self, probes: Sequence[Probe]) -> list[Probe]:
        """Bring the sites of `probes` to their tiers; return those of globs that lack memory for the tier asked for.

        Raises Refused where one that is no glob's lacks it.
        """
        self.settle(probes)
        return [probe for probe in probes if self._lacks_memory(probe)]

    def _lacks_memory(self, probe: Probe) -> bool:
        try:
            self.check_tier(self.registry.site_of(probe).plan, probe.spec)
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

    def missed(self, probe: Probe) -> int:
        """Return how many calls of its function found no room, of a return probe."""
        found = [site_views.read_calls(site, probe, self.guest) for site in self.registry.sites([probe])]
        return sum(calls.missed for calls in found if calls is not None)

    def needs_memory(self, spec: Spec, addresses: Sequence[int]) -> bool:
        """Return whether a probe at one of `addresses` needs memory of the guest."""
        return any(self._needs_memory_at(address, spec) for address in addresses)

    def _needs_memory_at(self, address: int, spec: Spec) -> bool:
        try:
            return spec.is_return or self.optimizer.plan(address, [spec]).tier not in (Tier.BREAKPOINT, Tier.EMULATED)
        except Refused:
            return False
