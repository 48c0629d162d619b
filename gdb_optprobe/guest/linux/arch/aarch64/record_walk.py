"""Walk the kernel's stack at a hit by its frame records: frame_records.py as statements of a program (handlers/ir.py).

Whether the innermost function has made its record follows from its code, when the probe is added: if not, its caller is
in x30. Of an interrupted function that is not known at a hit: where it has made none yet its caller is left out, as in
the kernel's own stack traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.aarch64 import current, vectors
from gdb_optprobe.guest.linux.arch.aarch64.frame_records import (
    FP_NUMBER,
    MODE,
    SAVED_PC,
    SAVED_STATE,
    FrameRecords,
)
from gdb_optprobe.guest.linux.arch.aarch64.stacks import KERNEL_HALF, SIGNED
from gdb_optprobe.guest.linux.arch.base import WalkedFrom
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    WORD,
    And,
    Assign,
    Break,
    Constant,
    Expr,
    If,
    Loop,
    Op,
    Or,
    Register,
    Statement,
    Variable,
)
from gdb_optprobe.handlers.stack_walk import DEEPEST, LOST, PC, binary, lost, plus, word
from gdb_optprobe.isa.aarch64.abi import FP, LR, SP

SAVED_FP = FP_NUMBER * WORD
_AT, _FRAME, _REGS, _FIRST = (Variable(f"%walk.{name}") for name in ("at", "frame", "regs", "first"))
_SEEN = Variable("%walk.seen")
_RECORD = 2 * WORD


@dataclass(frozen=True)
class RecordWalk:
    """A Walker.

    in_link: the probed function has no record. stack, size: of the running thread.
    entry:   start and end of the text that exceptions lead to. record: where pt_regs has the record in it.
    """

    place: WalkedFrom
    in_link: bool
    stack: Expr
    size: int
    entry: tuple[int, int]
    record: int

    @property
    def begin(self) -> Sequence[Statement]:
        returned = self.place.returned
        own = (
            Assign(PC, fold.constant(self.place.address) if returned is None else returned),
            Assign(_AT, Register(SP)),
            Assign(_FRAME, Register(FP)),
            Assign(_FIRST, Constant(int(self.in_link and returned is None))),
        )
        if (interrupted := self.place.interrupted) is None:
            return own
        if interrupted.registers is not None:
            return (*own, Assign(_FIRST, Constant(0)), Assign(_REGS, interrupted.registers), *self._saved())
        up = (Assign(_SEEN, self._in_entry()), *self.step, If(_SEEN, (Break(),)))
        is_found = And(_SEEN, binary(Op.EQ, LOST, 0))
        return (*own, Assign(_SEEN, Constant(0)), Loop(up, most=DEEPEST), If(is_found, (), (Assign(PC, Constant(0)),)))

    @property
    def step(self) -> Sequence[Statement]:
        by_link = (Assign(_FIRST, Constant(0)), Assign(PC, Register(LR)), *_address(PC))
        regs = Assign(_REGS, plus(_FRAME, -self.record))
        by_registers = (regs, self._up_to(_REGS), self._up_to(_FRAME), *self._saved())
        by_record = (
            self._up_to(_FRAME),
            Assign(PC, word(_FRAME, WORD)),
            Assign(_AT, _FRAME),
            Assign(_FRAME, word(_FRAME)),
        )
        return (
            If(_FIRST, by_link, (If(self._in_entry(), by_registers, (*by_record, *_address(PC))),)),
            If(binary(Op.EQ, PC, 0), (Break(),)),
        )

    def _saved(self) -> tuple[Statement, ...]:
        """Return what goes to the code that an exception has interrupted; PC is 0 where that is a program's."""
        is_kernel = binary(Op.AND, word(_REGS, SAVED_STATE), MODE)
        found = (Assign(PC, word(_REGS, SAVED_PC)), Assign(_AT, _REGS), Assign(_FRAME, word(_REGS, SAVED_FP)))
        return (If(is_kernel, found, (Assign(PC, Constant(0)),)),)

    def _in_entry(self) -> Expr:
        return binary(Op.LT, plus(PC, -self.entry[0]), self.entry[1] - self.entry[0])

    def _up_to(self, place: Variable) -> Statement:
        """Return what ends the walk unless a record may be at `place`: further up in this stack, or in the thread's.

        Stacks are aligned to their size, records to theirs, and a pt_regs as one.
        """
        here = And(binary(Op.GE, place, _AT), self._same(place, _AT))
        elsewhere = binary(Op.EQ, self._same(_AT, self.stack), 0)
        return If(binary(Op.EQ, Or(here, And(elsewhere, self._same(place, self.stack))), 0), lost())

    def _same(self, place: Expr, stack: Expr) -> Expr:
        """Return whether two places are of one stack, and a number of whole records apart."""
        return binary(Op.EQ, binary(Op.AND, binary(Op.XOR, place, stack), ~(self.size - _RECORD)), 0)


def walker(kernel: Kernel, unwinder: FrameRecords, place: WalkedFrom) -> RecordWalk:
    """Return the walk from a probed instruction. Raises OptprobeError."""
    if not unwinder.record:
        raise NoSuchKernel("where an exception saves registers is not known")
    # A handler of a tracepoint has a record where it has a frame.
    in_link = not place.frame if place.frame is not None else unwinder.frame(place.address).record is None
    size = vectors.thread_size(kernel)
    return RecordWalk(place, in_link, thread_stack(kernel), size, unwinder.entry, unwinder.record)


def thread_stack(kernel: Kernel) -> Expr:
    """Return where the running thread's stack begins. Raises OptprobeError."""
    return word(current.THREAD, kernel.offset("task_struct", "stack"))


def _address(value: Variable) -> tuple[Statement, ...]:
    """Return what makes a signed address of the kernel's the address that it is."""
    is_kernel = binary(Op.AND, value, 1 << KERNEL_HALF)
    return (If(is_kernel, (Assign(value, binary(Op.OR, value, SIGNED)),)),)
