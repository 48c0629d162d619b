"""A table of the trap instructions of ours in user programs, and of the code that is run for each.

    key: the trap's   │ the file, by its  │ the code │ 0      an open hash, a power of two of slots, no more than
    offset in a file  │ inode's address   │          │        half of them full
home = (key * FACTOR mod 2^64 >> SHIFT) & (slots - 1), of the first word; a search walks on from there until an inode of
0. A key stays when its trap has gone, with other code: a CPU may have trapped before.

One slot serves a program or a library wherever it is mapped, and all processes that have it, forked ones among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.maps.trap_table import FACTOR, SHIFT

OFFSET, INODE, CODE = 0, 8, 16
SLOT = 32

Key = tuple[int, int]
"""The trap's offset in the file, and the address of the file's inode."""


@dataclass(frozen=True, slots=True)
class UserTrapTableLayout:
    """slots: a power of two."""

    slots: int

    @property
    def size(self) -> int:
        return self.slots * SLOT

    @property
    def room(self) -> int:
        """How many traps there may be."""
        return self.slots // 2

    def place(self, data: bytes | bytearray, key: Key) -> int:
        """The offset of the slot of `key`, or of the free one that it gets."""
        offset, inode = key
        at = (offset * FACTOR >> SHIFT & self.slots - 1) * SLOT
        while (found := _words(data, at))[1] and found[:2] != (offset, inode):
            at = (at + SLOT) % self.size
        return at

    def encode(self, codes: Mapping[Key, int]) -> bytearray:
        """By key."""
        return self.changed(bytearray(self.size), codes)

    def changed(self, data: bytearray, codes: Mapping[Key, int]) -> bytearray:
        """`data` with these by key, each in the place that it has already."""
        for key, code in codes.items():
            at = self.place(data, key)
            data[at : at + SLOT] = slot(key, code)
        return data

    def decode(self, data: bytes | bytearray) -> Mapping[Key, int] | None:
        """What `encode` was given; None where a search would not find all of it, or there is too much."""
        keys = ((at, _words(data, at)) for at in range(0, self.size, SLOT))
        found = [(at, key) for at, key in keys if key[1]]
        if len(found) > self.room or any(self.place(data, key) != at for at, key in found):
            return None
        return {key: int.from_bytes(data[at + CODE : at + CODE + 8], "little") for at, key in found}


def _words(data: bytes | bytearray, at: int) -> tuple[int, int]:
    return int.from_bytes(data[at : at + 8], "little"), int.from_bytes(data[at + 8 : at + 16], "little")


def is_size(size: int) -> bool:
    """Whether a table may have so many bytes."""
    return size >= 2 * SLOT and size & size - 1 == 0


def slot(key: Key, code: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in (*key, code, 0))
