"""Blocks that the kernel lends and that serve where the kernel has them: their place is that address, or NOWHERE.

Whether one serves is in the journal alone; no page table is written.
"""

from __future__ import annotations

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import NOWHERE


class NoWindow(OptprobeError):
    """A block cannot serve."""


class InPlace:
    """Base of a `Window` with such blocks."""

    __slots__ = ()

    def _check(self, order: int, block: int) -> object:
        """Raise NoWindow where a block is not memory of the kind that serves."""
        raise NotImplementedError

    def table(self) -> int | None:
        return None

    def is_free(self, place: int) -> bool:
        return place == NOWHERE

    def is_mapped(self, place: int, order: int, block: int) -> bool:
        if place == NOWHERE:
            return False
        if place != block:
            raise NoWindow(f"the kernel lent {block:#x}, and not {place:#x}")
        self._check(order, block)
        return True

    def unmap(self, place: int) -> int:
        return NOWHERE
