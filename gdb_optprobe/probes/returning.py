"""The return probes of one function: its calls that are under way, and the trampoline that they return to.

    entry of the function ── detour: the entry's code ──► a slot of the table, return address := trampoline
    return ── trampoline: programs of the return probes, in order of creation ──► where the call returns to
Where the set of programs changes, calls from then on get a trampoline of their own; the old one is left like a detour,
whose code nobody frees while a stack has an address in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.handlers import interpret, lowering_returns
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.lowering_returns import Part, Table, Trampoline, Way
from gdb_optprobe.handlers.program import Clock, Expr, nodes
from gdb_optprobe.isa import returns
from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.code import Code
from gdb_optprobe.isa.emitter import Before, Readers
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.isa.returning import Returning
from gdb_optprobe.objects.instances import SAVED, WORD, Instance, Instances, InstancesLayout, changes
from gdb_optprobe.probes import returnable
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.placed import Placed
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.stops import Hit
from gdb_optprobe.probes.target import Target

SLOTS = 512
"""Of a table at first: it grows with the calls that are under way."""


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

    left:   trampolines that calls from before may return to, by address.
    closed: no call is entered here any more.
    older:  points of the same function whose tables had no room for what is kept now: their calls count here.
    before: what those counted that are gone: returns, missed, dropped.
    """

    address: int
    layout: InstancesLayout
    memory: Slot
    trampoline: Placed | None = None
    serves: tuple[int, ...] = ()
    left: dict[int, Detour] = field(default_factory=dict)
    closed: bool = False
    older: list[ReturnPoint] = field(default_factory=list)
    before: tuple[int, int, int] = (0, 0, 0)
    costs: Costs = field(default_factory=lambda: Costs(0, 0, 0))
    parts: tuple[Part, ...] = ()
    _handlers: tuple[Handler, ...] = ()
    _readers: tuple[Readers | None, ...] = ()
    _base: int | None = None
    _ours: tuple[int, int] = (0, 0)
    _entered: Instance | None = None
    _had_room: bool = False

    @classmethod
    def made(cls, address: int, layout: InstancesLayout, target: Target, arena: Arena) -> ReturnPoint:
        """For the function that is entered at `address`. Raises Refused where there is no memory."""
        memory = arena.allocate_data(layout.size, address, target.isa.data_reach)
        target.machine.write(memory.address, layout.initial())
        return cls(address, layout, memory)

    @property
    def table(self) -> Table:
        return Table(self.layout, self.memory.address)

    @classmethod
    def found(
        cls, address: int, layout: InstancesLayout, memory: Slot, left: dict[int, Detour], arena: Arena
    ) -> ReturnPoint:
        """Of an earlier session, with the trampolines that calls may return to: no call is entered here any more."""
        ours = next((_within(at, arena) for at in left), (0, 0))
        return cls(address, layout, memory, left=left, closed=True, _ours=ours)

    def is_ours(self, address: int) -> bool:
        """Whether it is in our code memory: as a return address a trampoline's, of this function or of another."""
        return self._ours[0] <= address < self._ours[1]

    def at(self, pc: int) -> Detour | None:
        """The trampoline that `pc` is in."""
        return next((one for one in self.trampolines if one.address <= pc < one.end), None)

    @property
    def trampolines(self) -> tuple[Detour, ...]:
        """All that somebody may be inside of."""
        return (*((self.trampoline.detour,) if self.trampoline is not None else ()), *self.left.values())

    @property
    def tables(self) -> Iterator[ReturnPoint]:
        """This point and those before it, whose calls count here."""
        yield self
        for point in self.older:
            yield from point.tables

    def starts(self, pc: int) -> bool:
        """Whether a trampoline begins at `pc`: what calls have as return address."""
        return (found := self.at(pc)) is not None and found.address == pc

    def instances(self, target: Target) -> Instances:
        """What the table in the guest holds now."""
        return self.layout.decode(self._read(target))

    def is_half_full(self, target: Target) -> bool:
        return 2 * len(self.instances(target).active) > self.layout.slots

    def calls(self, target: Target) -> Instances:
        """All calls since the first probe of the function, those in older tables among them."""
        tables = [self.instances(target), *(point.calls(target) for point in self.older)]
        counts = [(each.returns, each.missed, each.dropped) for each in tables]
        returns, missed, dropped = (sum(each) for each in zip(self.before, *counts, strict=True))
        return Instances(returns, missed, dropped, tuple(call for each in tables for call in each.active))

    def drop(self, keys: Collection[int], target: Target) -> None:
        """The calls with these keys never return."""
        before = self._read(target)
        self._write(before, self.layout.dropped(before, keys), target)

    def close(self, target: Target, arena: Arena) -> None:
        """The last probe is gone, or another table serves from now on. The memory is free once all calls returned."""
        self.retire(target, arena)
        arena.data.release(self.memory)
        self.closed = True

    # code ----------------------------------------------------------------------------------------------------------

    def serve(self, probes: Sequence[Probe], plan: Plan, target: Target, arena: Arena) -> None:
        """Have a trampoline that runs the programs of `probes`, whose memory is reserved. Raises Refused."""
        wanted = tuple(probe.number for probe in probes)
        if self.trampoline is not None and self.serves == wanted:
            return
        parts = parts_of(probes)
        made, programs = self._code(probes, parts, plan, target)
        code = made.code(programs, [part.area for part in parts])
        new = Placed.near(self.address, lambda at: Detour(at, code(at), self.address, ()), target, arena)
        self.retire(target, arena)
        self.trampoline, self.serves, self.parts = new, wanted, parts
        self._handlers = tuple(probe.handler for probe in probes)
        self._readers = tuple(probe.readers for probe in probes)
        self._base = plan.base
        self._ours = _within(new.detour.address, arena)
        self.costs = self._costs(made, new.detour, plan, target)

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
        handler = self._handlers[0]
        readers = next((each for each in self._readers if each is not None), None)
        before = Before(dead, per_cpu=handler.per_cpu, base=self._base, readers=readers)
        way = Way(at, self._ours, self.address, target.hidden_returns)
        return lowering_returns.entry(self.table, way, before, _of(target), self.parts)

    def _costs(self, made: Trampoline, trampoline: Detour, plan: Plan, target: Target) -> Costs:
        def insns(code: bytes, at: int) -> list[Insn]:
            return target.isa.decode(code, at)

        at = trampoline.address
        all_of, begin = insns(trampoline.data, at), insns(made.begin(at), at)
        entry = insns(self.entry(plan.dead, target)(at), at)
        to_return = all_of[:-1]
        return Costs(
            len(entry) - shortest(entry), len(all_of) - len(begin) + shortest(begin), shortest(to_return) + 1
        )

    def _code(
        self, probes: Sequence[Probe], parts: Sequence[Part], plan: Plan, target: Target
    ) -> tuple[Trampoline, Sequence[Code]]:
        slot = _of(target).slot
        handlers = [p.handler.armed(slot) if part.armed else p.handler for p, part in zip(probes, parts, strict=True)]
        read = frozenset(name for handler in handlers for name in handler.program.registers)
        before = Before(returnable.dead_at_return(self.address, target), read, base=plan.base)
        made = lowering_returns.trampoline(self.table, before, _of(target))
        plan = replace(plan, dead=made.dead)
        return made, [
            handler.code(target.isa, plan, made.dead, probe.counter.address, probe.readers, kept=made.kept)
            for probe, handler in zip(probes, handlers, strict=True)
            if probe.counter is not None
        ]

    # an entry that stops the guest -----------------------------------------------------------------------------------

    def enter(self, hit: Hit, target: Target) -> None:
        """A vCPU stands at the entry: what the entry's code does.

        A call whose time is wanted is missed: the clock runs on while GDB looks.
        """
        assert self.trampoline is not None
        isa = _of(target)
        self._entered = None
        if not self._is_wanted(hit, target):
            return
        key = isa.key_of(hit.regs[target.isa.sp])
        back = hit.regs[isa.link] if isa.link else int.from_bytes(hit.read(isa.shown_at(key), WORD), "little")
        before = self._read(target)
        new, after, room = Instance(key, back), self.layout.missed(before), False
        if not any(Clock() in nodes(node) for part in self.parts for _, node in part.kept):
            new = replace(new, saved=self._kept(hit, target))
            after, room = self.layout.entered(before, new, self.is_ours(back) or back in target.hidden_returns)
        self._write(before, after, target)
        if room:
            self._return_to(self.trampoline.detour.address, key, hit.write, target)
        self._entered, self._had_room = new, room

    def _is_wanted(self, hit: Hit, target: Target) -> bool:
        """Whether some probe looks at the call."""
        tests = [(part.entry.condition, part, handler) for part, handler in self._served]
        if any(test is None for test, _, _ in tests):
            return True
        return any(self._evaluated(test, part, handler, hit, target) for test, part, handler in tests if test)

    def _kept(self, hit: Hit, target: Target) -> tuple[int, ...]:
        """The words of a call; 0 for what cannot be evaluated."""
        words = [0] * self.layout.saved
        for part, handler in self._served:
            for offset, node in part.kept:
                words[(offset - SAVED) // WORD] = self._evaluated(node, part, handler, hit, target)
        return tuple(words)

    @property
    def _served(self) -> Iterator[tuple[Part, Handler]]:
        return zip(self.parts, self._handlers, strict=True)

    def _evaluated(self, node: Expr, part: Part, handler: Handler, hit: Hit, target: Target) -> int:
        """0 for a fault, which is counted."""
        try:
            return interpret.evaluate(node, handler.seen(hit))
        except Fault:
            count = int.from_bytes(target.machine.read(part.faults, WORD), "little") + 1
            target.machine.write(part.faults, count.to_bytes(WORD, "little"))
            return 0

    def _return_to(
        self, address: int, key: int, write: Callable[[Mapping[str, int]], None], target: Target
    ) -> None:
        """Have the call return there that stands at the entry. write: sets registers of its vCPU."""
        isa = _of(target)
        if isa.link is not None:
            write({isa.link: address})
        else:
            target.machine.write(isa.shown_at(key), address.to_bytes(WORD, "little"))

    def take_back(self, target: Target) -> None:
        """The last entry is going to be made once more."""
        new, self._entered = self._entered, None
        if new is None:
            return
        before = self._read(target)
        if not self._had_room:
            self._write(before, self.layout.missed(before, -1), target)
            return
        machine = target.machine
        # GDB may die in between: nobody may return to the trampoline without an instance.
        self._return_to(new.back, new.key, partial(machine.write_registers, machine.selected()), target)
        self._write(before, self.layout.left(before, new.key), target)

    def _write(self, before: bytes, after: bytes, target: Target) -> None:
        for offset, word in changes(before, after):
            target.machine.write(self.memory.address + offset, word)

    def _read(self, target: Target) -> bytes:
        return target.machine.read(self.memory.address, self.layout.size)


def key_after(sp: int, target: Target) -> int:
    """The key of a call that has returned, by what the stack pointer is then."""
    return _of(target).key_after(sp)


def is_on_stack(target: Target) -> bool:
    """Whether a call's return address is at its stack address from its entry to its return."""
    return _of(target).link is None


def parts_of(probes: Sequence[Probe]) -> tuple[Part, ...]:
    """What these return probes of one function do at its entry, with their words one behind the other's."""
    found: list[Part] = []
    area = SAVED
    for probe in probes:
        handler = probe.handler
        armed = len(probes) > 1 and handler.entry.condition is not None
        area += WORD * armed
        faults = probe.counter.address + WORD if probe.counter is not None and not handler.is_plain else 0
        found.append(Part(handler.entry, area, faults, armed))
        area += WORD * len(handler.entry.words)
    return tuple(found)


def layout_for(probes: Sequence[Probe], least: int = SLOTS) -> InstancesLayout:
    """Of a table that these return probes of one function can share, whichever of them are enabled.

    least: how many calls there is room for, where not every probe bounds them.
    """
    bounds = [probe.spec.maxactive for probe in probes]
    saved = sum(len(probe.handler.entry.words) + (probe.handler.entry.condition is not None) for probe in probes)
    return InstancesLayout(max(bounds) if all(bounds) else least, saved)


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
