"""The gate of a call graph: which threads are within a call of the root. And the programs that ask and set it.

    place of a thread, by a hash of its task   │ task │ birth │      256 of them, then two words that nothing reads
    of a call through a pointer                │ target │            where it has led last; 1,024 of them
The outermost call of the root takes its thread's place; other entries compare the place's task with their own, and do
nothing else where it is another one. A thread of which the place is taken is not followed, which its call of the root
records. `birth` tells a thread from an earlier one that had the same address and has died within the root.

Two threads may find one place free at once. Then the later one has it, and the call of the other one sees that when it
returns: its last record has what is in the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    And,
    Choose,
    Column,
    Constant,
    Emit,
    Expr,
    Form,
    Load,
    Op,
    Operand,
    Program,
    Put,
    Records,
    Register,
)
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.base import Pointer
from gdb_optprobe.maps.call_table import FACTOR, SAVED, SHIFT
from gdb_optprobe.probes.graph import records
from gdb_optprobe.probes.graph.records import WORD, State

BITS = 8
PLACE = 2 * WORD
PLACES = PLACE << BITS
SITES = 1024
"""Calls through pointers that are watched, at most."""
TARGETS = PLACES + PLACE
"""The offset of what calls through pointers have led to."""
SIZE = TARGETS + SITES * WORD
_ROOT = Constant(0)
"""The number of the root."""
_FREE, _OWN, _TAKEN = (Constant(state.value) for state in (State.FREE, State.OWN, State.TAKEN))


@dataclass(frozen=True, slots=True)
class Thread:
    """Expressions of the running thread. birth: of two threads with one task, one after the other, it differs."""

    task: Expr
    birth: Expr
    pid: Expr
    comm: Expr


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate at `address`, for hits of which `thread` is the thread.

    stack: the stack pointer. arguments, value: the registers of a function's arguments and of its result that are
    recorded; "" for no result.
    """

    address: int
    thread: Thread
    stack: str
    arguments: Sequence[str] = ()
    value: str = ""

    def callee(self, number: Expr, pushed: int = 0) -> EntryProgram:
        """Return the program at the entry of a function, but for the root. number: the function's.

        pushed: bytes that are on the stack there beyond those of the function.
        """
        return EntryProgram(self._is_own, actions=(self._entered(number, pushed),))

    def returned(self, number: Expr) -> Program:
        """Return the program at its return, for calls that were recorded."""
        return Program(None, (self._returned(number),))

    def root(self, condition: Expr | None, pushed: int = 0) -> EntryProgram:
        """Return the program at the root's entry. condition: of calls that are looked at. pushed: as of `callee`."""
        thread, state = self.thread, self._state
        shifted = fold.binary(Op.SHL, state, fold.constant(records.STATE), 64, False)
        marked = fold.binary(Op.OR, thread.pid, shifted, 64, False)
        is_free = fold.binary(Op.EQ, state, _FREE, 64, False)
        began = self._record(records.BEGAN, "a root", (thread.task, marked, thread.comm))
        # A hit that interrupts these takes the place and gives it back; then it is taken here.
        taken = (
            Put(Choose(is_free, self._place(WORD), self._scrap), thread.birth),
            Put(Choose(is_free, self._place(), self._scrap), thread.task),
        )
        entered = self._entered(_ROOT, pushed)
        return EntryProgram(condition, words=(state,), actions=(began, *taken, entered))

    def root_returned(self, slot: str, word: int = 0) -> Program:
        """Return the program at the root's return. slot: the register with the address of the call's slot.

        word: which of the saved ones there is the state.
        """
        place = fold.binary(Op.ADD, Register(slot), fold.constant(SAVED + WORD * word), 64, False)
        outermost = _same(Load(place, WORD, False, mapped=True), _FREE)
        has_place = And(outermost, _same(self._owner, self.thread.task))
        given_back = Put(Choose(has_place, self._place(), self._scrap), Constant(0))
        return Program(None, (self._returned(_ROOT), given_back))

    def died(self) -> Program:
        """Return the program at the end of a thread."""
        record = self._record(records.DIED, "a death", (self.thread.task,))
        return Program(self._is_own, (record, Put(self._place(), Constant(0))))

    def learning(self, site: Expr, pointer: Pointer) -> Program:
        """Return the program at a call through a pointer: it records a target that differs from the last one.

        site: its number.
        """
        target: Expr = Register(pointer.register)
        if pointer.offset is not None:
            target = Load(fold.binary(Op.ADD, target, fold.constant(pointer.offset), 64, False), WORD, False)
        scaled = fold.binary(Op.MUL, site, fold.constant(WORD), 64, False)
        last = fold.binary(Op.ADD, scaled, fold.constant(self.address + TARGETS), 64, False)
        is_new = fold.binary(Op.NE, target, self._load(last), 64, False)
        record = self._record(records.LED, "a target", (self.thread.task, site, target))
        return Program(And(self._is_own, is_new), (record, Put(last, target)))

    def _entered(self, number: Expr, pushed: int = 0) -> Emit:
        stack = fold.binary(Op.ADD, Register(self.stack), fold.constant(pushed), 64, False)
        fields = (self.thread.task, _packed(number, stack), *map(Register, self.arguments))
        return self._record(records.ENTERED, "an entry", fields)

    def _returned(self, number: Expr) -> Emit:
        value = (Register(self.value),) if self.value else ()
        return self._record(records.RETURNED, "a return", (self.thread.task, _packed(number, self._owner), *value))

    def _record(self, kind: int, name: str, fields: tuple[Operand, ...]) -> Emit:
        columns = tuple(Column(f"word {number}", Form.UNSIGNED) for number in range(len(fields)))
        return Emit(Records(name, columns, kind=kind), fields)

    @property
    def _is_own(self) -> Expr:
        is_here = _same(self._owner, self.thread.task)
        return And(is_here, _same(self._load(self._place(WORD)), self.thread.birth))

    @property
    def _state(self) -> Expr:
        is_free = Choose(self._owner, _same(self._owner, self.thread.task), Constant(1))
        return Choose(self._is_own, _OWN, Choose(is_free, _FREE, _TAKEN))

    @property
    def _owner(self) -> Expr:
        """The task that has the thread's place; 0 for none."""
        return self._load(self._place())

    def _place(self, offset: int = 0) -> Expr:
        mixed = fold.binary(Op.MUL, self.thread.task, fold.constant(FACTOR), 64, False)
        shifted = fold.binary(Op.SHR, mixed, fold.constant(SHIFT), 64, False)
        scaled = fold.binary(Op.AND, shifted, fold.constant(PLACES - PLACE), 64, False)
        return fold.binary(Op.ADD, scaled, fold.constant(self.address + offset), 64, False)

    @property
    def _scrap(self) -> Expr:
        return Constant(self.address + PLACES)

    @staticmethod
    def _load(place: Expr) -> Expr:
        return Load(place, WORD, False, mapped=True)


def _packed(number: Expr, word: Expr) -> Expr:
    shifted = fold.binary(Op.SHL, word, fold.constant(records.NUMBER), 64, False)
    return fold.binary(Op.OR, shifted, number, 64, False)


def _same(left: Expr, right: Expr) -> Expr:
    return fold.binary(Op.EQ, left, right, 64, False)
