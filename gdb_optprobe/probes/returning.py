"""The return probes of one function: its calls that are under way, and the trampoline that they return to.

    entry of the function ── detour: the entry's code ──► a slot of the table, return address := trampoline
    return ── trampoline: programs of the return probes, in order of creation ──► where the call returns to
Where the set of programs changes, calls from then on get a trampoline of their own; the old one is left like a detour,
whose code nobody frees while a stack has an address in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.handlers import lowering_returns
from gdb_optprobe.handlers.lowering_returns import Code, Table, Trampoline
from gdb_optprobe.isa import returns
from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.emitter import Before
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.isa.returning import Returning
from gdb_optprobe.objects.instances import WORD, Instance, Instances, InstancesLayout, changes
from gdb_optprobe.probes.placed import Placed
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.stops import Hit
from gdb_optprobe.probes.target import Target


@dataclass(frozen=True, slots=True)
class Costs:
    """Instructions. rare: of the entry's code, where another call has taken its slot. trampoline: without the same.

    least: of the trampoline, where conditions are false.
    """

    rare: int
    trampoline: int
    least: int


@dataclass
class ReturnPoint:
    """memory: of the table. trampoline: of the calls that are entered now. serves: numbers of the probes it runs.

    left: trampolines that calls from before may return to, by address.
    """

    address: int
    layout: InstancesLayout
    memory: Slot
    trampoline: Placed | None = None
    serves: tuple[int, ...] = ()
    left: dict[int, Detour] = field(default_factory=dict)
    costs: Costs = field(default_factory=lambda: Costs(0, 0, 0))
    _ours: tuple[int, int] = (0, 0)
    _entered: Instance | None = None
    _had_room: bool = False

    @classmethod
    def made(cls, address: int, target: Target, arena: Arena) -> ReturnPoint:
        """For the function that is entered at `address`. Raises Refused where there is no memory."""
        layout = InstancesLayout()
        memory = arena.allocate_data(layout.size, address, target.isa.data_reach)
        target.machine.write(memory.address, layout.initial())
        return cls(address, layout, memory)

    @property
    def table(self) -> Table:
        return Table(self.layout, self.memory.address)

    def is_ours(self, address: int) -> bool:
        """Whether it is in our code memory: as a return address a trampoline's, of this function or of another."""
        return self._ours[0] <= address < self._ours[1]

    def at(self, pc: int) -> Detour | None:
        """The trampoline that `pc` is in."""
        now = (self.trampoline.detour,) if self.trampoline is not None else ()
        return next((one for one in (*now, *self.left.values()) if one.address <= pc < one.end), None)

    def starts(self, pc: int) -> bool:
        """Whether a trampoline begins at `pc`: what calls have as return address."""
        return (found := self.at(pc)) is not None and found.address == pc

    def instances(self, target: Target) -> Instances:
        """What the table in the guest holds now."""
        return self.layout.decode(self._read(target))

    # code ----------------------------------------------------------------------------------------------------------

    def serve(self, probes: Sequence[Probe], plan: Plan, target: Target, arena: Arena) -> None:
        """Have a trampoline that runs the programs of `probes`, whose memory is reserved. Raises Refused."""
        wanted = tuple(probe.number for probe in probes)
        if self.trampoline is not None and self.serves == wanted:
            return
        made, programs = self._code(probes, plan, target)
        code = made.code(programs)
        new = Placed.near(self.address, lambda at: Detour(at, code(at), self.address, ()), target, arena)
        self.retire(target, arena)
        self.trampoline, self.serves = new, wanted
        self._ours = _within(new.detour.address, arena)
        self.costs = self._costs(made, new.detour, target)

    def retire(self, target: Target, arena: Arena) -> None:
        """Nobody gets the trampoline as return address any more; calls may still return to it."""
        if self.trampoline is not None:
            self.trampoline.give_up(target, arena, reached=True)
            self.left[self.trampoline.slot.address] = self.trampoline.detour
        self.trampoline, self.serves = None, ()

    def entry(self, dead: Dead, target: Target) -> Code:
        """What runs at the function's entry. dead: before it."""
        assert self.trampoline is not None
        at = self.trampoline.detour.address
        return lowering_returns.entry(self.table, at, self._ours, Before(dead), _of(target))

    def _costs(self, made: Trampoline, trampoline: Detour, target: Target) -> Costs:
        def insns(code: bytes, at: int) -> list[Insn]:
            return target.isa.decode(code, at)

        at = trampoline.address
        all_of, begin = insns(trampoline.data, at), insns(made.begin(at), at)
        entry = insns(self.entry(target.isa.dead_at_entry(), target)(at), at)
        to_return = all_of[:-1]
        return Costs(
            len(entry) - shortest(entry), len(all_of) - len(begin) + shortest(begin), shortest(to_return) + 1
        )

    def _code(self, probes: Sequence[Probe], plan: Plan, target: Target) -> tuple[Trampoline, Sequence[Code]]:
        read = frozenset(name for probe in probes for name in probe.handler.program.registers)
        before = Before(target.isa.dead_at_return(), read, base=plan.base)
        made = lowering_returns.trampoline(self.table, before, _of(target))
        plan = replace(plan, dead=made.dead)
        return made, [
            probe.handler.code(target.isa, plan, made.dead, probe.counter.address, probe.readers)
            for probe in probes
            if probe.counter is not None
        ]

    # an entry that stops the guest -----------------------------------------------------------------------------------

    def enter(self, hit: Hit, target: Target) -> None:
        """A vCPU stands at the entry: what the entry's code does.

        Where the return address is in a register, the call is missed: with registers changed, what GDB does next would
        be another hit.
        """
        assert self.trampoline is not None
        isa, before = _of(target), self._read(target)
        key = isa.key_of(hit.regs[target.isa.sp])
        at = isa.shown_at(key)
        back = int.from_bytes(hit.read(at, WORD), "little")
        new, after, room = Instance(key, back), self.layout.missed(before), False
        if isa.on_stack:
            after, room = self.layout.entered(before, new, self.is_ours(back))
        self._write(before, after, target)
        if room:
            target.machine.write(at, self.trampoline.detour.address.to_bytes(WORD, "little"))
        self._entered, self._had_room = new, room

    def take_back(self, target: Target) -> None:
        """The last entry is going to be made once more."""
        new, self._entered = self._entered, None
        if new is None:
            return
        before = self._read(target)
        if not self._had_room:
            self._write(before, self.layout.missed(before, -1), target)
            return
        self._write(before, self.layout.left(before, new.key), target)
        target.machine.write(_of(target).shown_at(new.key), new.back.to_bytes(WORD, "little"))

    def _write(self, before: bytes, after: bytes, target: Target) -> None:
        for offset, word in changes(before, after):
            target.machine.write(self.memory.address + offset, word)

    def _read(self, target: Target) -> bytes:
        return target.machine.read(self.memory.address, self.layout.size)


def key_after(sp: int, target: Target) -> int:
    """The key of a call that has returned, by what the stack pointer is then."""
    return _of(target).key_after(sp)


def shown_at(key: int, target: Target) -> int | None:
    """Where the stack shows the return address of a call; None while its key is not known yet."""
    return _of(target).shown_at(key) if key > 1 else None


def _within(at: int, arena: Arena) -> tuple[int, int]:
    """The range of code memory that `at` is in."""
    return next((start, end) for start, end in arena.ranges.code if start <= at < end)


def _of(target: Target) -> Returning:
    found = returns.of(target.isa.name)
    assert found is not None, "no return probe was added"
    return found
