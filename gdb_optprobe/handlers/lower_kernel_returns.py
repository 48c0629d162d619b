"""The code of return probes that does not depend on what they do: a call's entry, and the two ends of a trampoline.

    entry       claim a slot, key and return address into it, return to the trampoline
    trampoline  begin, find the slot and where the call returns │ programs, each falling through │ free the slot, return
                                                                  └ look: a debugger stops there   └ or leave to a pad
See maps/call_table.py for the search, and for why nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.handlers.ir import Clock, Constant, Expr, Register, Stop, nodes
from gdb_optprobe.handlers.lower_expressions import ExpressionLowering
from gdb_optprobe.handlers.lower_program import LoweringContext, lower_action, refused, ring_doorbell
from gdb_optprobe.handlers.lower_slot_search import SlotArray, lower_home, lower_next_slot
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.base import Code, Dead, joined
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Comparison,
    Emitter,
    EntryState,
    Label,
    MemoryValue,
    OuterSaves,
    RegisterPool,
)
from gdb_optprobe.isa.return_codegen import ReturnBackend, ReturnEmitter
from gdb_optprobe.maps.call_table import (
    DROPPED,
    FACTOR,
    KEY,
    MISSED,
    RETURN,
    RETURNS,
    SAVED,
    SHIFT,
    SLOTS,
    WORD,
    CallTableLayout,
)


@dataclass(frozen=True, slots=True)
class PlacedCallTable:
    """A table of instances in guest memory, at `address`."""

    layout: CallTableLayout
    address: int

    @property
    def first(self) -> int:
        return self.address + SLOTS

    @property
    def end(self) -> int:
        """Behind the last slot."""
        return self.address + self.layout.end

    @property
    def slots(self) -> SlotArray:
        return SlotArray(self.first, self.end, self.layout.slot_size, self.layout.homes, FACTOR, SHIFT)

    def counter(self, offset: int) -> Address:
        return Address(offset=self.address + offset, near=True)


@dataclass(frozen=True, slots=True)
class EntryPart:
    """What one return probe does at the entry.

    area:   where in a slot its words begin; others of ours are before: offsets in the slot, 0 for none.
    faults: where its faults are counted.
    armed:  whether it sees the call, which others see in any case.
    flag:   what its program sets to have the guest stop.
    data:   a number that a debugger gives the call; 0 where it has none.
    time:   when it was entered, where that can be told.
    around: of what it does there.
    """

    entry: EntryProgram
    area: int = SAVED
    faults: int = 0
    armed: int = 0
    flag: int = 0
    data: int = 0
    time: int = 0
    around: LoweringContext | None = None

    @property
    def registers(self) -> frozenset[str]:
        """What it reads at the entry."""
        cpu = nodes(self.around.cpu) if self.around is not None and self.around.cpu is not None else ()
        return self.entry.registers | {node.name for node in cpu if isinstance(node, Register)}

    @property
    def kept(self) -> Iterator[tuple[int, Expr]]:
        """Offsets in a slot, and what is kept there."""
        if self.armed:
            yield self.armed, self.entry.condition or Constant(1)
        for none in filter(None, (self.flag, self.data)):
            yield none, Constant(0)
        if self.time:
            yield self.time, Clock()
        for index, word in enumerate(self.entry.words):
            yield self.area + WORD * index, word


@dataclass(frozen=True, slots=True)
class EntryRegisters:
    """Registers by the usual way through an entry, by that through a taken slot, and by actions: as UsedRegisters."""

    usual: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()
    acting: frozenset[str] = frozenset()

    def __or__(self, more: EntryRegisters) -> EntryRegisters:
        return EntryRegisters(self.usual | more.usual, self.other | more.other, self.acting | more.acting)


@dataclass(frozen=True, slots=True)
class EntryContext:
    """trampoline: what the function returns to.

    ours: the range (start, end) of our code. A return address in it is a trampoline's: the call that made it is alive.
    pc:   the function's entry.
    hidden: where a tracer of the guest's own has calls return to: such an address does not tell who is alive.
    """

    trampoline: int
    ours: tuple[int, int]
    pc: int = 0
    hidden: tuple[int, ...] = ()


def lower_entry(
    table: PlacedCallTable, way: EntryContext, before: EntryState, isa: ReturnBackend, parts: Sequence[EntryPart] = ()
) -> Code:
    """What runs at the entry of a function; falls through at its end. All or nothing: without room the call is missed.

    Raises NotLowered.
    """
    before = replace(before, reads=before.reads.union(*(part.registers for part in parts)))
    used = EntryRegisters()
    while True:
        emit = isa.emitter(before)
        more = used | _entry(table, way, before, isa, emit, used, parts)
        if more == used:
            return emit.finish
        used = more


def _entry(
    table: PlacedCallTable,
    way: EntryContext,
    before: EntryState,
    isa: ReturnBackend,
    emit: ReturnEmitter,
    used: EntryRegisters,
    parts: Sequence[EntryPart],
) -> EntryRegisters:
    taken, claimed, end = Label(), Label(), Label()
    pc = (isa.pc, way.pc)
    saved = isa.kept(used.usual, before)
    emit.pool = usual = RegisterPool(isa.order(before))
    emit.save(saved)
    lower_entry_conditions(emit, pc, parts, end)
    slot, word = usual.allocate(), usual.allocate()
    _home(emit, table, slot, word)
    emit.claim(Address(slot), taken)
    emit.bind(claimed)
    emit.key(word)
    emit.store(Address(slot, KEY), word)
    emit.return_address(word)
    emit.store(Address(slot, RETURN), word)
    usual.free(word)
    for part in parts:
        lower_kept_words(emit, pc, part, slot)
    freed = replace(before, dead=replace(before.dead, registers=before.dead.registers | {*saved}))
    emit.pool = acting = RegisterPool(isa.order(freed))
    if any(part.around is not None for part in parts):
        acting.reserve(slot)
        more = tuple(name for name in isa.kept(used.acting, before) if name not in saved)
        emit.save(more)
        for part in parts:
            lower_entry_actions(emit, pc, part, slot)
        emit.restore(more)
    emit.pool = usual
    usual.reserve(word)
    emit.return_to(way.trampoline)
    emit.jump(end)
    emit.bind(taken)
    emit.pool = other = RegisterPool(isa.order(freed))
    other.reserve(slot), other.reserve(word)
    more = tuple(name for name in isa.kept(used.other, before) if name not in saved)
    emit.save(more)
    _search(emit, table, way, slot, word)
    emit.restore(more)
    emit.pool = usual
    emit.branch(Comparison.NE, slot, 0, False, claimed)
    emit.bind(end)
    emit.restore(saved)
    return EntryRegisters(frozenset(usual.used), frozenset(other.used), frozenset(acting.used))


def lower_entry_conditions(emit: Emitter, pc: tuple[str, int], parts: Sequence[EntryPart], end: Label) -> None:
    """To `end` where no probe wants to see the call."""
    tests = [(part.entry.condition, part.faults) for part in parts]
    if any(test is None for test, _ in tests):
        return
    wanted = Label()
    for number, (test, faults) in enumerate(tests, 1):
        assert test is not None
        words, no, is_last = ExpressionLowering(emit, pc), Label(), number == len(tests)
        with refused(test):
            words.jump(test, not is_last, end if is_last else wanted)
        if words.faulted:
            emit.jump(wanted if is_last else no)
            emit.bind(words.fault)
            emit.atomic_add(Address(offset=faults, near=True), 1)
            if is_last:
                emit.jump(end)
        emit.bind(no)
    emit.bind(wanted)


def lower_kept_words(emit: Emitter, pc: tuple[str, int], part: EntryPart, slot: str) -> None:
    """The words of one probe into the call's slot; 0 for what cannot be evaluated."""
    for offset, node in part.kept:
        at = Address(slot, offset)
        words, done = ExpressionLowering(emit, pc), Label()
        with refused(node), words.operand(node) as word:
            emit.store(at, word)
        if words.faulted:
            emit.jump(done)
            emit.bind(words.fault)
            emit.atomic_add(Address(offset=part.faults, near=True), 1)
            emit.store(at, 0)
            emit.bind(done)


