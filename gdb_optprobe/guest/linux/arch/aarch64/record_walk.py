"""Walk the kernel's stack at a hit by its frame records: frame_records.py as statements of a program (handlers/ir.py).

Whether the innermost function has made its record follows from its code, when the probe is added. Every read may be of
memory that is not there, which ends the walk. Behind an exception comes the code that it has interrupted; whether that
has a record is not known at a hit, and where it has none its caller is left out, as in the kernel's own traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.aarch64 import current
from gdb_optprobe.guest.linux.arch.aarch64.frame_records import MODE, SAVED_PC, SAVED_STATE, FrameRecords
from gdb_optprobe.guest.linux.arch.aarch64.stacks import KERNEL_HALF, SIGNED
from gdb_optprobe.guest.linux.arch.aarch64.vectors import frame_size, thread_size
from gdb_optprobe.guest.linux.arch.base import WalkedFrom
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    WORD,
    Assign,
    Break,
    Constant,
    Expr,
    If,
    Op,
    Or,
    Register,
    Statement,
    Variable,
)
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.stack_walk import LOST, PC, binary, plus, word
from gdb_optprobe.isa.aarch64.abi import FP, LR
from gdb_optprobe.isa.aarch64.abi import PC as NIP

_FP, _FIRST, _REGS, _STATE = (Variable(f"%walk.{name}") for name in ("fp", "first", "regs", "state"))
_SAVED_FP = 29 * WORD
_OF_32_BITS = 1 << 4
"""Of PSTATE: nRW."""
_USER_BITS = 48
INTERRUPTED = "__irq_regs"


@dataclass(frozen=True)
class RecordWalk:
    """A Walker. has_record: whether the innermost function has made it. interrupted: the registers of the code that the
    stack is asked of instead.
    """

    place: WalkedFrom
    has_record: bool
    interrupted: Expr | None

    @property
    def begin(self) -> Sequence[Statement]:
        if self.interrupted is not None:
            is_kernel = binary(Op.AND, word(_REGS, SAVED_STATE, mapped=False), MODE)
            saved = Assign(PC, word(_REGS, SAVED_PC, mapped=False)), Assign(_FP, word(_REGS, _SAVED_FP, mapped=False))
            nothing = Assign(_FIRST, Constant(0)), Assign(PC, Constant(0)), Assign(_FP, Constant(0))
            return (*nothing, Assign(_REGS, self.interrupted), If(is_kernel, saved))
        returned = self.place.returned
        is_first = returned is None and not self.has_record
        at = fold.constant(self.place.address) if returned is None else returned
        return (Assign(PC, at), Assign(_FP, Register(FP)), Assign(_FIRST, Constant(int(is_first))))

    @property
    def step(self) -> Sequence[Statement]:
        unaligned, half = binary(Op.AND, _FP, WORD - 1), binary(Op.AND, _FP, 1 << KERNEL_HALF)
        record = (
            If(Or(unaligned, binary(Op.EQ, half, 0)), (Break(),)),
            Assign(PC, word(_FP, WORD, mapped=False)),
            Assign(_FP, word(_FP, mapped=False)),
        )
        first = Assign(_FIRST, Constant(0)), Assign(PC, Register(LR))
        return (
            If(_FIRST, first, record) if not self.has_record else If(Constant(1), record),
            # The end has a record of zeros, and what cannot be read is 0.
            If(binary(Op.EQ, PC, 0), (Break(),)),
            Assign(PC, binary(Op.OR, PC, SIGNED)),
        )


@dataclass(frozen=True)
class UserWalk:
    """A Walker of a program's frame records."""

    begin: Sequence[Statement]

    @property
    def step(self) -> Sequence[Statement]:
        beyond = binary(Op.GE, _FP, 1 << _USER_BITS)
        return (
            If(Or(Or(binary(Op.EQ, _FP, 0), beyond), binary(Op.AND, _FP, WORD - 1)), (Break(),)),
            Assign(PC, binary(Op.AND, word(_FP, WORD, mapped=False), (1 << _USER_BITS) - 1)),
            If(binary(Op.EQ, PC, 0), (Break(),)),
            Assign(_FP, word(_FP, mapped=False)),
        )


def walker(kernel: Kernel, unwinder: FrameRecords, place: WalkedFrom) -> RecordWalk:
    """Return the walk from a probed instruction. Raises OptprobeError."""
    if unwinder.code.function(place.address) is None:
        raise NoSuchKernel("what the probed code has done to its stack is not known")
    interrupted: Expr | None = None
    if place.interrupted is not None:
        interrupted = place.interrupted.registers or current.variable(kernel.address(INTERRUPTED), WORD)
    return RecordWalk(place, unwinder.has_record(place.address), interrupted)


def user_walker(kernel: Kernel) -> UserWalk:
    """Return the walk of a hit in the kernel: its thread's program has left its registers at the stack's end. Raises
    OptprobeError.
    """
    task = current.current(kernel).task
    if isinstance(task, Missing):
        raise NoSuchKernel(task.message, task.hint)
    stack = word(task, kernel.offset("task_struct", "stack"))
    regs = plus(stack, thread_size(kernel) - frame_size(kernel))
    state = binary(Op.AND, _STATE, MODE)
    found = (
        Assign(PC, word(_REGS, SAVED_PC)),
        If(
            binary(Op.AND, _STATE, _OF_32_BITS),
            (Assign(LOST, Constant(1)),),
            (Assign(_FP, word(_REGS, _SAVED_FP)),),
        ),
    )
    return UserWalk(
        (
            Assign(PC, Constant(0)),
            Assign(_FP, Constant(0)),
            Assign(_REGS, regs),
            Assign(_STATE, word(_REGS, SAVED_STATE)),
            If(binary(Op.EQ, state, 0), found),
        )
    )


def of_program() -> UserWalk:
    """Return the walk of a hit in a program."""
    return UserWalk((Assign(PC, Register(NIP)), Assign(_FP, Register(FP))))
