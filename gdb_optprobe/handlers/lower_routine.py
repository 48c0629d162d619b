"""Lower the program of a block's probes once, as a routine that all their detours call (isa/routines.py).

    return address ─► index of the detour in its block ─► its counter
           └────────► its complement, the first column of each key of a table
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    WORD,
    Cell,
    Constant,
    Expr,
    HashMap,
    Load,
    Op,
    Program,
    Register,
    Statement,
    UnaryOp,
    Update,
)
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.trap_frame import replace_register
from gdb_optprobe.isa.base import Code, joined
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.maps.aggregate import MASK

Node = TypeVar("Node")
INDEX = Register("index")
"""What a program that is lowered so reads as the index of the detour that calls it: no register of a machine."""


@dataclass(frozen=True, slots=True)
class Callers:
    """Where the detours are that call a routine: the first of them, and the bytes from one to the next.

    before: what INDEX is of the first.
    """

    first: int
    step: int
    before: int = 0


def return_address(calls: RoutineCalls, isa: Isa) -> Expr:
    """Return the word that a routine has where its call returns to."""
    if calls.link is not None:
        return Register(calls.link)
    return Load(Register(isa.sp), WORD, signed=False, mapped=True)


def caller_key(address: int) -> int:
    """Return what represents in keys a detour with a call that returns to `address`.

    Not the address itself: it would stay in a register behind the routine, and look like a return into the detour.
    """
    return ~address & MASK


def with_index(node: Node, index: Expr) -> Node:
    """Return a program, or a part of one, that reads `index` as the index of its detour."""
    return replace_register(node, INDEX.name, index)


def lower_routine(
    program: Program, callers: Callers, around: LoweringContext, calls: RoutineCalls, isa: Isa
) -> Code:
    """Return the code of a routine that does what `program` does, with an array of words in the place of each cell.

    A table's first column is the function, of which there is `caller_key`. Elsewhere INDEX is that of the detour.
    around: objects are the addresses of the arrays and tables. dead: at every call. Raises NotLowered.
    """
    back = return_address(calls, isa)
    key = fold.unary(UnaryOp.INVERT, back, 64, False)
    distance = fold.binary(Op.SUB, back, Constant(callers.first + calls.behind), 64, False)
    # The distance is a multiple of the step: what is left of that behind its zeros has an inverse, modulo 2**64.
    zeros = (callers.step & -callers.step).bit_length() - 1
    steps = fold.binary(Op.SHR, distance, Constant(zeros), 64, False)
    index = fold.binary(Op.MUL, steps, Constant(pow(callers.step >> zeros, -1, 1 << 64)), 64, False)

    among_all = fold.binary(Op.ADD, index, fold.constant(callers.before), 64, False)

    def of_caller(action: Statement) -> Statement:
        if not isinstance(action, Update):
            return with_index(action, among_all)
        assert isinstance(action.target, Cell | HashMap), "no other map is in a block"
        return replace(action, by=(index,) if isinstance(action.target, Cell) else (key, *action.by[1:]))

    actions = tuple(of_caller(action) for action in program.actions)
    dead = replace(around.dead, registers=around.dead.registers - calls.changed)
    whole = Program(with_index(program.condition, among_all), actions)
    code = lower(whole, replace(around, dead=dead), isa.codegen)
    return joined((code, lambda at: calls.back))
