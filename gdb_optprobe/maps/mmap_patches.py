"""A table of patches of files: the mmap hook in the guest writes them into each new mapping.

    threads that │ failures │ row │ row │ … │ 0
    read it now  │          │
    row    inode │ offset in the file │ size │ 0 │ data: 16 bytes │ the file's own bytes: 16
Rows are applied in order. While no thread reads the table, all of it may be rewritten. While one does, rows are only
appended, and a row that is not wanted any more gets the file's own bytes, for a thread that is about to write it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

INSIDE, FAILED, ROWS = 0, 8, 16
INODE, OFFSET, LENGTH, DATA, OLD = 0, 8, 16, 32, 48
LONGEST = 16
SIZE = 64
_ROW = struct.Struct(f"<QQQ8x{LONGEST}s{LONGEST}s")
DISABLED = 1
"""In place of an inode: a row that is not applied."""


@dataclass(frozen=True, slots=True)
class MmapPatch:
    """`data` at `offset` of every mapping of the file, in place of `old`, the file's own bytes."""

    inode: int
    offset: int
    data: bytes
    old: bytes

    def split(self) -> tuple[MmapPatch, ...]:
        """Return the same patch as rows that a table can hold."""
        parts = [(at, slice(at, at + LONGEST)) for at in range(0, len(self.data), LONGEST)]
        return tuple(MmapPatch(self.inode, self.offset + at, self.data[part], self.old[part]) for at, part in parts)

    def encode(self) -> bytes:
        """Encode the row."""
        return _ROW.pack(self.inode, self.offset, len(self.data), self.data, self.old)

    def encode_disabled(self) -> bytes:
        """Encode the row that replaces it while a thread may read the table."""
        return _ROW.pack(DISABLED, self.offset, len(self.data), self.old, self.old)


def encode(rows: Sequence[MmapPatch], room: int) -> bytes:
    """Encode all rows of a table with room for so many, and the end mark."""
    return b"".join(row.encode() for row in rows).ljust((room + 1) * SIZE, b"\0")


def size(room: int) -> int:
    """Return the bytes of a table with room for so many rows."""
    return ROWS + (room + 1) * SIZE
