"""One probed address: the probes there, and how the guest is made to run them.

    Probe 1 ─┐
    Probe 4 ─┼─► Site ──► a stop point (breakpoint, boosted, emulated)
    Probe 9 ─┘       └──► a branch to one detour that runs every probe's program, in order of creation

`arm` and `disarm` change the guest, which is stopped; whatever happens between two of their writes, the guest runs
correct code: the detour stands before the branch that leads to it, and the branch is one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours import layout, patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Detour, Program
from gdb_optprobe.detours.patch import Patch, TextChanged
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import Effects, ReadMemory
from gdb_optprobe.objects.counter import SIZE as COUNTER_SIZE
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.stops import Hit, Move, StopPoint
from gdb_optprobe.probes.target import Target

# More than any program of counts with its displaced instructions needs before it is laid out for good.
FIRST_GUESS = 256


@dataclass
class Site:
    """All probes at one address.

    plan:   how it is to be probed (the best that is safe).
    placed: the plan that is carried out in the guest now; None while nothing is there.
    detour: the code in the guest, while optimized or boosted.
    patch:  the branch in the guest, while optimized.
    pinned: it stays a stop point for now, because somebody steps through it.
    waits:  who is inside the bytes that the branch would cover; "" when nobody stands in the way.
    """

    address: int
    plan: Plan
    probes: list[Probe] = field(default_factory=list)
    placed: Plan | None = None
    detour: Detour | None = None
    patch: Patch | None = None
    waits: str = ""
    pinned: bool = False
    gone: bool = False
    stops_before: int = 0
    _slot: Slot | None = None
    _points: list[StopPoint] = field(default_factory=list)
    _after: set[int] = field(default_factory=set)
    _served: tuple[int, ...] = ()
    _hit_last: tuple[Probe, ...] = ()

    @property
    def tier(self) -> Tier | None:
        """The tier that is carried out now; None while nothing is in the guest."""
        return self.placed.tier if self.placed is not None else None

    @property
    def stale(self) -> bool:
        """Whether other probes are enabled now than what is in the guest serves."""
        return self._served != self._serves()

    @property
    def enabled(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.enabled]

    @property
    def stops(self) -> int:
        """How often the guest was stopped here."""
        return self.stops_before + sum(point.moved + 2 * point.stepped for point in self._points)

    # into the guest ----------------------------------------------------------------------------------------------

    def optimize(self, plan: Plan, target: Target, arena: Arena) -> None:
        """Branch to a detour. Raises Refused or TextChanged with the guest as it was."""
        self._allocate_counters(target, arena)
        self._place_detour(plan, target, arena, lambda at: self._count(plan, target, at))
        assert self.detour is not None
        # What stands there must be what was planned for: the guest may have run since.
        planned = b"".join(insn.data for insn in plan.displaced)[: plan.patch_size]
        planned += target.isa.breakpoint * (plan.patch_size - len(planned))
        change = Patch(self.address, planned, target.isa.branch(self.address, self.detour.address))
        try:
            patch.apply([change], target.machine)
        except OptprobeError:
            self._drop_slot(target, arena, reached=False)
            raise
        self.patch = change
        # Who stands here with its hit counted counts it again, in the detour.
        again = target.stops.take_back(self.address)
        for probe in self._hit_last:
            probe.seen -= again
        self._note_placed(plan)

    def stop_at(self, plan: Plan, target: Target, arena: Arena | None) -> None:
        """Set a stop point that runs the probes in `plan.tier`. Raises Refused (no memory for a boosted copy)."""
        if plan.tier is Tier.BOOSTED:
            assert arena is not None
            self._place_detour(plan, target, arena, None)
        self._points.append(self._stop_point(plan, target))
        if self._needs_successor(plan, target):
            self._points.append(target.stops.set(plan.insn.end, self._after_hit))
        self._note_placed(plan)
        target.stops.arrived(self.address)

    def _stop_point(self, plan: Plan, target: Target) -> StopPoint:
        restarts = target.isa.restarts(plan.insn)
        return target.stops.set(self.address, lambda hit: self._hit(plan, target, hit), restarts)

    def disarm(self, target: Target, arena: Arena | None) -> None:
        """Take everything out of the guest but counters. Raises TextChanged; then the branch is left as it is."""
        if self.patch is not None:
            patch.revert([self.patch], target.machine)
            self.patch = None
        for point in self._points:
            self.stops_before += point.moved + 2 * point.stepped
            point.remove()
        self._points.clear()
        self._after.clear()
        self._drop_slot(target, arena, reached=True)
        self.placed = None

    def abandon(self) -> None:
        """The guest that held all this is gone: forget it without touching its memory."""
        for point in self._points:
            point.remove()
        self._points.clear()
        self.patch = self.detour = self._slot = self.placed = None
        self.gone = True

    def _serves(self) -> tuple[int, ...]:
        return tuple(probe.number for probe in self.enabled)

    def _note_placed(self, plan: Plan) -> None:
        self.placed = plan
        self._served = self._serves()

    # the detour --------------------------------------------------------------------------------------------------

    def _allocate_counters(self, target: Target, arena: Arena) -> None:
        for probe in self.enabled:
            if probe.counter is None:
                probe.counter = arena.allocate_data(COUNTER_SIZE, self.address, target.isa.branch_reach)
                target.machine.write(probe.counter.address, bytes(COUNTER_SIZE))

    def _count(self, plan: Plan, target: Target, at: int) -> bytes:
        """Every enabled probe's program, one behind the other."""
        code = b""
        for probe in self.enabled:
            assert probe.counter is not None
            code += target.isa.count(probe.counter.address, at + len(code), plan.dead)
        return code

    def _place_detour(self, plan: Plan, target: Target, arena: Arena, program: Program | None) -> None:
        """Lay the detour out, take a slot of its size and write it there."""
        reach = target.isa.branch_reach
        trial = arena.allocate_code(FIRST_GUESS, self.address, reach)
        size = layout.build(plan, target.isa, trial.address, program).size
        arena.code.give_back(trial)
        while True:
            slot = arena.allocate_code(size, self.address, reach)
            detour = layout.build(plan, target.isa, slot.address, program)
            try:
                change = arena.place(slot, detour.data, target.machine, target.isa.breakpoint)
                break
            except TextChanged:
                # Somebody left something there; the arena has struck that piece off, and the next one may be free.
                continue
        patch.apply([change], target.machine)
        self._slot, self.detour = slot, detour

    def _drop_slot(self, target: Target, arena: Arena | None, reached: bool) -> None:
        """Give the slot up; one that a vCPU may have reached is dirty until it is proven empty."""
        slot, self._slot, self.detour = self._slot, None, None
        if slot is None or arena is None:
            return
        if reached:
            arena.code.release(slot)
        else:
            arena.wipe(slot, target.machine)
            arena.code.give_back(slot)

    # a hit that stops the guest ------------------------------------------------------------------------------------

    def _hit(self, plan: Plan, target: Target, hit: Hit) -> Move | None:
        probes = self.enabled
        self._hit_last = tuple(probes)
        for probe in probes:
            probe.seen += 1
            if probe.spec.pre_handler is not None:
                probe.spec.pre_handler(hit)
        if any(probe.spec.post_handler is not None for probe in probes):
            return self._hit_with_post_handler(plan, target, hit, probes)
        if plan.tier is Tier.EMULATED:
            return _move(_effects(plan, target, hit))
        if plan.tier is Tier.BOOSTED and self.detour is not None:
            return Move({target.isa.pc: self.detour.address})
        return None

    def _hit_with_post_handler(
        self, plan: Plan, target: Target, hit: Hit, probes: Sequence[Probe]
    ) -> Move | None:
        effects = _effects(plan, target, hit)
        if effects is None:
            self._after.add(hit.vcpu)
            return None
        after = Hit(self.address, hit.vcpu, {**_known(target, hit), **effects.registers}, _reader(hit, effects))
        _run_post_handlers(probes, after)
        hit.wants_stop |= after.wants_stop
        return _move(effects) if plan.tier is Tier.EMULATED else None

    def _after_hit(self, hit: Hit) -> Move | None:
        """The vCPU has executed the probed instruction and stands behind it."""
        if hit.vcpu in self._after:
            self._after.discard(hit.vcpu)
            _run_post_handlers(self.enabled, hit)
        return None

    def _needs_successor(self, plan: Plan, target: Target) -> bool:
        """A post_handler of an instruction that is not emulated runs when the vCPU arrives behind it."""
        if not any(probe.spec.post_handler for probe in self.enabled):
            return False
        some = dict.fromkeys(target.isa.registers, 0)
        return target.isa.emulate(plan.insn, some, lambda _, size: bytes(size)) is None


def _effects(plan: Plan, target: Target, hit: Hit) -> Effects | None:
    return target.isa.emulate(plan.insn, _known(target, hit), hit.read)


def _known(target: Target, hit: Hit) -> Mapping[str, int]:
    return {name: hit.regs[name] for name in target.isa.registers}


def _move(effects: Effects | None) -> Move | None:
    return Move(effects.registers, effects.writes) if effects is not None else None


def _run_post_handlers(probes: Sequence[Probe], hit: Hit) -> None:
    for probe in probes:
        if probe.spec.post_handler is not None:
            probe.spec.post_handler(hit)


def _reader(hit: Hit, effects: Effects) -> ReadMemory:
    """Memory as it will be once `effects` are written."""

    def read(address: int, size: int) -> bytes:
        data = bytearray(hit.read(address, size))
        for start, new in effects.writes:
            for offset, byte in enumerate(new):
                if address <= start + offset < address + size:
                    data[start + offset - address] = byte
        return bytes(data)

    return read
