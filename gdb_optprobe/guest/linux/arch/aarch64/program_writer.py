"""The code that writes into programs on aarch64: x28 has the table.

It runs at the entry of a kernel function, so x16 and x17 hold nothing (AAPCS64, 6.1.1); all is kept but x17, by which
it returns. Callees store their return address in frames of any size below the stack pointer: that is zeroed, or a scan
of the stack would take it later for a thread inside this code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gdb_optprobe.guest.linux.user.program_writer import DONE, HEAD, ROW, Writing
from gdb_optprobe.isa.aarch64.abi import LR, PC, SP
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    branch_on_zero,
    constant,
    encode_items,
    jump,
    number,
    plain,
    scaled,
)
from gdb_optprobe.isa.codegen import Label

_ROW, _TABLE, _WORK, _BACK = "x27", "x28", "x16", "x17"
_KEPT = (*(f"x{number}" for number in range(17)), "x18", _ROW, _TABLE, LR)
_SLOTS = {name: 8 * place for place, name in enumerate((*_KEPT, PC, "nzcv"))}
_FRAME = -(-(max(_SLOTS.values()) + 8) // 16) * 16
BELOW = 1024
"""Bytes below the stack pointer that are zeroed."""


class _Writing:
    pc = PC
    table = _TABLE
    read: tuple[str, ...] = (_BACK,)
    last = 4

    def code(self, address: int, write: int, put: int) -> bytes:
        return encode_items([*_parts(write, put)], address)

    def back(self, registers: Mapping[str, int], word: Callable[[int], int]) -> Mapping[str, int]:
        return {PC: registers[_BACK]}


def _parts(write: int, put: int) -> Iterator[Item]:
    again, end = Label(), Label()
    yield number("subi", SP, SP, _FRAME)
    yield from (scaled("str", name, SP, _SLOTS[name], 8) for name in _KEPT)
    # Copy the table's x28 and PC: the table may be in use by another writer when this one returns.
    for place, name in ((0, _TABLE), (8, PC)):
        yield from (scaled("ldr", _WORK, _TABLE, place, 8), scaled("str", _WORK, SP, _SLOTS[name], 8))
    yield from (plain("get_nzcv", _WORK), scaled("str", _WORK, SP, _SLOTS["nzcv"], 8))
    yield from (number("addi", _ROW, _TABLE, HEAD.size), again, scaled("ldr", "x0", _ROW, 0, 8))
    yield from (branch_on_zero("cbz", "x0", end), scaled("ldr", "x1", _ROW, 8, 8), scaled("ldr", "x2", _ROW, 16, 8))
    yield from (scaled("ldrw", "x3", _ROW, 24, 4), scaled("ldrw", "x4", _ROW, 28, 4))
    yield from call(write)
    yield from (scaled("strw", "x0", _ROW, 32, 4), scaled("ldr", "x0", _ROW, 0, 8))
    yield from call(put)
    yield from (number("addi", _ROW, _ROW, ROW.size), jump(again), end)
    yield from wipe()
    yield from (scaled("ldr", _WORK, SP, _SLOTS["nzcv"], 8), plain("set_nzcv", _WORK))
    yield from (scaled("ldr", _BACK, SP, _SLOTS[PC], 8), *constant(_WORK, 1), scaled("str", _WORK, _TABLE, DONE, 8))
    yield from (scaled("ldr", name, SP, _SLOTS[name], 8) for name in _KEPT)
    yield from (number("addi", SP, SP, _FRAME), plain("ret", n=_BACK))


def call(function: int) -> Iterator[Item]:
    """Yield a call of a function anywhere; x16 is the register with which a landing pad is entered."""
    yield from (*constant(_WORK, function), plain("blr", n=_WORK))


def wipe() -> Iterator[Item]:
    """Yield code that zeroes what is below the stack, which loses x16 and x17. An interrupt that comes meanwhile ends
    before the next store.
    """
    again = Label()
    yield from (number("subi", _WORK, SP, BELOW), *constant(_BACK, BELOW // 16))
    yield again
    yield from (plain("zero_pair", n=_WORK), number("subi", _BACK, _BACK, 1), branch_on_zero("cbnz", _BACK, again))


WRITING = _Writing()
_: Writing = WRITING
