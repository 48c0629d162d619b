"""Where an instruction begins in a program without symbols: told by reading the code before it.

Code that is read from a wrong byte soon comes to its instructions. Where it does from whatever byte it can be read
from, and one of them goes on at an address, none begins there. What is jumped to behind a prefix is taken for such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdb_optprobe.isa.base import Insn

BEFORE = 128
STARTS = 16
"""How many bytes the code is read from, one after the other: those of one instruction, at most."""


def enclosing(read: Callable[[int], Sequence[Insn]], first: int, address: int) -> Insn | None:
    """The instruction that `address` is in the middle of, however the code is read; None where one may begin there.

    read: the instructions from an address on. first: from where on.
    """
    if address - first < BEFORE:
        return None
    codes = (read(start) for start in range(first, first + STARTS))
    found = {_containing(code, address) for code in codes if code and code[-1].end > address}
    return found.pop() if len(found) == 1 else None


def _containing(code: Sequence[Insn], address: int) -> Insn | None:
    return next((insn for insn in code if insn.address < address < insn.end), None)
