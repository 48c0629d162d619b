"""Lower what uretprobes do at entries and returns, and what keeps their table right when spaces are copied or end.

    trap at a function's entry ─► entered   a slot for the call, the trampoline's address in place of the return address
    trap in the trampoline     ─► returned  finds the slot ─► code of the function's probes: begin │ programs │ end
    or where a function leaves ─► left      the same, but nothing of the program was changed: without a slot it returns
    fork                       ─► copied    the child has the parent's stack, and so its calls
    the end of a space         ─► ended     its calls never return
The table is one for all programs (maps/user_call_table.py), as trampolines are one for all functions of a program.
Traps run with interrupts off, and only one thread's stack has a call's stack address: so only this thread, and a fork
that copies what it may not need, reads a call's slot while it changes. Most registers are saved by the kernel before
a trap's code runs: so an entry does not save more on its slower ways, as that of a kretprobe does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.handlers.ir import MASK, Expr
from gdb_optprobe.handlers.lower_expressions import ExpressionLowering
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
from gdb_optprobe.handlers.lower_slot_search import lower_home
from gdb_optprobe.isa.base import Code, Dead, joined
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Backend,
    Comparison,
    Emitter,
    EntryState,
    Label,
    MemoryValue,
    RegisterPool,
    noted,
    noted_save,
)
from gdb_optprobe.isa.user import UserEmitter, UserTrapping
from gdb_optprobe.isa.user_returns import Leaving, TrampolineEmitter, UserReturnEmitter, UserReturning
from gdb_optprobe.maps.user_call_table import (
    ACTIVE,
    BEING_FILLED,
    CODE,
    COUNTERS,
    DROPPED,
    KEY,
    MISSED,
    RETURN,
    RETURNS,
    SIZE,
    SLOT,
    SPACE,
    TRAMPOLINE,
    WORD,
    UserCallTableLayout,
)

MOST_POPPED = 16
"""Words that a function may take off the stack beyond its return address: `ret N`."""


@dataclass(frozen=True, slots=True)
class PlacedUserCallTable(PlacedSlots[UserCallTableLayout]):
    """The table of all programs' calls in guest memory. mm: an expression of the address space that runs."""

    mm: Expr


@dataclass(frozen=True, slots=True)
class _Search:
    """The CallSearch of the table: slots up to its end. key, mm: have what names a call. word: is changed.

    counters: of the function; None where all functions' calls with that name are meant.
    """

    emit: Emitter
    table: PlacedUserCallTable
    key: str
    mm: str
    word: str
    counters: int | None = None

    def begin(self, at: str, slot: str) -> None:
        self.emit.copy(at, slot)

    def next(self, at: str, again: Label) -> None:
        _next(self.emit, self.table, at, self.word, again)

    def previous(self, at: str) -> None:
        self.emit.binary(Arithmetic.SUB, at, at, SLOT, 64, False)

    def unless_key(self, at: str, label: Label) -> None:
        self.emit.branch(Comparison.NE, MemoryValue(Address(at, KEY)), self.key, False, label)
        self.emit.branch(Comparison.NE, MemoryValue(Address(at, SPACE)), self.mm, False, label)
        if self.counters is not None:
            self.emit.branch(Comparison.NE, MemoryValue(Address(at, COUNTERS)), self.counters, False, label)

    def drop(self, at: str) -> None:
        _drop(self.emit, at, self.word)

    def move(self, to: str, at: str) -> None:
        _copy(self.emit, to, at, self.word, SPACE)
        self.emit.publish(Address(to, KEY), self.key)


@dataclass(frozen=True, slots=True)
class ProbedUserFunction:
    """A function of a program with uretprobes. counters: their address. code: what runs where its calls return.

    distance:  from the PC that a trap at the entry saves to the trampoline; None where its calls leave by traps.
    size:      bytes of the program's words.
    maxactive: how many calls are seen at once.
    """

    counters: int
    code: int
    distance: int | None
    size: int
    maxactive: int

    def count(self, offset: int) -> Address:
        return Address(offset=self.counters + offset, near=True)


