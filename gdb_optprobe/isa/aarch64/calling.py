"""Encode a call of a function, by the procedure call standard; only the stack is written.

    stp x0, x1, [sp, #-FRAME]! … x18, x30; the flags      what a function may change
    ldr x16, cell; 1: ldxr x0, [x16]; stxr w17, xzr, [x16]; cbnz w17, 1b      of a call that takes a cell
    mov x0, argument …; those behind the eighth on the stack
    mov x16, function; blr x16        x16 is the register with which a landing pad is entered
    mov x16, cell; str x0, [x16]      of a call that gives one
    sub x16, sp, #BELOW; 1: stp xzr, xzr, [x16], #16 …   returned; no return address into the thunk stays there
    …; ldp x0, x1, [sp], #FRAME       all is what it was
    b back                            done
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.isa.aarch64.abi import ARGUMENTS, FLAGS, LR, PC, RETURN_VALUES, SP
from gdb_optprobe.isa.aarch64.encodings import (
    FarBranch,
    Item,
    branch_on_zero,
    constant,
    encode_items,
    number,
    plain,
    scaled,
)
from gdb_optprobe.isa.aarch64.spill import Spills
from gdb_optprobe.isa.calling import Calling, Thunk
from gdb_optprobe.isa.codegen import EntryState, Label

_SAVED = (*(f"x{number}" for number in range(19)), LR, FLAGS)
_CELL, _FAILED = "x16", "x17"
_BELOW = 1024
"""Bytes below the stack pointer that are zeroed: where a function of a usual frame has stored its return address."""
_WORD = 4


def _thunk(
    address: int, function: int, arguments: Sequence[int], back: int, takes: int | None = None, gives: int | None = None
) -> Thunk:
    spills = Spills(EntryState())
    calls = [*spills.save(_SAVED), *_call(function, arguments, takes, gives)]
    restores = [*_wipe(), *spills.restore()]
    code = encode_items([*calls, *restores, FarBranch(back)], address)
    done = address + len(code) - _WORD
    returned = address + len(encode_items(calls))
    return Thunk(address, code, returned, done, back)


def _call(function: int, arguments: Sequence[int], takes: int | None, gives: int | None) -> Iterator[Item]:
    if takes is not None:
        again = Label()
        yield from constant(_CELL, takes)
        yield again
        yield from (plain("ldxr", ARGUMENTS[0], _CELL), plain("stxr", "xzr", _CELL, _FAILED))
        yield branch_on_zero("cbnzw", _FAILED, again)
    registers = ARGUMENTS[takes is not None :]
    stacked = arguments[len(registers) :]
    room = -(-8 * len(stacked) // 16) * 16
    if stacked:
        yield number("subi", SP, SP, room)
    for place, value in enumerate(stacked):
        yield from (*constant(_CELL, value), scaled("str", _CELL, SP, 8 * place, 8))
    for register, value in zip(registers, arguments, strict=False):
        yield from constant(register, value)
    yield from (*constant(_CELL, function), plain("blr", n=_CELL))
    if stacked:
        yield number("addi", SP, SP, room)
    if gives is not None:
        yield from (*constant(_CELL, gives), scaled("str", RETURN_VALUES[0], _CELL, 0, 8))


def _wipe() -> Iterator[Item]:
    """Yield code that zeroes what is below the stack. An interrupt that comes meanwhile ends before the next store."""
    at, left, again = _CELL, _FAILED, Label()
    yield from (number("subi", at, SP, _BELOW), *constant(left, _BELOW // 16))
    yield again
    yield from (plain("zero_pair", n=at), number("subi", left, left, 1))
    yield branch_on_zero("cbnz", left, again)


class _Calling:
    pc = PC
    result = RETURN_VALUES[0]
    arguments = 9

    thunk = staticmethod(_thunk)


CALLING = _Calling()
_: Calling = CALLING
