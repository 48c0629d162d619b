"""Lower what all kretprobes of a function do at its entry, and the two ends of the trampoline that its calls return to.

    entry       claim a slot, key and return address into it, return to the trampoline
    trampoline  begin, find the slot and where the call returns │ programs, each falling through │ free the slot, return
                                                                  └ look: a debugger stops there   └ or leave to a pad
Most calls find the first slot of their key free. So an entry saves the registers of this way alone at first; those of
the search and of actions are saved where they begin. No thread waits for another: see maps/call_table.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.handlers.lower_program import RESTORED, lower_saving
from gdb_optprobe.handlers.lower_returns import (
    EntryPart,
    PlacedSlots,
    lower_claim,
    lower_drop_dead,
    lower_entry_actions,
    lower_entry_conditions,
    lower_kept_words,
)
from gdb_optprobe.handlers.lower_slot_search import lower_home, lower_next_slot
from gdb_optprobe.isa.base import Code, Dead, joined, with_pool
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Comparison,
    EntryState,
    Label,
    MemoryValue,
    OuterSaves,
    RegisterPool,
    emitted_code,
    noted,
    noted_save,
)
from gdb_optprobe.isa.return_codegen import ReturnBackend, ReturnEmitter
from gdb_optprobe.maps.aggregate import number
from gdb_optprobe.maps.call_table import (
    DROPPED,
    KEY,
    MISSED,
    RETURN,
    RETURNS,
    WORD,
    CallTableLayout,
    Homing,
)

BOTH = 2  # words of a slot, key and return address


@dataclass(frozen=True, slots=True)
class PlacedCallTable(PlacedSlots[CallTableLayout]):
    """The table of a function's calls in guest memory, with its counters."""

    def counter(self, offset: int) -> Address:
        return Address(offset=self.address + offset, near=True)

    @property
    def has_pairs(self) -> bool:
        """Return whether the first two words of each slot are aligned together."""
        return self.first % (BOTH * WORD) == 0


@dataclass(frozen=True, slots=True)
class _Search:
    """The CallSearch of a function's own table: all slots, round its end; `count` counts those that are left.

    word: has the key. other: is changed.
    """

    emit: ReturnEmitter
    table: PlacedCallTable
    word: str
    count: str
    other: str

    def begin(self, at: str, slot: str) -> None:
        self.emit.copy(at, slot)
        self.emit.constant(self.count, self.table.layout.looked_at)

    def next(self, at: str, again: Label) -> None:
        lower_next_slot(self.emit, self.table.slots, at)
        self.emit.binary(Arithmetic.SUB, self.count, self.count, 1, 64, False)
        self.emit.branch(Comparison.NE, self.count, 0, False, again)

    def previous(self, at: str) -> None:
        is_behind = Label()
        self.emit.constant(self.other, self.table.first)
        self.emit.branch(Comparison.NE, at, self.other, False, is_behind)
        self.emit.constant(at, self.table.end)
        self.emit.bind(is_behind)
        self.emit.binary(Arithmetic.SUB, at, at, self.table.layout.slot_size, 64, False)

    def unless_key(self, at: str, label: Label) -> None:
        self.emit.branch(Comparison.NE, MemoryValue(Address(at, KEY)), self.word, False, label)

    def drop(self, at: str) -> None:
        self.emit.store(Address(at, KEY), 0)
        self.emit.atomic_add(self.table.counter(DROPPED), 1)

    def move(self, to: str, at: str) -> None:
        for offset in range(RETURN, RETURN + WORD * (1 + self.table.layout.saved), WORD):
            self.emit.load(self.other, MemoryValue(Address(at, offset)))
            self.emit.store(Address(to, offset), self.other)
        self.emit.store(Address(to, KEY), self.word)


@dataclass(frozen=True, slots=True)
class EntryRegisters:
    """Registers that an entry uses. usual: where the first slot is free. other: by the search. acting: by actions."""

    usual: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()
    acting: frozenset[str] = frozenset()

    def __or__(self, more: EntryRegisters) -> EntryRegisters:
        return EntryRegisters(self.usual | more.usual, self.other | more.other, self.acting | more.acting)


@dataclass(frozen=True, slots=True)
class ProbedFunction:
    """A function with kretprobes. trampoline: the return address that its calls get.

    arena_code: the range (start, end) of our code. A return address in it is a trampoline's: that call is active.
    pc:         the function's entry.
    hidden:     return addresses that a tracer of the guest sets: they do not tell whether a call is active.
    """

    trampoline: int
    arena_code: tuple[int, int]
    pc: int = 0
    hidden: tuple[int, ...] = ()