# a call is entered -----------------------------------------------------------------------------------------------


def lower_call_entered(
    table: PlacedUserCallTable,
    function: ProbedUserFunction,
    parts: Sequence[EntryPart],
    before: EntryState,
    traps: UserTrapping,
    isa: UserReturning,
    machine: Backend,
    writable: int,
) -> Code:
    """Lower what runs at a trap on a function's entry; it falls through at its end. Without a slot the call is missed.

    before: of that trap's programs. writable: the address of the routine that UserReturning.emitter takes.
    Raises NotLowered.
    """
    reads = before.reads.union({traps.frame}, *(part.registers for part in parts))
    before = replace(before, reads=reads)

    def emit(used: frozenset[str]) -> tuple[Emitter, frozenset[str]]:
        emitter, end = isa.emitter(before, writable), Label()
        saved = machine.kept(used, before)
        emitter.pool = RegisterPool([name for name in machine.order(before) if name not in reads])
        noted_save(emitter, saved)
        _entered(emitter, table, function, parts, traps, isa, end)
        with noted(emitter, RESTORED):
            emitter.bind(end)
            emitter.restore(saved)
        return emitter, frozenset(emitter.pool.used)

    return lower_saving(emit, frozenset[str]())


def _entered(
    emit: UserReturnEmitter,
    table: PlacedUserCallTable,
    function: ProbedUserFunction,
    parts: Sequence[EntryPart],
    traps: UserTrapping,
    isa: UserReturning,
    end: Label,
) -> None:
    pc = ("", 0)
    missed, crowded, taken, claimed = (Label() for _ in range(4))
    unseen = Label() if function.distance is None else end
    lower_entry_conditions(emit, pc, parts, unseen)
    place = emit.pool.allocate()
    with noted(emit, "where the stack has its return address"):
        emit.return_place(place, function.size, missed)
    mm, key, slot, word = (emit.pool.allocate() for _ in range(4))
    with noted(emit, "a slot for the call"):
        emit.atomic_fetch_add(word, function.count(ACTIVE), 1)
        emit.branch(Comparison.GE, word, function.maxactive, True, crowded)
        ExpressionLowering(emit, pc).into(mm, table.mm)
        _key_of_trap(emit, key, function.size, traps, isa)
        _home(emit, table, key, mm, slot, word)
        emit.claim(Address(slot, KEY), taken)
    with noted(emit, "its return address, kept"):
        emit.bind(claimed)
        emit.store(Address(slot, SPACE), mm)
        emit.load(word, MemoryValue(Address(place), function.size))
        emit.store(Address(slot, RETURN), word)
        emit.store(Address(slot, CODE), function.code)
        emit.store(Address(slot, COUNTERS), function.counters)
    for register in (mm, key, word):
        emit.pool.free(register)
    for part in parts:
        lower_kept_words(emit, pc, part, slot)
    for part in parts:
        lower_entry_actions(emit, pc, part, slot)
    emit.pool.reserve(word), emit.pool.reserve(key)
    with noted(emit, "its return"):
        if function.distance is None:
            emit.store(Address(slot, TRAMPOLINE), 0)
        else:
            _trampoline(emit, word, function.distance, function.size, traps)
            emit.store(Address(slot, TRAMPOLINE), word)
            emit.store(Address(place), word, function.size)
        _key_of_trap(emit, key, function.size, traps, isa)
        emit.publish(Address(slot, KEY), key)
        emit.jump(end)
    emit.bind(taken)
    emit.pool.reserve(mm)
    other = emit.pool.allocate()
    search = Label()
    with noted(emit, "that slot is taken: another one"):
        if function.distance is not None:
            emit.load(other, MemoryValue(Address(place), function.size))
            _trampoline(emit, word, function.distance, function.size, traps)
            emit.branch(Comparison.EQ, other, word, False, search)
        # Another function may leave its stack pointer as it is where it calls this one.
        calls = _Search(emit, table, key, mm, other, function.counters if function.distance is None else None)
        lower_drop_dead(emit, calls, slot, word)
        emit.bind(search)
        with emit.pool.scratch() as hole:
            lower_claim(emit, calls, slot, word, hole, lambda: emit.jump(crowded))
        emit.jump(claimed)
    with noted(emit, "no room: missed"):
        emit.bind(crowded)
        emit.atomic_add(function.count(ACTIVE), MASK)
        emit.bind(missed)
        emit.atomic_add(function.count(MISSED), 1)
    if function.distance is None:
        with noted(emit, "not recorded: its return finds no call that has ended"), emit.pool.holding(()):
            emit.bind(unseen)
            emit.branch(Comparison.EQ, MemoryValue(function.count(ACTIVE)), 0, False, end)
            mm, key, slot, word, other = (emit.pool.allocate() for _ in range(5))
            ExpressionLowering(emit, pc).into(mm, table.mm)
            _key_of_trap(emit, key, function.size, traps, isa)
            _home(emit, table, key, mm, slot, word)
            _drop_all(emit, _Search(emit, table, key, mm, other, function.counters), slot)


