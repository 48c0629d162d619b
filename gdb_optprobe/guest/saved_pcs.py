"""Where saved PCs are kept in a stopped guest, as words: what detours/quiescence.py scans."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Stack:
    """The memory [start, end) of a stack. pid, name: of the thread whose it is; None and "" for a CPU's own."""

    start: int
    end: int
    pid: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class SavedWords:
    """Words that may be saved PCs: `words` from `address` upwards (0: registers), belonging to `who`.

    stack: what they are on, to whose end all is told. Nobody uses what it has below `address`.
    """

    who: str
    address: int
    words: array[int]
    stack: Stack | None = None

    def among(self, low: int, high: int) -> SavedWords:
        """Only the words in [low, high): what a branch can reach, say."""
        return replace(self, words=array("Q", (word for word in self.words if low <= word < high)))
