"""One probed address: the probes there, and how the guest is made to run them.

    Probe 1 ─┐
    Probe 4 ─┼─► Site ──► a stop point (breakpoint, boosted, emulated)
    Probe 9 ─┘       └──► a branch (branch.py), its own or that of an instruction before
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour, build_detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.isa.base import Effects, ReadMemory
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import Hit, Move, StopPoint
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import DetourView


class SiteState(Enum):
    """What is in the guest for a site.

    nothing ◄──► breakpoint      a stop point: breakpoint, boosted or emulated
        ▲            ▲
        └──► detour ◄┘           hits run in the guest: a branch or a trap leads to the programs
               └──► lost         the text was changed by the guest, or is gone: nothing there is the site's any more
    """

    NOTHING = "nothing"
    BREAKPOINT = "breakpoint"
    DETOUR = "detour"
    LOST = "lost"


@dataclass
class Site:
    """All probes at one address.

    plan:   how it is to be probed (the best that is safe).
    state, installed_plan: what is in the guest now, and the plan that it carries out; None while nothing is there.
    branch: what leads to the programs, while optimized.
    rethook: of its return probes, once there was one. next_rethook: what replaces it.
    pinned: it stays a stop point for now, because the user steps through it.
    is_text_there: whether the text here is still what was probed; a module may be gone whenever the guest has run.
    blocked_by: the threads inside the bytes that the branch would cover, in words; "" where there are none.
    detour_views: what a hit costs, by probe number, each with what it was found for (site_views).
    """

    address: int
    plan: Plan
    probes: list[Probe] = field(default_factory=list)
    state: SiteState = SiteState.NOTHING
    installed_plan: Plan | None = None
    branch: Branch | None = None
    rethook: Rethook | None = None
    next_rethook: Rethook | None = None
    is_text_there: Callable[[], bool] = lambda: True
    blocked_by: str = ""
    pinned: bool = False
    stops_before: int = 0
    detour_views: dict[int, tuple[tuple[object, ...], DetourView]] = field(default_factory=dict)
    _copy: InstalledDetour | None = None
    _breakpoints: list[StopPoint] = field(default_factory=list)
    _post_handlers: dict[int, tuple[Probe, ...]] = field(default_factory=dict)
    _installed_numbers: tuple[int, ...] = ()
    _last_hit: tuple[Probe, ...] = ()

    @property
    def tier(self) -> Tier | None:
        """The tier that is carried out now; None while nothing is in the guest."""
        return self.installed_plan.tier if self.installed_plan is not None else None

    @property
    def detour(self) -> Detour | None:
        """The code in the guest that replaces the probed instruction, while optimized or boosted."""
        if self.branch is not None:
            return self.branch.detour
        return self._copy.detour if self._copy is not None else None

    @property
    def patch(self) -> Patch | None:
        """The installed branch, if it is at this address."""
        return self.branch.patch if self.branch is not None and self.branch.plan.head == self.address else None

    @property
    def is_lost(self) -> bool:
        return self.state is SiteState.LOST

    @property
    def is_stale(self) -> bool:
        """Whether other probes are enabled now than what is in the guest serves."""
        return self._installed_numbers != self._probe_numbers()

    @property
    def enabled(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.enabled]

    @property
    def return_probes(self) -> list[Probe]:
        """The enabled return probes."""
        return [probe for probe in self.enabled if probe.is_return]

    @property
    def specs(self) -> list[Spec]:
        """What the enabled probes here want."""
        return [probe.spec for probe in self.enabled]

    @property
    def stops(self) -> int:
        """How often the guest was stopped here."""
        others = [point for probe in self.probes for point in probe.breakpoints]
        returned = self.rethook.stops if self.rethook is not None else 0
        return self.stops_before + returned + sum(
            point.moved + 2 * point.stepped for point in (*self._breakpoints, *others)
        )

    @property
    def latest_rethook(self) -> Rethook | None:
        """Of its return probes, for calls from now on."""
        return self.next_rethook or self.rethook

    def resume_address(self) -> int | None:
        """Return where a vCPU stopped here, its hit run, continues while the text may hold a branch; None: here."""
        if self.branch is None or self.address in self.branch.staying:  # there are no bytes of a branch there
            return None
        return self.branch.detour.after_program(self.address)

    # into the guest ----------------------------------------------------------------------------------------------

    def attach_branch(self, branch: Branch, target: Target) -> None:
        """Record that `branch` leads to this site's programs."""
        self.branch = branch
        # A vCPU that is stopped here with its hit counted counts it again, in the detour, if the branch is here.
        if self.plan.stays is None and target.stops.take_back(self.address):
            for probe in self._last_hit:
                if probe.enabled:
                    probe.undo_hit()
            if self.rethook is not None:
                self.rethook.undo_entry(target.guest)
        self._set_installed(SiteState.DETOUR, self.plan)

    def adopt_branch(self, branch: Branch) -> None:
        """Record that `branch` leads to this site's programs already: it was that of a block until now."""
        self.branch = branch
        self._set_installed(SiteState.DETOUR, self.plan)

    def detach_branch(self) -> None:
        """Record that the branch is gone."""
        self.branch = None
        self._set_removed()

    def install_breakpoint(self, plan: Plan, target: Target, arena: Arena | None) -> None:
        """Set a stop point that runs the probes in `plan.tier`. Raises Refused (no memory for a boosted copy)."""
        if plan.tier is Tier.BOOSTED:
            assert arena is not None
            self._copy = InstalledDetour.install(
                self.address, lambda at: build_detour(plan, target.guest.isa, at), target.guest, arena
            )
        self.install_trampoline(target, arena)
        self._breakpoints.append(self._stop_point(plan, target))
        if self._needs_successor(plan, target.guest):
            self._breakpoints.append(target.stops.set(plan.insn.end, self._after_hit))
        self._set_installed(SiteState.BREAKPOINT, plan)
        target.stops.arrived(self.address)

    def install_trampoline(self, target: Target, arena: Arena | None) -> None:
        """Have a trampoline for calls that are entered from now on, where there are return probes. Raises Refused."""
        if arena is None or not (probes := self.return_probes):
            return
        point = self.latest_rethook
        if point is None:  # it was one of a block, and when it left there was no room
            raise Refused(Refusal.ARENA_FULL.because(used=arena.data.used, size=arena.data.size))
        for probe in probes:
            assert probe.counter is not None, "it was reserved with the point"
        point.install_trampoline(probes, self.plan, target, arena)
        if self.next_rethook is not None:
            if self.rethook is not None:
                self.rethook.close(target.guest, arena)
                point.older.append(self.rethook)
            self.rethook, self.next_rethook = self.next_rethook, None

    def _stop_point(self, plan: Plan, target: Target) -> StopPoint:
        restarts = target.guest.isa.restarts(plan.insn)
        return target.stops.set(self.address, lambda hit: self._hit(plan, target.guest, hit), restarts)

    def remove_breakpoint(self, guest: Guest, arena: Arena | None) -> None:
        """Take the stop point out."""
        for point in self._breakpoints:
            self.stops_before += point.moved + 2 * point.stepped
            point.remove()
        self._breakpoints.clear()
        self._post_handlers.clear()
        copy, self._copy = self._copy, None
        if copy is not None and arena is not None:
            copy.release(guest, arena, reached=True)
        self._set_removed()

    def abandon(self) -> None:
        """Forget what was in the guest without touching it: it is not ours any more, or the guest is gone."""
        for point in self._breakpoints:
            point.remove()
        self._breakpoints.clear()
        for probe in self.probes:
            probe.remove_breakpoints()
        self.branch = self._copy = self.installed_plan = None
        self.rethook = self.next_rethook = None
        self.state = SiteState.LOST

    def _probe_numbers(self) -> tuple[int, ...]:
        return tuple(probe.number for probe in self.enabled)

    def _set_installed(self, state: SiteState, plan: Plan) -> None:
        self.state, self.installed_plan = state, plan
        self._installed_numbers = self._probe_numbers()

    def _set_removed(self) -> None:
        self.installed_plan = None
        if self.state is not SiteState.LOST:
            self.state = SiteState.NOTHING

    # a hit that stops the guest ------------------------------------------------------------------------------------

    def _hit(self, plan: Plan, guest: Guest, hit: Hit) -> Move | None:
        if not (self.is_text_there() and self._holds_hit_code(plan, guest)):
            return None
        self._last_hit = tuple(self.enabled)
        held = []
        for probe in self._last_hit:
            if not probe.is_return and self._run(probe, hit):
                held.append(probe)
                if probe.spec.pre_handler is not None:
                    probe.spec.pre_handler(hit)
        self._run_entry(hit, guest)
        if any(probe.spec.post_handler is not None for probe in held):
            return self._hit_with_post_handler(plan, guest, hit, held)
        if plan.tier is Tier.EMULATED:
            return _move(_effects(plan, guest, hit))
        if plan.tier is Tier.BOOSTED and self._copy is not None:
            return Move({guest.isa.pc: self._copy.detour.address})
        return None

    def _holds_hit_code(self, plan: Plan, guest: Guest) -> bool:
        """Return whether the guest holds the code that this hit uses; not where it was reset or restored meanwhile."""
        used = [(plan.insn.address, plan.insn.data)] if plan.tier is Tier.EMULATED else []
        detours = [] if self._copy is None else [self._copy.detour]
        if self.rethook is not None and self.rethook.trampoline is not None:
            detours.append(self.rethook.trampoline.detour)
        used += [(detour.address, detour.data) for detour in detours]
        try:
            return all(guest.machine.read(at, len(data)) == data for at, data in used)
        except Unreadable:
            return False

    def _run_entry(self, hit: Hit, guest: Guest) -> None:
        if self.rethook is not None and self.return_probes:
            self.rethook.run_entry(hit, guest)

    def run_stopped(self, by: Probe, hit: Hit, guest: Guest) -> None:
        """Run the programs behind that of `by`, which has stopped the vCPU here, so that this is one stop."""
        hit.probe = by.number
        hit.stop()
        for probe in self.enabled:
            if probe.number > by.number and not probe.is_return:
                self._run(probe, hit)
        self._run_entry(hit, guest)

    def _run(self, probe: Probe, hit: Hit) -> bool:
        """Interpret what a hit does; whether its condition held."""
        hit.probe = probe.number
        outcome = probe.handler.run(hit)
        probe.add_hit(outcome, hit.vcpu)
        if outcome.stops:
            hit.stop()
        return outcome.held

    def _hit_with_post_handler(
        self, plan: Plan, guest: Guest, hit: Hit, probes: Sequence[Probe]
    ) -> Move | None:
        effects = _effects(plan, guest, hit)
        if effects is None:
            self._post_handlers[hit.vcpu] = tuple(probes)
            return None
        registers = {**_known(guest, hit), **effects.registers}
        after = Hit(self.address, hit.vcpu, registers, _reader(hit, effects), hit.write)
        _run_post_handlers(probes, after)
        hit.stopped_by += after.stopped_by
        return _move(effects) if plan.tier is Tier.EMULATED else None

    def _after_hit(self, hit: Hit) -> Move | None:
        """Handle the end of a step: the vCPU has executed the probed instruction and is stopped behind it."""
        _run_post_handlers(self._post_handlers.pop(hit.vcpu, ()), hit)
        return None

    def _needs_successor(self, plan: Plan, guest: Guest) -> bool:
        """Return whether a post_handler needs a stop behind the instruction, because it is not emulated."""
        if not any(probe.spec.post_handler for probe in self.enabled):
            return False
        some = dict.fromkeys(guest.isa.registers, 0)
        return guest.isa.emulate(plan.insn, some, lambda _, size: bytes(size)) is None


def _effects(plan: Plan, guest: Guest, hit: Hit) -> Effects | None:
    return guest.isa.emulate(plan.insn, _known(guest, hit), hit.read)


def _known(guest: Guest, hit: Hit) -> Mapping[str, int]:
    return {name: hit.regs[name] for name in guest.isa.registers}


def _move(effects: Effects | None) -> Move | None:
    return Move(effects.registers, effects.writes) if effects is not None else None


def _run_post_handlers(probes: Sequence[Probe], hit: Hit) -> None:
    for probe in probes:
        if probe.spec.post_handler is not None:
            hit.probe = probe.number
            probe.spec.post_handler(hit)


def _reader(hit: Hit, effects: Effects) -> ReadMemory:
    """Return a reader of memory as it will be once `effects` are written."""

    def read(address: int, size: int) -> bytes:
        data = bytearray(hit.read(address, size))
        for start, new in effects.writes:
            for offset, byte in enumerate(new):
                if address <= start + offset < address + size:
                    data[start + offset - address] = byte
        return bytes(data)

    return read