def _trampoline(emit: Emitter, to: str, distance: int, size: int, traps: UserTrapping) -> None:
    """Emit: put the trampoline's address in the program that runs into `to`."""
    emit.load(to, MemoryValue(Address(_frame(emit, to, traps), traps.pc), size))
    emit.binary(Arithmetic.ADD, to, to, distance & MASK, 64, False)
    if size < WORD:
        emit.extend(to, to, 8 * size, False)


def _key_of_trap(emit: Emitter, to: str, size: int, traps: UserTrapping, isa: UserReturning) -> None:
    _key(emit, to, MemoryValue(Address(_frame(emit, to, traps), isa.sp), size))


def _frame(emit: Emitter, to: str, traps: UserTrapping) -> str:
    """Return the register with the address of what the trap has saved: `to` where its own register was saved."""
    if (found := emit.register(traps.frame)) is not None:
        return found
    emit.read(to, traps.frame)
    return to


def _drop(emit: Emitter, at: str, word: str) -> None:
    """Emit: free the slot of a call that never returns, and count the call."""
    emit.load(word, MemoryValue(Address(at, COUNTERS)))
    emit.atomic_add(Address(word, DROPPED), 1)
    emit.atomic_add(Address(word, ACTIVE), MASK)
    emit.publish(Address(at, KEY), 0)


def _drop_all(emit: Emitter, calls: _Search, at: str) -> None:
    """Emit: drop all calls with the key, from its home in `at` on: behind free slots too, as a return looks there."""
    again, on = Label(), Label()
    emit.bind(again)
    calls.unless_key(at, on)
    calls.drop(at)
    emit.bind(on)
    calls.next(at, again)


def _copy(emit: Emitter, to: str, source: str, word: str, first: int) -> None:
    """Emit: copy a slot's words from the offset `first` on."""
    for offset in range(first, SLOT, WORD):
        emit.load(word, MemoryValue(Address(source, offset)))
        emit.store(Address(to, offset), word)


# a call returns --------------------------------------------------------------------------------------------------


