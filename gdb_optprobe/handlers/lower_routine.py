"""Lower the program of a block's probes once, as a routine that all their detours call (isa/routines.py).

    return address ─► index of the detour in its block ─► its counter
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import WORD, Cell, Constant, Expr, Load, Op, Program, Register, Update
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.base import Code, joined
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.routines import RoutineCalls


@dataclass(frozen=True, slots=True)
class Callers:
    """Where the detours are that call a routine: the first of them, and the bytes from one to the next."""

    first: int
    step: int


def return_address(calls: RoutineCalls, isa: Isa) -> Expr:
    """Return the word that a routine has where its call returns to."""
    if calls.link is not None:
        return Register(calls.link)
    return Load(Register(isa.sp), WORD, signed=False, mapped=True)


def lower_routine(
    program: Program, callers: Callers, around: LoweringContext, calls: RoutineCalls, isa: Isa
) -> Code:
    """Return the code of a routine that does what `program` does, with an array of words in the place of each cell.

    around: objects are the addresses of the arrays. dead: at every call. Raises NotLowered.
    """
    distance = fold.binary(Op.SUB, return_address(calls, isa), Constant(callers.first + calls.behind), 64, False)
    # The distance is a multiple of the step: what is left of that behind its zeros has an inverse, modulo 2**64.
    zeros = (callers.step & -callers.step).bit_length() - 1
    steps = fold.binary(Op.SHR, distance, Constant(zeros), 64, False)
    index = fold.binary(Op.MUL, steps, Constant(pow(callers.step >> zeros, -1, 1 << 64)), 64, False)

    def indexed(action: object) -> Update:
        assert isinstance(action, Update) and isinstance(action.target, Cell), "nothing else is in a block"
        return Update(action.target, action.value, (index,))

    actions = tuple(indexed(action) for action in program.actions)
    dead = replace(around.dead, registers=around.dead.registers - calls.changed)
    code = lower(Program(program.condition, actions), replace(around, dead=dead), isa.codegen)
    return joined((code, lambda at: calls.back))
