"""What code that writes into programs needs of an instruction set: see guest/linux/user/writer.py for all of it.

    table ─► 0 registers `table` and `pc` as they were │ 16 whether it is done with │ 24 rows, until a mm of 0
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
    """pc, table: the registers that set a vCPU on its way. read: what `back` needs. last: see `code`."""

    pc: str
    table: str
    read: tuple[str, ...]
    last: int

    def code(self, address: int, write: int, put: int) -> bytes:
        """At `address`: calls write(mm, address, data, size, flags) and put(mm) for each row; as it was before, on.

        Its last instruction, of `last` bytes, goes back. Raises OutOfReach.
        """

    def back(self, registers: Mapping[str, int], word: Callable[[int], int]) -> Mapping[str, int]:
        """What the last instruction would do to registers. word: 8 bytes of the kernel's memory."""