def lower_call_returned(
    table: PlacedUserCallTable, size: int, kernels: int, traps: UserTrapping, isa: UserReturning
) -> Code:
    """Lower what runs at a trap in the trampoline of a program.

    size: bytes of the program's words. kernels: the kernel's own handler of traps.
    """
    before = EntryState(traps.scratch, frozenset((traps.frame,)))
    emit = traps.emitter(before)
    emit.pool = _scratch(traps, before)
    emit.pool.reserve(isa.slot)
    slot = isa.slot
    key, mm, word, popped = (emit.pool.allocate() for _ in range(4))
    look, again, on, found = (Label() for _ in range(4))
    ExpressionLowering(emit, ("", 0)).into(mm, table.mm)
    _key(emit, key, MemoryValue(Address(traps.frame, isa.sp), size), isa.popped(size))
    emit.constant(popped, MOST_POPPED if isa.popped(size) else 1)
    emit.bind(look)
    _home(emit, table, key, mm, slot, word)
    emit.bind(again)
    emit.branch(Comparison.NE, MemoryValue(Address(slot, KEY)), key, False, on)
    emit.branch(Comparison.EQ, MemoryValue(Address(slot, SPACE)), mm, False, found)
    emit.bind(on)
    _next(emit, table, slot, word, again)
    emit.binary(Arithmetic.SUB, key, key, 2 * size, 64, False)
    emit.binary(Arithmetic.SUB, popped, popped, 1, 64, False)
    emit.branch(Comparison.NE, popped, 0, False, look)
    emit.kernels(kernels)
    emit.bind(found)
    emit.load(word, MemoryValue(Address(slot, CODE)))
    emit.continue_at(word)
    return emit.finish


def lower_return(counters: int, programs: Sequence[Code], traps: UserTrapping, isa: UserReturning) -> Code:
    """Lower what runs where a function's calls return. The programs find the address of the slot in `isa.slot`."""
    before = EntryState(traps.scratch, frozenset((traps.frame, isa.slot)))
    begin, end = traps.emitter(before), traps.emitter(before)
    begin.pool, end.pool = _scratch(traps, before), _scratch(traps, before)
    with begin.pool.scratch() as word:
        begin.load(word, MemoryValue(Address(isa.slot, RETURN)))
        for place in (traps.pc, *isa.also):
            begin.store(Address(traps.frame, place), word)
    _ended(end, counters, isa.slot)
    return joined((begin.finish, *programs, end.finish))


def lower_call_left(
    table: PlacedUserCallTable,
    counters: int,
    leaving: Leaving,
    programs: Sequence[Code],
    traps: UserTrapping,
    isa: UserReturning,
) -> Code:
    """Lower what runs at a trap where a function returns: the programs, if its call has a slot, and the return.

    The programs find the slot's address in `isa.slot`, and the saved PC where the call returns to.
    """
    before = EntryState(traps.scratch, frozenset((traps.frame,)))
    begin, end = traps.emitter(before), traps.emitter(replace(before, reads=before.reads | {isa.slot}))
    begin.pool, end.pool = _scratch(traps, before), _scratch(traps, before)
    slot = isa.slot
    for emit in begin, end:
        emit.pool.reserve(slot)
    key, mm, word = (begin.pool.allocate() for _ in range(3))
    again, on, found, unseen = (Label() for _ in range(4))
    begin.load(word, MemoryValue(Address(traps.frame, leaving.link)))
    begin.store(Address(traps.frame, traps.pc), word)
    begin.branch(Comparison.EQ, MemoryValue(Address(offset=counters + ACTIVE, near=True)), 0, False, unseen)
    ExpressionLowering(begin, ("", 0)).into(mm, table.mm)
    _key(begin, key, MemoryValue(Address(traps.frame, isa.sp)), isa.popped(WORD))
    _home(begin, table, key, mm, slot, word)
    begin.bind(again)
    _Search(begin, table, key, mm, word, counters).unless_key(slot, on)
    begin.jump(found)
    begin.bind(on)
    _next(begin, table, slot, word, again)
    begin.bind(unseen)
    begin.back()
    begin.bind(found)
    _ended(end, counters, slot)
    return joined((begin.finish, *programs, end.finish))


