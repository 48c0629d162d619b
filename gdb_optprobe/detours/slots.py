"""Hand out pieces of one range of guest memory.

    ┌───────┬──────┬─────────────┬───────┬───────────────────────┐
    │ used  │ free │ used        │ dirty │ free                  │
    └───────┴──────┴─────────────┴───────┴───────────────────────┘
     dirty: released, but a saved PC may be inside; reclaimed when proven empty, else never used again

A released piece of data is dirty too: code that still runs may write there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A piece of guest memory."""

    address: int
    size: int

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class Alignment:
    """What an address, so many bytes behind the beginning of a slot, is a multiple of.

    is_needed: else it is so only where half of a range stays free in one piece behind the slot: pages are for what
               needs whole ones.
    """

    multiple: int = 1
    behind: int = 0
    is_needed: bool = True

    def up(self, at: int) -> int:
        """Return the first beginning at `at` or above."""
        return at + -(at + self.behind) % self.multiple

    def down(self, at: int) -> int:
        return at - (at + self.behind) % self.multiple

    @property
    def ways(self) -> tuple[Alignment, ...]:
        """Return what a place is looked for with, one after the other."""
        return (self,) if self.is_needed else (self, ANYWHERE)


ANYWHERE = Alignment()


class Slots:
    """The range [start, end), in pieces with addresses and sizes that are multiples of `granularity`; those that are
    found, of `unit`.
    """

    def __init__(self, start: int, end: int, granularity: int, unit: int = 1) -> None:
        self.granularity = granularity
        self.unit = max(unit, granularity)
        self.start = -(-start // granularity) * granularity
        self.end = end // granularity * granularity
        self._free: list[Slot] = [Slot(self.start, self.end - self.start)] if self.end > self.start else []
        self._used: dict[int, Slot] = {}
        self._dirty: dict[int, Slot] = {}

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def used(self) -> tuple[Slot, ...]:
        return tuple(sorted(self._used.values()))

    def is_used(self, slot: Slot) -> bool:
        return self._used.get(slot.address) == slot

    @property
    def dirty(self) -> tuple[Slot, ...]:
        return tuple(sorted(self._dirty.values()))

    @property
    def free_bytes(self) -> int:
        return sum(slot.size for slot in self._free)

    @property
    def largest(self) -> int:
        """Return the bytes of the largest free piece that `find` could return."""
        return max((slot.end // self.unit * self.unit - self.rounded(slot.address) for slot in self._free), default=0)

    def find(self, size: int, low: int = 0, high: int = 1 << 64, aligned: Alignment = ANYWHERE) -> int | None:
        """Return the start of the lowest free piece of `size` bytes inside [low, high); None if there is none."""
        size = self.rounded(size)
        spared = 0 if aligned.is_needed else self.size // 2
        for index in range(self._hole_at(low), len(self._free)):
            hole = self._free[index]
            at = aligned.up(self.rounded(max(hole.address, low)))
            if at + size <= min(hole.end - spared, high):
                return at
        return None

    def _hole_at(self, address: int) -> int:
        """Return the index of the last free piece that begins at `address` or before, 0 if none does."""
        return max(bisect_right(self._free, address, key=_address_of) - 1, 0)

    def allocate(self, size: int, low: int = 0, high: int = 1 << 64) -> Slot | None:
        """Allocate the lowest free piece of `size` bytes inside [low, high); None if there is none."""
        at = self.find(size, low, high)
        return self.claim(at, self.rounded(size)) if at is not None else None

    def claim(self, address: int, size: int) -> Slot | None:
        """Allocate the piece of `size` bytes at `address`; None if it is not free, or no piece begins there."""
        size = -(-size // self.granularity) * self.granularity
        index = self._hole_at(address)
        for hole in self._free[index : index + 1]:
            if hole.address <= address and address + size <= hole.end and address % self.granularity == 0:
                left = (Slot(hole.address, address - hole.address), Slot(address + size, hole.end - address - size))
                self._free[index : index + 1] = [piece for piece in left if piece.size]
                return self._used.setdefault(address, Slot(address, size))
        return None

    def carve(self, whole: Slot, part: Slot) -> None:
        """Make `part` of a used slot a used slot of its own, and what is before and behind it too."""
        assert self._used.pop(whole.address) == whole, "it is used"
        before = Slot(whole.address, part.address - whole.address)
        pieces = (before, part, Slot(part.end, whole.end - part.end))
        self._used |= {piece.address: piece for piece in pieces if piece.size}

    def release(self, slot: Slot) -> None:
        """Make a used slot dirty: nothing leads there any more, but a saved PC may be inside."""
        self._dirty[slot.address] = self._used.pop(slot.address)

    def reuse(self, slot: Slot) -> None:
        """Make a dirty slot used again: something leads there once more."""
        self._used[slot.address] = self._dirty.pop(slot.address)

    def reclaim(self, empty: Iterable[Slot]) -> None:
        """Free these dirty slots: no saved PC is inside."""
        for slot in empty:
            del self._dirty[slot.address]
            self._join(slot)

    def free(self, slot: Slot) -> None:
        """Free a used slot at once: it was never reachable."""
        self._join(self._used.pop(slot.address))

    def discard(self, slot: Slot) -> None:
        """Never allocate `slot` again: it holds foreign bytes."""
        self._used.pop(slot.address, None)

    def rounded(self, number: int) -> int:
        """Return an address or a size as `find` has it."""
        return -(-number // self.unit) * self.unit

    def _join(self, slot: Slot) -> None:
        first = last = bisect_left(self._free, slot.address, key=_address_of)
        start, end = slot.address, slot.end
        if first and self._free[first - 1].end == start:
            first -= 1
            start = self._free[first].address
        if last < len(self._free) and self._free[last].address == end:
            end = self._free[last].end
            last += 1
        self._free[first:last] = [Slot(start, end - start)]


def _address_of(slot: Slot) -> int:
    return slot.address