def lower_entry_actions(emit: Emitter, pc: tuple[str, int], part: EntryPart, slot: str) -> None:
    """What a probe that sees the call does besides."""
    if part.around is None:
        return
    skip = Label()
    if part.armed:
        emit.branch(Comparison.EQ, MemoryValue(Address(slot, part.armed)), 0, False, skip)
    for index, (action, address) in enumerate(zip(part.entry.actions, part.around.objects, strict=True)):
        assert not isinstance(action, Stop), "it was refused"
        with refused(action):
            lower_action(emit, pc, part.around, action, index, address)
    emit.bind(skip)


def _search(emit: ReturnEmitter, table: PlacedCallTable, way: EntryContext, slot: str, word: str) -> None:
    """The slot behind `slot`, the first of the search, that is now the call's; 0 where there is none."""
    at, count, other = (emit.pool.allocate() for _ in range(3))
    dead_next, dead, search, again, busy, found, done = (Label() for _ in range(7))
    emit.key(word)
    emit.return_address(other)
    for address in way.hidden:
        emit.branch(Comparison.EQ, other, address, False, search)
    start, end = way.ours
    emit.binary(Arithmetic.SUB, other, other, start, 64, False)
    emit.branch(Comparison.LT, other, end - start, False, search)
    _begin(emit, table, at, count, slot)
    emit.bind(dead)
    emit.branch(Comparison.EQ, MemoryValue(Address(at, KEY)), 0, False, search)
    emit.branch(Comparison.NE, MemoryValue(Address(at, KEY)), word, False, dead_next)
    emit.store(Address(at, KEY), 0)
    emit.atomic_add(table.counter(DROPPED), 1)
    emit.bind(dead_next)
    lower_next_slot(emit, table.slots, at)
    _count_down(emit, count, dead)
    emit.bind(search)
    _begin(emit, table, at, count, slot)
    emit.bind(again)
    emit.claim(Address(at, KEY), busy)
    emit.jump(found)
    emit.bind(busy)
    lower_next_slot(emit, table.slots, at)
    _count_down(emit, count, again)
    emit.atomic_add(table.counter(MISSED), 1)
    emit.constant(slot, 0)
    emit.jump(done)
    emit.bind(found)
    _make_first(emit, table, at, count, other, slot, word)
    emit.bind(done)
    for register in (at, count, other):
        emit.pool.free(register)


