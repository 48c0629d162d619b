"""A table of the trap instructions that are ours, and of where execution goes on in place of the instruction there.

    key: the PC that a trap saves │ detour      an open hash, a power of two of slots, no more than half of them full
    home = (key * FACTOR mod 2^64 >> SHIFT) & (slots - 1); a search walks on from there until a key of 0
A key stays when its trap has gone, with a detour of 0: a CPU may have trapped before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KEY, DETOUR = 0, 8
SLOT = 16
FACTOR = 0x61C88647  # 2^32 divided by the golden ratio (Knuth, volume 3, 6.4)
SHIFT = 16


@dataclass(frozen=True, slots=True)
class TrapTableLayout:
    """slots: a power of two."""

    slots: int

    @property
    def size(self) -> int:
        return self.slots * SLOT

    @property
    def room(self) -> int:
        """How many traps there may be."""
        return self.slots // 2

    def place(self, data: bytes | bytearray, key: int) -> int:
        """The offset of the slot of `key`, or of the free one that it gets."""
        at = self.home(key)
        while int.from_bytes(data[at : at + 8], "little") not in (0, key):
            at = (at + SLOT) % self.size
        return at

    def home(self, key: int) -> int:
        return (key * FACTOR >> SHIFT & self.slots - 1) * SLOT

    def encode(self, detours: Mapping[int, int]) -> bytearray:
        """By key."""
        return self.changed(bytearray(self.size), detours)

    def changed(self, data: bytearray, detours: Mapping[int, int]) -> bytearray:
        """`data` with these by key, each in the place that it has already."""
        for key, detour in detours.items():
            at = self.place(data, key)
            data[at : at + SLOT] = slot(key, detour)
        return data

    def decode(self, data: bytes | bytearray) -> Mapping[int, int] | None:
        """What `encode` was given; None where a search would not find all of it, or there is too much."""
        rows = ((at, data[at : at + SLOT]) for at in range(0, self.size, SLOT))
        words = [(at, *(int.from_bytes(row[part : part + 8], "little") for part in (KEY, DETOUR))) for at, row in rows]
        found = [(at, key, detour) for at, key, detour in words if key]
        if len(found) > self.room or any(self.place(data, key) != at for at, key, _ in found):
            return None
        return {key: detour for _, key, detour in found}


def is_size(size: int) -> bool:
    """Whether a table may have so many bytes."""
    return size >= 2 * SLOT and size & size - 1 == 0


def slot(key: int, detour: int) -> bytes:
    return key.to_bytes(8, "little") + detour.to_bytes(8, "little")
