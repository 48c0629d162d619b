"""The code that writes into programs, as an instruction set implements it: see writer.py for the whole.

    table ─► 0 registers `table` and `pc` as they were │ 16 whether it is done      │ 24 rows, until a mm of 0
    row      0 mm │ 8 address │ 16 where the data is │ 24 its size │ 28 flags │ 32 how many bytes were written
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Protocol

HEAD = struct.Struct("<QQQ")
DONE = 16
ROW = struct.Struct("<QQQIIi4x")


class Writing(Protocol):
    """pc, table: the registers that start a vCPU. read: the registers that `back` needs. last: see `code`."""

    pc: str
    table: str
    read: tuple[str, ...]
    last: int

    def code(self, address: int, write: int, put: int) -> bytes:
        """Return the code for `address`: it calls write(mm, address, data, size, flags) and put(mm) for each row.
        Then it restores all registers; its last instruction, of `last` bytes, returns. Raises OutOfReach.
        """

    def back(self, registers: Mapping[str, int], word: Callable[[int], int]) -> Mapping[str, int]:
        """Return the registers after the last instruction. word: reads 8 bytes of the kernel's memory."""