def _make_first(
    emit: ReturnEmitter, table: PlacedCallTable, at: str, hole: str, other: str, slot: str, word: str
) -> None:
    """From the claimed slot `at` back to the home, `slot`: each call with the same key moves one place further.

    `slot` is then the place before them.
    """
    back, no_turn, moved = Label(), Label(), Label()
    emit.copy(hole, at)
    emit.bind(back)
    emit.branch(Comparison.EQ, at, slot, False, moved)
    emit.constant(other, table.first)
    emit.branch(Comparison.NE, at, other, False, no_turn)
    emit.constant(at, table.end)
    emit.bind(no_turn)
    emit.binary(Arithmetic.SUB, at, at, table.layout.slot_size, 64, False)
    emit.branch(Comparison.NE, MemoryValue(Address(at, KEY)), word, False, back)
    for offset in range(RETURN, RETURN + WORD * (1 + table.layout.saved), WORD):
        emit.load(other, MemoryValue(Address(at, offset)))
        emit.store(Address(hole, offset), other)
    emit.store(Address(hole, KEY), word)
    emit.copy(hole, at)
    emit.jump(back)
    emit.bind(moved)
    emit.copy(slot, hole)


@dataclass(frozen=True, slots=True)
class PadExit:
    """A trampoline leaves to `pad` where one of `flags` (offsets in the slot) is set.

    Returning.slot holds all of them there, but where the trampoline saves registers, which are all as they were then.
    doorbell: see lower_program.LoweringContext.
    """

    flags: tuple[int, ...]
    pad: int
    doorbell: int


@dataclass(frozen=True, slots=True)
class Trampoline:
    """Code around the programs of a trampoline, which find the address of the call's slot in the slot's register.

    dead: what the programs may overwrite. kept: what they find on the stack.
    """

    begin: Code
    end: Code
    dead: Dead
    kept: OuterSaves

    def code(self, programs: Sequence[Code]) -> Code:
        """Return the whole trampoline."""
        return joined((self.begin, *programs, self.end))

    def places(self, programs: Sequence[Code], at: int) -> Iterator[tuple[int, int]]:
        """Yield where each of the programs begins and ends in the same code at `at`."""
        at += len(self.begin(at))
        for program in programs:
            end = at + len(program(at))
            yield at, end
            at = end


