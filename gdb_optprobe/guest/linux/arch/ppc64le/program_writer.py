"""The code that writes into programs on ppc64le: r31 has the table.

It runs at the entry of a kernel function, so CTR, r0, r11 and r12 hold nothing; all are kept but CTR, by which it
returns. The kernel's functions are called through their global entries, which make their TOC of r12 (ELFv2 ABI,
2.3.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gdb_optprobe.guest.linux.user.program_writer import DONE, HEAD, ROW, Writing
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.abi import CTR, HEADER, LR_SAVE, PC, RED_ZONE
from gdb_optprobe.isa.ppc64le.encodings import Item, LabelBranch, compare, number, plain
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if

_SP, _ROW, _TABLE = "r1", "r30", "r31"
_KEPT = ("r0", *(f"r{number}" for number in range(2, 13)), _ROW, _TABLE)
_SLOTS = {name: HEADER + 8 * place for place, name in enumerate((*_KEPT, PC, "lr", "cr", "xer"))}
# Multiples of 16 (2.2.2.1). The area for arguments of our calls lies below the saved registers.
_ARGUMENTS = 64
_FRAME = -(-(max(_SLOTS.values()) + 8 + _ARGUMENTS) // 16) * 16 + RED_ZONE
_SPECIAL = {"lr": ("mflr", "mtlr"), "cr": ("mfcr", "mtcr"), "xer": ("mfxer", "mtxer")}
_WORK = "r12"


class _Writing:
    pc = PC
    table = _TABLE
    read: tuple[str, ...] = (CTR,)
    last = 4

    def code(self, address: int, write: int, put: int) -> bytes:
        return encodings.encode_items([*_parts(write, put)], address)

    def back(self, registers: Mapping[str, int], word: Callable[[int], int]) -> Mapping[str, int]:
        return {PC: registers[CTR]}


def _slot(name: str) -> int:
    return _SLOTS[name] + _ARGUMENTS


def _parts(write: int, put: int) -> Iterator[Item]:
    again, end = Label(), Label()
    yield number("stdu", _SP, _SP, -_FRAME)
    yield from (number("std", name, _SP, _slot(name)) for name in _KEPT)
    # Copy the table's r31 and PC: the table may be in use by another writer when this one returns.
    for place, name in ((0, _TABLE), (8, PC)):
        yield from (number("ld", _WORK, _TABLE, place), number("std", _WORK, _SP, _slot(name)))
    for name, (get, _) in _SPECIAL.items():
        yield from (plain(get, _WORK), number("std", _WORK, _SP, _slot(name)))
    yield number("addi", _ROW, _TABLE, HEAD.size)
    yield from (again, number("ld", "r3", _ROW, 0), compare("cmpldi", 0, "r3", 0), branch_if(Comparison.EQ, end))
    yield from (number("ld", "r4", _ROW, 8), number("ld", "r5", _ROW, 16))
    yield from (number("lwz", "r6", _ROW, 24), number("lwz", "r7", _ROW, 28))
    yield from _call(write)
    yield from (number("stw", "r3", _ROW, 32), number("ld", "r3", _ROW, 0))
    yield from _call(put)
    yield from (number("addi", _ROW, _ROW, ROW.size), LabelBranch(again), end)
    # Clear LR that callees saved there: a scan of the stack would take it for a thread inside this code.
    yield from (number("addi", _WORK, "r0", 0), number("std", _WORK, _SP, LR_SAVE))
    for name, (_, put_back) in _SPECIAL.items():
        yield from (number("ld", _WORK, _SP, _slot(name)), plain(put_back, _WORK))
    yield from (number("ld", _WORK, _SP, _slot(PC)), plain("mtctr", _WORK))
    yield from (number("addi", _WORK, "r0", 1), number("std", _WORK, _TABLE, DONE))
    yield from (number("ld", name, _SP, _slot(name)) for name in _KEPT)
    yield from (number("addi", _SP, _SP, _FRAME), plain("bctr"))


def _call(function: int) -> Iterator[Item]:
    yield from (*load(12, function), plain("mtctr", "r12"), plain("bctrl"))


WRITING = _Writing()
_: Writing = WRITING
