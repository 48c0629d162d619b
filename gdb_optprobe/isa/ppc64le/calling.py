"""Encode a call of a function, by the C calling convention (ELFv2 ABI, 2.2.2); only the stack is written.

    stdu r1, -FRAME(r1)               below what the interrupted function may use
    std r0, r2 … r12; LR, CR, CTR, XER     what a function may change, and the TOC
    ld r4, cell; 1: ldarx r3, 0, r4; stdcx. r0, 0, r4; bne 1b      of a call that takes a cell, r0 being 0
    li r3, argument …
    ld r12, function; mtctr r12; bctrl     through the global entry, which makes its TOC of r12 (2.3.2.1)
    ld r4, cell; std r3, 0(r4)             of a call that gives one
    std 0, 16(r1)                     returned; no return address into the thunk stays below the stack
    …; addi r1, r1, FRAME             all is what it was
    b back                            done
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.isa.calling import Calling, Thunk
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.abi import ARGUMENTS, HEADER, LR_SAVE, PC, RED_ZONE, RETURN_VALUES
from gdb_optprobe.isa.ppc64le.encodings import FarBranch, Item, number, plain
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if

_SP, _ZERO, _CELL, _WORK = "r1", "r0", "r4", "r12"
_SAVED = ("r0", *(f"r{number}" for number in range(2, 13)))
_SPECIAL = (("mflr", "mtlr"), ("mfcr", "mtcr"), ("mfctr", "mtctr"), ("mfxer", "mtxer"))
# A callee may store its arguments above the header (2.2.3.1); a frame is a multiple of 16 (2.2.2.1).
_PLACE = HEADER + 8 * len(ARGUMENTS)
_FRAME = -(-(_PLACE + 8 * (len(_SAVED) + len(_SPECIAL))) // 16) * 16 + RED_ZONE
_WORD = 4


def _thunk(
    address: int, function: int, arguments: Sequence[int], back: int, takes: int | None = None, gives: int | None = None
) -> Thunk:
    calls = [*_save(), *_call(function, arguments, takes, gives)]
    restores = [*_restore()]
    code = encodings.encode_items([*calls, *restores, FarBranch(back)], address)
    done = address + len(code) - _WORD
    return Thunk(address, code, done - _WORD * len(restores), done, back)


def _save() -> Iterator[Item]:
    yield number("stdu", _SP, _SP, -_FRAME)
    for place, name in enumerate(_SAVED):
        yield number("std", name, _SP, _PLACE + 8 * place)
    for place, (get, _) in enumerate(_SPECIAL, len(_SAVED)):
        yield from (plain(get, _WORK), number("std", _WORK, _SP, _PLACE + 8 * place))


def _call(function: int, arguments: Sequence[int], takes: int | None, gives: int | None) -> Iterator[Item]:
    first = ARGUMENTS[0]
    if takes is not None:
        again = Label()
        yield from (*_load(_CELL, takes), number("addi", _ZERO, "r0", 0))
        yield from (again, plain("ldarx", first, "r0", _CELL), plain("stdcx.", _ZERO, "r0", _CELL))
        yield branch_if(Comparison.NE, again)
    for register, value in zip(ARGUMENTS[takes is not None :], arguments, strict=False):
        yield from _load(register, value)
    yield from (*_load(_WORK, function), plain("mtctr", _WORK), plain("bctrl"))
    if gives is not None:
        yield from (*_load(_CELL, gives), number("std", first, _CELL, 0))


def _restore() -> Iterator[Item]:
    yield from (number("addi", _WORK, _ZERO, 0), number("std", _WORK, _SP, LR_SAVE))
    for place, (_, put_back) in enumerate(_SPECIAL, len(_SAVED)):
        yield from (number("ld", _WORK, _SP, _PLACE + 8 * place), plain(put_back, _WORK))
    for place, name in enumerate(_SAVED):
        yield number("ld", name, _SP, _PLACE + 8 * place)
    yield number("addi", _SP, _SP, _FRAME)


def _load(register: str, value: int) -> Sequence[int]:
    return load(int(register[1:]), value)


class _Calling:
    pc = PC
    result = RETURN_VALUES[0]
    arguments = 3

    thunk = staticmethod(_thunk)


CALLING = _Calling()
_: Calling = CALLING
