"""A table of the bytes of ours in files' mappings: what code in the guest writes into those that are made.

    how many are │ how often that │ row │ row │ … │ 0
    at it now    │ failed         │
    row    inode │ offset in the file │ size │ 0 │ data: 16 bytes │ what the file has there: 16 bytes
Rows are carried out in their order. While nobody is at it all may be rewritten; while somebody is, rows are added
behind the last one, and what is not wanted any more becomes the file's own bytes, for one who is about to write it.
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
"""In place of an inode: a row that is not carried out."""


@dataclass(frozen=True, slots=True)
class MmapPatch:
    """`data` at `offset` of every mapping of the file; `old`: what the file has there."""

    inode: int
    offset: int
    data: bytes
    old: bytes

    def split(self) -> tuple[MmapPatch, ...]:
        """The same in rows that a table can hold."""
        parts = [(at, slice(at, at + LONGEST)) for at in range(0, len(self.data), LONGEST)]
        return tuple(MmapPatch(self.inode, self.offset + at, self.data[part], self.old[part]) for at, part in parts)

    def encode(self) -> bytes:
        return _ROW.pack(self.inode, self.offset, len(self.data), self.data, self.old)

    def encode_disabled(self) -> bytes:
        """What stands in its place while somebody may be at it."""
        return _ROW.pack(DISABLED, self.offset, len(self.data), self.old, self.old)


def encode(rows: Sequence[MmapPatch], room: int) -> bytes:
    """All rows of a table with room for so many, and what ends them."""
    return b"".join(row.encode() for row in rows).ljust((room + 1) * SIZE, b"\0")


def size(room: int) -> int:
    return ROWS + (room + 1) * SIZE
