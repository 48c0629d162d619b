"""A hash map: aggregates by key, in guest memory; lock-free, wait-free, of fixed size.

    ┌──────────┐
    │ overflow │  values that found no slot
    ├──────────┴──────────────────────────────┐
    │ state │ key word … │ value word …       │  slot 0          state: 0 free, 1 claimed, 3 ready
    ├───────┼────────────┼────────────────────┤
    │ …     │            │                    │  2**bits places that a hash can lead to
    ├───────┼────────────┼────────────────────┤
    │ …     │            │                    │  and PROBES - 1 more, so that a search needs not turn round
    └───────┴────────────┴────────────────────┘
A search begins at `place(key)` and looks at PROBES slots. A ready one with the key is used; a free one is claimed by
setting bit 0, given the key, and made ready; a claimed one is skipped. The hit that claimed it may be interrupted by
this one, so no hit can wait: the same key may then be in two slots, and `decode` adds them up. Values are aggregates
(aggregate.py), `initial` from the beginning, so a slot has its value as soon as it has its key. A ready slot stays
ready until the guest is stopped and the table is written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.maps.aggregate import MASK, Aggregate, decode, encode, initial, merged

FREE, CLAIMED, READY = 0, 1, 3
PROBES = 32
FACTOR = 0x9E37_79B9_7F4A_7C15  # 2**64 / the golden ratio, odd (Knuth, volume 3, 6.4: Fibonacci hashing)
OVERFLOW = 0  # offset


@dataclass(frozen=True, slots=True)
class HashMapContents:
    """by_key: aggregates' words. overflow: how many values found no slot."""

    by_key: Mapping[bytes, tuple[int, ...]]
    overflow: int


@dataclass(frozen=True, slots=True)
class HashMapLayout:
    """key_words: of 8 bytes each, at least 1. bits: the table has 2**bits places, at least 2."""

    key_words: int
    aggregate: Aggregate
    bits: int = 10

    @property
    def slot_size(self) -> int:
        return 8 * (1 + self.key_words + self.aggregate.words)

    @property
    def value_offset(self) -> int:
        """Return the offset of the value in a slot."""
        return 8 * (1 + self.key_words)

    @property
    def slots(self) -> int:
        return (1 << self.bits) + PROBES - 1

    @property
    def size(self) -> int:
        return 8 + self.slots * self.slot_size

    def initial(self) -> bytes:
        slot = encode((FREE, *(0,) * self.key_words, *initial(self.aggregate)))
        return bytes(8) + slot * self.slots

    def cleared(self, data: bytes, has: Callable[[bytes], bool] = bool) -> bytes:
        """Return the table with its keys and initial values: a hit that is writing to it finds its slot again.

        has: whether a key is to be cleared; all are by default.
        """
        value = encode(initial(self.aggregate))
        slots = (data[at : at + self.slot_size] for at in range(8, self.size, self.slot_size))
        key = slice(8, self.value_offset)
        return bytes(8) + b"".join(one[: self.value_offset] + value if has(one[key]) else one for one in slots)

    def place(self, key: Sequence[int]) -> int:
        """Return the number of the slot where the search for a key begins."""
        mixed = key[0]
        for word in key[1:]:
            mixed = mixed * FACTOR & MASK ^ word
        return (mixed * FACTOR & MASK) >> 64 - self.bits

    def decode(self, data: bytes, before: bytes | None = None) -> HashMapContents:
        """Decode a table's memory.

        before: the same a moment earlier, where the guest runs. A key counts that was ready then and is the same now.
        """
        found: dict[bytes, tuple[int, ...]] = {}
        states = data[8 : self.size : self.slot_size]
        number = -1
        # Most slots are free, and thousands of them take milliseconds one by one.
        while (number := states.find(READY, number + 1)) >= 0:
            at = 8 + number * self.slot_size
            slot = data[at : at + self.slot_size]
            if before is not None and before[at : at + self.value_offset] != slot[: self.value_offset]:
                continue
            key, words = slot[8 : self.value_offset], decode(slot[self.value_offset :])
            found[key] = merged(self.aggregate, found[key], words) if key in found else words
        return HashMapContents(found, int.from_bytes(data[:8], "little"))