def lower_entry(
    table: PlacedCallTable,
    function: ProbedFunction,
    before: EntryState,
    isa: ReturnBackend,
    parts: Sequence[EntryPart] = (),
) -> Code:
    """Lower what runs at the entry of a function; it falls through at its end. Without a free slot the call is missed.

    before: at the entry. Raises NotLowered.
    """
    before = replace(before, reads=before.reads.union(*(part.registers for part in parts)))


    def emit(used: EntryRegisters) -> tuple[ReturnEmitter, EntryRegisters]:
        emitter = isa.emitter(before)
        return emitter, _entry(table, function, before, isa, emitter, used, parts)

    return lower_saving(emit, EntryRegisters())


def _entry(
    table: PlacedCallTable,
    function: ProbedFunction,
    before: EntryState,
    isa: ReturnBackend,
    emit: ReturnEmitter,
    used: EntryRegisters,
    parts: Sequence[EntryPart],
) -> EntryRegisters:
    claimed, end = Label(), Label()
    pc = (isa.pc, function.pc)
    saved = isa.kept(used.usual, before)
    freed = replace(before, dead=replace(before.dead, registers=before.dead.registers | {*saved}))
    emit.pool = usual = RegisterPool(isa.order(before))
    noted_save(emit, saved)
    lower_entry_conditions(emit, pc, parts, end)
    slot, word = usual.allocate(), usual.allocate()
    with noted(emit, "a slot for the call"):
        _home(emit, table, slot, word)
        link = _link(emit, isa)
        stored = emit.claim_for(Address(slot, KEY), word, claimed, link if table.has_pairs else None)
    emit.pool = other = RegisterPool(isa.order(freed))
    other.reserve(slot), other.reserve(word)
    more = tuple(name for name in isa.kept(used.other, before) if name not in saved)
    with noted(emit, "that slot is taken: another one"):
        noted_save(emit, more)
        _search(emit, table, function, slot, word)
        with noted(emit, RESTORED):
            emit.restore(more)
        emit.pool = usual
        emit.branch(Comparison.EQ, slot, 0, False, end)
        if stored:
            emit.store(Address(slot, KEY), word)
        if link and stored == BOTH:
            emit.store(Address(slot, RETURN), link)
    with noted(emit, "its return address, kept"):
        emit.bind(claimed)
        if not stored:
            emit.store(Address(slot, KEY), word)
        if link is None:
            emit.return_address(word)
        if stored != BOTH:
            emit.store(Address(slot, RETURN), link or word)
    usual.free(word)
    for part in parts:
        lower_kept_words(emit, pc, part, slot)
    emit.pool = acting = RegisterPool(isa.order(freed))
    if any(part.around is not None for part in parts):
        acting.reserve(slot)
        more = tuple(name for name in isa.kept(used.acting, before) if name not in saved)
        noted_save(emit, more)
        for part in parts:
            lower_entry_actions(emit, pc, part, slot)
        with noted(emit, RESTORED):
            emit.restore(more)
    emit.pool = usual
    usual.reserve(word)
    with noted(emit, "its return, to the trampoline"):
        emit.return_to(function.trampoline)
    with noted(emit, RESTORED):
        emit.bind(end)
        emit.restore(saved)
    return EntryRegisters(frozenset(usual.used), frozenset(other.used), frozenset(acting.used))


def _search(emit: ReturnEmitter, table: PlacedCallTable, function: ProbedFunction, slot: str, word: str) -> None:
    """Emit: claim a slot; `slot`, the home of the key in `word`, becomes its address, or 0 where no slot is free."""
    at, count, other = (emit.pool.allocate() for _ in range(3))
    search, done = Label(), Label()
    calls = _Search(emit, table, word, count, other)
    emit.return_address(other)
    for address in function.hidden:
        emit.branch(Comparison.EQ, other, address, False, search)
    start, end = function.arena_code
    emit.binary(Arithmetic.SUB, other, other, start, 64, False)
    emit.branch(Comparison.LT, other, end - start, False, search)
    lower_drop_dead(emit, calls, slot, at)
    emit.bind(search)

    def full() -> None:
        emit.atomic_add(table.counter(MISSED), 1)
        emit.constant(slot, 0)
        emit.jump(done)

    lower_claim(emit, calls, slot, at, count, full)
    emit.bind(done)
    for register in (at, count, other):
        emit.pool.free(register)


@dataclass(frozen=True, slots=True)
class PadExit:
    """How a trampoline leaves to `pad` where one of `flags` (offsets in the slot) is set.

    The slot's register holds all flags there, unless the trampoline saves registers: then all are as the function left
    them.
    """

    flags: tuple[int, ...]
    pad: int


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
        begin, *programs = with_pool((self.begin, *programs), at)  # wherever it is, sizes are the same
        at += len(begin(at))
        for program in programs:
            end = at + len(program(at))
            yield at, end
            at = end


