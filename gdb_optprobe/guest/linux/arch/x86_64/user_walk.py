"""Walk the stack of the program that a thread runs by its frame pointers: perf_callchain_user, arch/x86/events/core.c.

    pt_regs at the end of the thread's stack: rip, rbp ─► │ caller's rbp │ return address │ ─► …
A probe on a program has the same registers.
Code without frame pointers leads anywhere, or to the end: the frames are those that its registers lead to, as in perf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.x86_64 import current
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import PT_REGS
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers.ir import WORD, Assign, Break, Constant, Expr, If, Op, Or, Register, Statement, Variable
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.stack_walk import LOST, PC, binary, word

_FP, _REGS, _CS = (Variable(f"%walk.{name}") for name in ("fp", "regs", "cs"))
_USER, _OF_64_BITS = 3, 0x33  # asm/segment.h: __USER_CS
_BEYOND = 1 << 56
"""No program has memory there."""
_OF_32_BITS = (Assign(_FP, Constant(0)), Assign(LOST, Constant(1)))
"""Their frames are not walked."""


@dataclass(frozen=True)
class UserWalk:
    """A Walker."""

    begin: Sequence[Statement]

    @property
    def step(self) -> Sequence[Statement]:
        return (
            If(Or(binary(Op.EQ, _FP, 0), binary(Op.GE, _FP, _BEYOND)), (Break(),)),
            # What cannot be read is 0.
            Assign(PC, word(_FP, WORD, mapped=False)),
            If(binary(Op.EQ, PC, 0), (Break(),)),
            Assign(_FP, word(_FP, mapped=False)),
        )


def walker(kernel: Kernel) -> UserWalk:
    """Return the walk of a hit in the kernel. Raises OptprobeError."""
    top = current.stack_top(kernel)
    if isinstance(top, Missing):
        raise NoSuchKernel(top.message, top.hint)
    return from_stack(top)


def from_stack(top: Expr) -> UserWalk:
    """Return the walk of a hit in the kernel. top: the end of the running thread's stack."""

    def saved(name: str) -> Expr:
        return word(_REGS, WORD * PT_REGS.index(name))

    is_program = binary(Op.AND, _CS, _USER)
    # A thread of the kernel has zeros there.
    return UserWalk(
        (
            Assign(PC, Constant(0)),
            Assign(_FP, Constant(0)),
            Assign(_REGS, binary(Op.SUB, top, WORD * len(PT_REGS))),
            Assign(_CS, saved("cs")),
            If(
                binary(Op.EQ, _CS, _OF_64_BITS),
                (Assign(PC, saved("rip")), Assign(_FP, saved("rbp"))),
                (If(is_program, (Assign(PC, saved("rip")), *_OF_32_BITS)),),
            ),
        )
    )


def of_program(bits: int) -> UserWalk:
    """Return the walk of a hit in a program of so many bits."""
    others = _OF_32_BITS if bits != 64 else (Assign(_FP, Register("rbp")),)
    return UserWalk((Assign(PC, Register("rip")), *others))
