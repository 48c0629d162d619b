"""Walk the stack of the program that a thread runs: perf_callchain_user_64(), arch/powerpc/perf/callchain_64.c.

    pt_regs where the thread has entered the kernel: nip, lr, r1 ─► │ back chain │ … │ LR of the callee │ ─► …
Whether lr is the caller's address is not known at a hit: it is the second frame, as perf has it. The pt_regs are found
by the kernel's own back chain, which ends in the frame that has them. A probe on a program has the same registers. A
function that has been returned to has lost what was in lr, and has its own return address behind its back chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.ppc64le.back_chain import PT_REGS
from gdb_optprobe.guest.linux.arch.ppc64le.chain_walk import ChainWalk
from gdb_optprobe.handlers.ir import WORD, Assign, Break, Constant, Expr, If, Op, Or, Register, Statement, Variable
from gdb_optprobe.handlers.stack_walk import PC, binary, word
from gdb_optprobe.isa.ppc64le.abi import LR, LR_SAVE, SP
from gdb_optprobe.isa.ppc64le.abi import PC as NIP

_CHAIN, _LINK = (Variable(f"%walk.{name}") for name in ("chain", "link"))
_BEYOND = 1 << 60
"""No program has memory there."""


@dataclass(frozen=True)
class UserWalk:
    """A Walker."""

    begin: Sequence[Statement]

    @property
    def step(self) -> Sequence[Statement]:
        unaligned = binary(Op.AND, _CHAIN, WORD - 1)
        return (
            If(Or(Or(binary(Op.EQ, _CHAIN, 0), binary(Op.GE, _CHAIN, _BEYOND)), unaligned), (Break(),)),
            # What cannot be read is 0. The first frame has no return address of its own in it.
            If(
                binary(Op.NE, _LINK, 0),
                (Assign(PC, _LINK), Assign(_LINK, Constant(0))),
                (Assign(PC, word(_CHAIN, LR_SAVE, mapped=False)),),
            ),
            If(binary(Op.EQ, PC, 0), (Break(),)),
            Assign(_CHAIN, word(_CHAIN, mapped=False)),
        )


def walker(kernel: ChainWalk) -> UserWalk:
    """Return the walk of a hit in the kernel. kernel: of the kernel's stack there."""
    regs, found = kernel.to_program()

    def saved(name: str) -> Expr:
        return word(regs, WORD * PT_REGS.index(name))

    is_there = If(regs, (Assign(PC, saved(NIP)), Assign(_CHAIN, saved(SP)), Assign(_LINK, saved(LR))))
    return UserWalk((*found, Assign(PC, Constant(0)), is_there))


def of_program(returned: bool) -> UserWalk:
    """Return the walk of a hit in a program. returned: to its function, from another one."""
    sp: Expr = Register(SP)
    chain, link = (word(sp, mapped=False), Constant(0)) if returned else (sp, Register(LR))
    return UserWalk((Assign(PC, Register(NIP)), Assign(_CHAIN, chain), Assign(_LINK, link)))