def lower_trampoline(
    table: PlacedCallTable,
    before: EntryState,
    isa: ReturnBackend,
    leaving: PadExit | None = None,
    counted: bool = True,
) -> Trampoline:
    """Lower both ends of a trampoline. Raises TooManyRegisters.

    counted: whether the table counts returns; else the programs do.

    before: what is dead where the function has returned. Where that is not enough, all that is used is saved around the
    programs.
    """
    before = replace(before, reads=before.reads - {isa.slot})
    made, used = _trampoline(table, before, isa, leaving, counted)
    if not isa.kept(used, before):
        return made
    before = replace(before, dead=Dead())
    while (names := isa.kept(used, before)) != before.kept.names:
        before = replace(before, kept=OuterSaves(names))
        made, more = _trampoline(table, before, isa, leaving, counted)
        used |= more
    return made


def _trampoline(
    table: PlacedCallTable, before: EntryState, isa: ReturnBackend, leaving: PadExit | None, counted: bool
) -> tuple[Trampoline, frozenset[str]]:
    """Return the trampoline, and the registers that it uses."""
    slot, kept = isa.slot, before.kept.names
    taken = before.reads | {slot}
    order = [name for name in isa.order(before) if name not in taken]
    begin, end = isa.emitter(replace(before, kept=OuterSaves())), isa.emitter(before)
    begin.pool, end.pool = RegisterPool(order), RegisterPool(order)
    begin.save(kept)
    _find(begin, table, slot, isa)
    if leaving is not None:
        _flags_into(end, wishes := end.pool.allocate(), slot, leaving.flags)
    end.publish(Address(slot, KEY), 0)
    if counted:
        end.atomic_add(table.counter(RETURNS), 1)
    if leaving is not None:
        on = Label()
        end.branch(Comparison.EQ, wishes, 0, False, on)
        if not kept:
            end.copy(slot, wishes)
            end.save(())
        end.restore_and_jump(kept, leaving.pad)
        end.bind(on)
    end.restore(kept)
    free = isa.saved(kept)

    made = Trampoline(
        lambda at: isa.begin + begin.finish(at + len(isa.begin)),
        joined((emitted_code(end), lambda at: isa.end)),
        Dead(before.dead.flags or free.flags, (before.dead.registers | free.registers) - taken),
        OuterSaves(kept, slot) if kept else OuterSaves(),
    )
    return made, frozenset((slot, *begin.pool.used, *end.pool.used))


def lower_debugger_check(before: EntryState, isa: ReturnBackend, flag: int) -> Code:
    """Lower code that comes to its last instruction, which does nothing, where a program has set a flag.

    A debugger has a breakpoint there. before: as of a program. flag: offset in the slot.
    """
    emit, over = isa.emitter(before), Label()
    emit.pool = RegisterPool([name for name in isa.order(before) if name in before.dead.registers - {isa.slot}])
    emit.branch(Comparison.EQ, MemoryValue(Address(isa.slot, flag)), 0, False, over)
    with emit.pool.scratch() as nothing:
        emit.constant(nothing, 0)
    emit.bind(over)
    return emit.finish


def _flags_into(emit: ReturnEmitter, to: str, slot: str, flags: Sequence[int]) -> None:
    """Emit: put all of the call's flags into `to`."""
    first, *others = flags
    emit.load(to, MemoryValue(Address(slot, first)))
    with emit.pool.scratch() as more:
        for flag in others:
            emit.load(more, MemoryValue(Address(slot, flag)))
            emit.binary(Arithmetic.OR, to, to, more, 64, False)


def _find(emit: ReturnEmitter, table: PlacedCallTable, slot: str, isa: ReturnBackend) -> None:
    """Emit: find the slot of the call that has returned, and return to its return address. It surely has one."""
    again, found = Label(), Label()
    with emit.pool.scratch() as word:
        _home(emit, table, slot, word)
        to = _link(emit, isa) or word
        emit.bind(again)
        is_loaded = emit.go_to_found(slot, word, to, found)
        lower_next_slot(emit, table.slots, slot)
        emit.jump(again)
        emit.bind(found)
        if not is_loaded:
            emit.load(to, MemoryValue(Address(slot, RETURN)))
        emit.return_to(to)


def _link(emit: ReturnEmitter, isa: ReturnBackend) -> str | None:
    """Return the general register that has the return address; None where there is no such register."""
    return emit.register(isa.link) if isa.link is not None else None


# the search ------------------------------------------------------------------------------------------------------


def _home(emit: ReturnEmitter, table: PlacedCallTable, slot: str, word: str) -> None:
    """Emit: put the call's key into `word`, and the address of its first slot into `slot`."""
    emit.key(word)
    layout = table.layout
    if layout.homing is Homing.PRODUCT:
        lower_home(emit, table.slots, word, slot)
        return
    if layout.is_paged:
        with emit.pool.scratch() as folded:
            emit.fold(folded, word, layout.fold)
            emit.insert(slot, folded, layout.slot_size.bit_length() - 1, layout.homes.bit_length() - 1, table.first)
        return
    emit.fold(slot, word, layout.fold)
    emit.binary(Arithmetic.AND, slot, slot, (layout.homes - 1) * layout.slot_size, 64, False)
    emit.address(slot, Address(slot, number(table.first, True), near=True))