def _ended(end: UserEmitter, counters: int, slot: str) -> None:
    """Emit: count that a call has returned, free its slot, and return to the program."""
    end.publish(Address(slot, KEY), 0)
    end.atomic_add(Address(offset=counters + RETURNS, near=True), 1)
    end.atomic_add(Address(offset=counters + ACTIVE, near=True), MASK)
    end.back()


def dead_at_return(traps: UserTrapping, isa: UserReturning) -> Dead:
    """Return what the programs at a return may overwrite."""
    return replace(traps.scratch, registers=traps.scratch.registers - {traps.frame, isa.slot})


# spaces come and go ----------------------------------------------------------------------------------------------


def lower_space_copied(
    table: PlacedUserCallTable, shared: int, kernels: int, isa: UserReturning, machine: Backend
) -> Code:
    """Lower what runs before the kernel's function(old space, new space): the new space has the old one's calls too.

    A call that finds no slot for its copy returns in both to its caller, unseen; where calls leave by traps, the new
    one's is missed.
    shared: the routine that finds the stack. kernels: the kernel's function.
    """
    before = EntryState(isa.scratch, frozenset(isa.arguments))

    def emit(used: frozenset[str]) -> tuple[Emitter, frozenset[str]]:
        emitter, saved = isa.emitter(before, shared), machine.kept(used, before)
        emitter.pool = RegisterPool([name for name in machine.order(before) if name not in isa.arguments])
        emitter.save(saved)
        _copied(emitter, table, isa)
        emitter.restore_and_jump(saved, kernels)
        return emitter, frozenset(emitter.pool.used)

    return lower_saving(emit, frozenset[str]())


