"""Saved PCs of a stopped guest, as words of memory: detours/quiescence.py scans them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stack:
    """The memory [start, end) of a stack. pid, name: of its thread; None and "" for a stack of a CPU."""

    start: int
    end: int
    pid: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class SavedWords:
    """Words that may be saved PCs: `words` from `address` upwards (0: registers), belonging to `owner`.

    stack: the stack that has them; `words` go to its end. Memory of the stack below `address` is not in use.
    """

    owner: str
    address: int
    words: array[int]
    stack: Stack | None = None

    def among(self, low: int, high: int) -> SavedWords:
        """Return the words in [low, high) only: those that a branch can reach, say."""
        return replace(self, words=array("Q", (word for word in self.words if low <= word < high)))
