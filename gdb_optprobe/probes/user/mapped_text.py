"""Our patches in one mapping of a file's code, and which can be written there while the guest is stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gdb_optprobe.guest.linux.physical_patch import Changed
from gdb_optprobe.guest.linux.user.mm import AddressSpace
from gdb_optprobe.guest.linux.user.pages import StoppedPages, within_pages
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.writer import Write

Piece = tuple[int, bytes, bytes]
"""Address in the space, old and new bytes, within one page."""


@dataclass(frozen=True, slots=True)
class TextChange:
    """Bytes of a program, by their address in its file: `old` is what the file has."""

    address: int
    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class MappedText:
    """`program` as `space` has it. pages: those of the space."""

    program: Program
    space: AddressSpace
    pages: StoppedPages

    def write(self, changes: Iterable[TextChange]) -> list[Write]:
        """Make changes in this order; the first that only the guest can make: others wait for it. Raises Changed."""
        for change in changes:
            if not self._is_written(change):
                left = self._write(change)
                if left:
                    return left
        return []

    def revert(self, back: Iterable[TextChange]) -> list[Write]:
        """Make the changes with their old bytes there. Return those that only the guest can make. Raises Changed."""
        return [write for change in back if self._may_hold(change) for write in self._write(change)]

    def needs_guest(self, change: TextChange) -> bool:
        """Return whether only the guest can make it, be it forth or back."""
        pieces = ((at, self.pages.read(at, len(new)), new) for at, _, new in self.pieces(change))
        return any(found != new and not self.pages.is_own(at) for at, found, new in pieces)

    def is_lost(self, change: TextChange) -> bool:
        """Return whether something else is there. Where no page is, the space may be on its way to have it: in an exec.
        """
        there = ((self.pages.read(at, len(new)), new) for at, _, new in self.pieces(change))
        return bool(self.space.processes) and any(found not in (None, new) for found, new in there)

    def pieces(self, change: TextChange) -> Iterator[Piece]:
        """None where what the file has there is mapped elsewhere, if at all."""
        offset = self.program.offset(change.address)
        if not self.space.holds(offset):
            return
        start = self.space.address(offset)
        for (at, old), (_, new) in zip(within_pages(start, change.old), within_pages(start, change.new), strict=True):
            yield at, old, new

    def _is_written(self, change: TextChange) -> bool:
        return all(self.pages.read(at, len(new)) == new for at, _, new in self.pieces(change))

    def _may_hold(self, back: TextChange) -> bool:
        """Return whether the bytes to remove are there, or the page is not in memory: it may be swapped out."""
        return any(self.pages.read(at, len(old)) in (None, old) for at, old, _ in self.pieces(back))

    def _write(self, change: TextChange) -> list[Write]:
        """Return what is in pages of the space's own; what is not."""
        left = []
        for at, old, new in self.pieces(change):
            if not self.pages.write(at, old, new):
                if self.pages.read(at, len(old)) not in (None, old, new):
                    raise Changed(f"{self.space} has other code at {at:#x} than its file")
                left.append(Write(self.space.mm, at, new))
        return left