def lower_trampoline(
    table: PlacedCallTable, before: EntryState, isa: ReturnBackend, leaving: PadExit | None = None
) -> Trampoline:
    """before: what is dead where the function has returned. Where that is not enough for what is done here, all that is
    used is saved, around the programs.

    Raises TooManyRegisters.
    """
    before = replace(before, reads=before.reads - {isa.slot})
    made, used = _trampoline(table, before, isa, leaving)
    if not isa.kept(used, before):
        return made
    before = replace(before, dead=Dead())
    while (names := isa.kept(used, before)) != before.kept.names:
        before = replace(before, kept=OuterSaves(names))
        made, more = _trampoline(table, before, isa, leaving)
        used |= more
    return made


def _trampoline(
    table: PlacedCallTable, before: EntryState, isa: ReturnBackend, leaving: PadExit | None
) -> tuple[Trampoline, frozenset[str]]:
    """With what was used saved, and what it uses."""
    slot, kept = isa.slot, before.kept.names
    taken = before.reads | {slot}
    order = [name for name in isa.order(before) if name not in taken]
    begin, end = isa.emitter(replace(before, kept=OuterSaves())), isa.emitter(before)
    begin.pool, end.pool = RegisterPool(order), RegisterPool(order)
    begin.save(kept)
    _find(begin, table, slot)
    if leaving is not None:
        _flags_into(end, wishes := end.pool.allocate(), slot, leaving.flags)
    end.publish(Address(slot, KEY), 0)
    end.atomic_add(table.counter(RETURNS), 1)
    if leaving is not None:
        on = Label()
        end.branch(Comparison.EQ, wishes, 0, False, on)
        ring_doorbell(end, leaving.doorbell)
        if not kept:
            end.copy(slot, wishes)
            end.save(())
        end.restore_and_jump(kept, leaving.pad)
        end.bind(on)
    end.restore(kept)
    free = isa.saved(kept)

    made = Trampoline(
        lambda at: isa.begin + begin.finish(at + len(isa.begin)),
        lambda at: end.finish(at) + isa.end,
        Dead(before.dead.flags or free.flags, (before.dead.registers | free.registers) - taken),
        OuterSaves(kept, slot) if kept else OuterSaves(),
    )
    return made, frozenset((slot, *begin.pool.used, *end.pool.used))


def lower_debugger_check(before: EntryState, isa: ReturnBackend, flag: int) -> Code:
    """Comes to its last instruction, which does nothing, where a program has set a flag, for a debugger to stop there.

    before: as of a program. flag: offset in the slot.
    """
    emit, over = isa.emitter(before), Label()
    emit.pool = RegisterPool([name for name in isa.order(before) if name in before.dead.registers - {isa.slot}])
    emit.branch(Comparison.EQ, MemoryValue(Address(isa.slot, flag)), 0, False, over)
    with emit.pool.scratch() as nothing:
        emit.constant(nothing, 0)
    emit.bind(over)
    return emit.finish


def _flags_into(emit: ReturnEmitter, to: str, slot: str, flags: Sequence[int]) -> None:
    first, *others = flags
    emit.load(to, MemoryValue(Address(slot, first)))
    with emit.pool.scratch() as more:
        for flag in others:
            emit.load(more, MemoryValue(Address(slot, flag)))
            emit.binary(Arithmetic.OR, to, to, more, 64, False)


def _find(emit: ReturnEmitter, table: PlacedCallTable, slot: str) -> None:
    """A call whose return address is the trampoline's has a slot."""
    again, found = Label(), Label()
    with emit.pool.scratch() as word:
        _home(emit, table, slot, word)
        emit.key(word)
        emit.bind(again)
        emit.branch(Comparison.EQ, MemoryValue(Address(slot, KEY)), word, False, found)
        lower_next_slot(emit, table.slots, slot)
        emit.jump(again)
        emit.bind(found)
        emit.load(word, MemoryValue(Address(slot, RETURN)))
        emit.return_to(word)


# the search ------------------------------------------------------------------------------------------------------


def _home(emit: ReturnEmitter, table: PlacedCallTable, slot: str, word: str) -> None:
    """The address of a key's first slot; changes `word`."""
    emit.key(word)
    lower_home(emit, table.slots, word, slot, word)


def _begin(emit: ReturnEmitter, table: PlacedCallTable, at: str, count: str, slot: str) -> None:
    emit.copy(at, slot)
    emit.constant(count, table.layout.slots)


def _count_down(emit: ReturnEmitter, count: str, label: Label) -> None:
    emit.binary(Arithmetic.SUB, count, count, 1, 64, False)
    emit.branch(Comparison.NE, count, 0, False, label)
