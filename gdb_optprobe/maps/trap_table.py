"""A table of the trap instructions that optprobe wrote, and of what each leads to, in guest memory.

    key: one or two words │ value │ 0 up to a power of two      an open hash, a power of two of slots, at most half full
    home = first word * FACTOR & (slots - 1) * size of a slot; a search continues from there
    to a slot with 0 as the last word of its key

of       key                                                       value
kernel   the PC that a trap saves                                  its detour; 0 when the trap is removed
user     the trap's offset in the file, the file's inode (address) its code; other code when the trap is removed

A key stays when its trap is removed: a CPU may have trapped before. A key of a file serves all its mappings, in all
processes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

WORD = 8
FACTOR = 17
"""A product by it is one instruction on each ISA. Instructions side by side have homes of their own."""
KERNEL_KEY, USER_KEY = 1, 2
"""Words of a key."""

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrapTableLayout:
    """slots: a power of two. key_words: of each key."""

    slots: int
    key_words: int

    @property
    def value(self) -> int:
        """Return the offset of the value in a slot."""
        return WORD * self.key_words

    @property
    def slot_size(self) -> int:
        return 1 << (self.value + WORD - 1).bit_length()

    @property
    def size(self) -> int:
        return self.slots * self.slot_size

    @property
    def room(self) -> int:
        """Return how many traps there may be."""
        return self.slots // 2

    def home(self, key: Key) -> int:
        """Return the offset of the slot where the search for `key` begins."""
        return key[0] * FACTOR & (self.slots - 1) * self.slot_size

    def place(self, data: bytes | bytearray, key: Key) -> int:
        """Return the offset of the slot of `key`, or of the free one that it gets."""
        at = self.home(key)
        while (found := self._key(data, at))[-1] and found != key:
            at = (at + self.slot_size) % self.size
        return at

    def put(self, data: bytearray, key: Key, value: int) -> list[tuple[int, bytes]]:
        """Change the value of `key` in `data`. Return what to write, offset and word, in this order.

        A search never finds the key without its value, for its last word is written last.
        """
        at = self.place(data, key)
        words = [(at + self.value, value)]
        if not self._key(data, at)[-1]:
            words += [(at + WORD * number, word) for number, word in enumerate(key)]
        writes = [(offset, struct.pack("<Q", word)) for offset, word in words]
        for offset, word in writes:
            data[offset : offset + WORD] = word
        return writes

    def encode(self, values: Mapping[Key, int]) -> bytearray:
        """Encode a table with these values."""
        data = bytearray(self.size)
        self.update(data, values)
        return data

    def update(self, data: bytearray, values: Mapping[Key, int]) -> None:
        """Put all `values` into `data`; keys that it has keep their slots."""
        for key, value in values.items():
            self.put(data, key, value)

    def decode(self, data: bytes | bytearray) -> Mapping[Key, int] | None:
        """Return the values by key; None if a search would not find each key, or there are too many."""
        slots = ((at, self._key(data, at)) for at in range(0, self.size, self.slot_size))
        found = [(at, key) for at, key in slots if key[-1]]
        if len(found) > self.room or any(self.place(data, key) != at for at, key in found):
            return None
        return {key: struct.unpack_from("<Q", data, at + self.value)[0] for at, key in found}

    def _key(self, data: bytes | bytearray, at: int) -> Key:
        return struct.unpack_from(f"<{self.key_words}Q", data, at)


def layout_of(size: int, key_words: int) -> TrapTableLayout | None:
    """Return the layout of a table of so many bytes; None if no table has that size."""
    layout = TrapTableLayout(size // TrapTableLayout(1, key_words).slot_size, key_words)
    return layout if layout.slots >= 2 and size & size - 1 == 0 else None
