"""Find whether an instruction begins at an address of a program without symbols, by decoding the code before it.

Decoding from a wrong byte soon meets the real instructions. If it does so from every byte that it starts from, and the
same instruction spans the address, none begins there. An address behind a prefix counts as inside the instruction,
even if code jumps there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdb_optprobe.isa.base import Insn

BEFORE = 128
STARTS = 16
"""The number of bytes that decoding starts from, one after the other: the longest instruction has as many."""


def enclosing(read: Callable[[int], Sequence[Insn]], first: int, address: int) -> Insn | None:
    """Return the instruction that spans `address`, from wherever the code is decoded; None where one may begin there.

    read: returns the instructions from an address on. first: where code begins.
    """
    if address - first < BEFORE:
        return None
    codes = (read(start) for start in range(first, first + STARTS))
    found = {_containing(code, address) for code in codes if code and code[-1].end > address}
    return found.pop() if len(found) == 1 else None


def _containing(code: Sequence[Insn], address: int) -> Insn | None:
    return next((insn for insn in code if insn.address < address < insn.end), None)