def _copied(emit: UserReturnEmitter, table: PlacedUserCallTable, isa: UserReturning) -> None:
    old, new = isa.arguments
    source, key, slot, at, word = (emit.pool.allocate() for _ in range(5))
    again, on, full = (Label() for _ in range(3))
    emit.constant(source, table.end)  # the oldest first: what is claimed later comes before others with its key
    emit.bind(again)
    emit.binary(Arithmetic.SUB, source, source, SLOT, 64, False)
    emit.branch(Comparison.NE, MemoryValue(Address(source, SPACE)), old, False, on)
    emit.load(key, MemoryValue(Address(source, KEY)))
    emit.branch(Comparison.LE, key, BEING_FILLED, False, on)
    _home(emit, table, key, new, slot, word)
    with emit.pool.scratch() as hole:
        lower_claim(emit, _Search(emit, table, key, new, word), slot, at, hole, lambda: emit.jump(full))
    _copy(emit, slot, source, word, RETURN)
    emit.store(Address(slot, SPACE), new)
    emit.load(word, MemoryValue(Address(slot, COUNTERS)))
    emit.atomic_add(Address(word, ACTIVE), 1)
    emit.publish(Address(slot, KEY), key)
    emit.jump(on)
    emit.bind(full)
    emit.load(word, MemoryValue(Address(source, COUNTERS)))
    if isa.leaving is not None:
        emit.atomic_add(Address(word, MISSED), 1)
    else:
        assert isinstance(emit, TrampolineEmitter)
        short = Label()
        emit.branch(Comparison.NE, MemoryValue(Address(word, SIZE)), WORD, False, short)
        _give_up(emit, table, key, old, slot, at, word, WORD)
        emit.jump(on)
        emit.bind(short)
        _give_up(emit, table, key, old, slot, at, word, WORD // 2)
    emit.bind(on)
    emit.constant(word, table.first)
    emit.branch(Comparison.NE, source, word, False, again)


def _give_up(
    emit: TrampolineEmitter, table: PlacedUserCallTable, key: str, mm: str, first: str, at: str, word: str, size: int
) -> None:
    """Emit: have the calls with this key return to where the oldest of them does.

    Another thread may be returning from them: so the return address is exchanged atomically, and their slots stay.
    """
    find, on, found, follow, older, last, end = (Label() for _ in range(7))
    emit.constant(first, table.first)
    emit.bind(find)
    emit.branch(Comparison.NE, MemoryValue(Address(first, KEY)), key, False, on)
    emit.branch(Comparison.EQ, MemoryValue(Address(first, SPACE)), mm, False, found)
    emit.bind(on)
    _next(emit, table, first, word, find)
    emit.bind(found)
    place = emit.pool.allocate()
    emit.hold_interrupts()
    emit.binary(Arithmetic.SHR, word, key, 1, 64, False)
    emit.stack_place(place, word, size, end)
    emit.load(word, MemoryValue(Address(place), size))
    emit.branch(Comparison.NE, MemoryValue(Address(first, TRAMPOLINE)), word, False, end)
    emit.copy(at, first)
    emit.bind(follow)
    emit.load(word, MemoryValue(Address(at, RETURN)))
    emit.branch(Comparison.NE, MemoryValue(Address(at, TRAMPOLINE)), word, False, last)
    emit.bind(older)
    emit.binary(Arithmetic.ADD, at, at, SLOT, 64, False)
    emit.constant(word, table.end)
    emit.branch(Comparison.EQ, at, word, False, end)
    _Search(emit, table, key, mm, word).unless_key(at, older)
    emit.jump(follow)
    emit.bind(last)
    emit.load(first, MemoryValue(Address(first, TRAMPOLINE)))
    emit.exchange(Address(place), first, word, size)
    emit.bind(end)
    emit.allow_interrupts()
    emit.pool.free(place)


def lower_space_ended(table: PlacedUserCallTable, kernels: int, traps: UserTrapping, isa: UserReturning) -> Code:
    """Lower what runs before the kernel's function(space), when no thread runs in the space any more: drop its calls.

    kernels: that function.
    """
    space, _ = isa.arguments
    before = EntryState(isa.scratch, frozenset(isa.arguments))
    emit = traps.emitter(before)
    emit.pool = RegisterPool([n for n in traps.order(before) if n in isa.scratch.registers and n not in isa.arguments])
    at, word = emit.pool.allocate(), emit.pool.allocate()
    again, on = Label(), Label()
    emit.constant(at, table.first)
    emit.bind(again)
    emit.branch(Comparison.LE, MemoryValue(Address(at, KEY)), BEING_FILLED, False, on)
    emit.branch(Comparison.NE, MemoryValue(Address(at, SPACE)), space, False, on)
    _drop(emit, at, word)
    emit.bind(on)
    _next(emit, table, at, word, again)
    emit.restore_and_jump((), kernels)
    return emit.finish


# the search ------------------------------------------------------------------------------------------------------


def _scratch(traps: UserTrapping, before: EntryState) -> RegisterPool:
    return RegisterPool([n for n in traps.order(before) if n in traps.scratch.registers and n not in before.reads])


def _key(emit: Emitter, to: str, stack_pointer: MemoryValue, popped: int = 0) -> None:
    emit.load(to, stack_pointer)
    if popped:
        emit.binary(Arithmetic.SUB, to, to, popped, 64, False)
    emit.binary(Arithmetic.ADD, to, to, to, 64, False)
    emit.binary(Arithmetic.ADD, to, to, 1, 64, False)


def _home(emit: Emitter, table: PlacedUserCallTable, key: str, mm: str, slot: str, word: str) -> None:
    """Emit: put the address of a key's first slot into `slot`; changes `word`."""
    emit.binary(Arithmetic.ADD, word, key, mm, 64, False)
    lower_home(emit, table.slots, word, slot)


def _next(emit: Emitter, table: PlacedUserCallTable, at: str, word: str, label: Label) -> None:
    """Emit: on to the next slot, and to the label; fall through behind the last. Changes `word`."""
    emit.binary(Arithmetic.ADD, at, at, SLOT, 64, False)
    emit.constant(word, table.end)
    emit.branch(Comparison.NE, at, word, False, label)
