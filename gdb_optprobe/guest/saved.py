"""Where saved PCs are kept in a stopped guest, as words: what detours/quiescence.py scans."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Saved:
    """Words that may be saved PCs: `words` from `address` upwards (0: registers), belonging to `who`."""

    who: str
    address: int
    words: array[int]

    def among(self, low: int, high: int) -> Saved:
        """Only the words in [low, high): what a branch can reach, say."""
        return Saved(self.who, self.address, array("Q", (word for word in self.words if low <= word < high)))
