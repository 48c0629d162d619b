"""Walk the stack of the program that a thread runs: perf_callchain_user(), arch/arm64/kernel/perf_callchain.c.

    pt_regs at the end of the thread's stack: pc, x29 ─► │ caller's x29 │ return address │ ─► …
A probe on a program has the same registers. A function that has made no record yet, or makes none, lacks its caller, as
in perf. Return addresses may be signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.aarch64 import vectors
from gdb_optprobe.guest.linux.arch.aarch64.frame_records import MODE, SAVED_PC, SAVED_STATE
from gdb_optprobe.guest.linux.arch.aarch64.record_walk import SAVED_FP, thread_stack
from gdb_optprobe.guest.linux.arch.aarch64.stacks import SIGNED
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.ir import WORD, Assign, Break, Constant, Expr, If, Op, Or, Register, Statement, Variable
from gdb_optprobe.handlers.stack_walk import LOST, PC, binary, plus, word
from gdb_optprobe.isa.aarch64.abi import FP
from gdb_optprobe.isa.aarch64.abi import PC as PROGRAM_COUNTER

_FP, _REGS, _STATE = (Variable(f"%walk.{name}") for name in ("fp", "regs", "state"))
_AARCH32 = 1 << 4
"""Of PSTATE."""
_BEYOND = 1 << 56
"""No program has memory there."""
_UNWALKED: tuple[Statement, ...] = (Assign(_FP, Constant(0)), Assign(LOST, Constant(1)))
"""Frames of AArch32's programs are not walked."""


@dataclass(frozen=True)
class UserWalk:
    """A Walker."""

    begin: Sequence[Statement]

    @property
    def step(self) -> Sequence[Statement]:
        unaligned = binary(Op.AND, _FP, 2 * WORD - 1)
        return (
            If(Or(Or(binary(Op.EQ, _FP, 0), binary(Op.GE, _FP, _BEYOND)), unaligned), (Break(),)),
            # What cannot be read is 0.
            Assign(PC, binary(Op.AND, word(_FP, WORD, mapped=False), ~SIGNED)),
            If(binary(Op.EQ, PC, 0), (Break(),)),
            Assign(_FP, word(_FP, mapped=False)),
        )


def walker(kernel: Kernel) -> UserWalk:
    """Return the walk of a hit in the kernel. Raises OptprobeError."""
    return from_stack(thread_stack(kernel), vectors.thread_size(kernel), vectors.frame_size(kernel))


def from_stack(stack: Expr, size: int, registers: int) -> UserWalk:
    """Return the walk of a hit in the kernel. stack: the start of the running thread's. registers: size of pt_regs."""
    of_program = If(
        binary(Op.AND, _STATE, _AARCH32),
        (Assign(PC, word(_REGS, SAVED_PC)), *_UNWALKED),
        (Assign(PC, word(_REGS, SAVED_PC)), Assign(_FP, word(_REGS, SAVED_FP))),
    )
    # A thread of the kernel has the kernel's mode there.
    return UserWalk(
        (
            Assign(PC, Constant(0)),
            Assign(_FP, Constant(0)),
            Assign(_REGS, plus(stack, size - registers)),
            Assign(_STATE, word(_REGS, SAVED_STATE)),
            If(binary(Op.EQ, binary(Op.AND, _STATE, MODE), 0), (of_program,)),
        )
    )


def of_program(bits: int) -> UserWalk:
    """Return the walk of a hit in a program of so many bits."""
    others = _UNWALKED if bits != 64 else (Assign(_FP, Register(FP)),)
    return UserWalk((Assign(PC, Register(PROGRAM_COUNTER)), *others))
