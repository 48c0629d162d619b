"""An ISA's mmap hook as the tests of all ISAs run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gdb_optprobe.guest.linux.user.mmap_hook import EXECUTABLE
from gdb_optprobe.maps.mmap_patches import MmapPatch

PRIVATE = 2
"""MAP_PRIVATE."""
ARGUMENTS = ("file", "addr", "len", "prot", "flag", "pgoff")

Ran = tuple[list[tuple[int, int]], tuple[int, int]]
"""Addresses and sizes of what was written; how many threads are in the hook, and how often it failed."""


@dataclass(frozen=True)
class HookRun:
    """registers: of the arguments, in their order. file, inode: addresses. bits: of an address within a page.

    start: where the file is mapped. trap: bytes of a trap. old: what the file has in each byte that is replaced.
    run:   runs the hook: with the registers, rows, the result of the mapping, whether accesses fail, and the ticks
           left of those that a thread waits then.
    """

    registers: tuple[str, ...]
    file: int
    inode: int
    bits: int
    start: int
    trap: int
    old: int
    run: Callable[[Mapping[str, int], tuple[MmapPatch, ...], int, bool, int], Ran]

    def arguments(self, **other: int) -> dict[str, int]:
        """Return the registers of a call that maps two pages of the file from its page 3 on; `other`: by name."""
        size = 3 * self.page // 2 + 1
        usual = dict(zip(ARGUMENTS, (self.file, 0, size, 1 | EXECUTABLE, PRIVATE, 3), strict=True)) | other
        return dict(zip(self.registers, usual.values(), strict=True))

    def ran(
        self, rows: tuple[MmapPatch, ...], result: int | None = None, fails: bool = False, rest: int = 0, **other: int
    ) -> Ran:
        return self.run(self.arguments(**other), rows, self.start if result is None else result, fails, rest)

    @property
    def page(self) -> int:
        return 1 << self.bits

    def row(self, at: int, inode: int = 0) -> MmapPatch:
        """Return a row of a trap."""
        return MmapPatch(self.inode + inode, at, b"\xcc" * self.trap, bytes([self.old]) * self.trap)

    @property
    def first(self) -> MmapPatch:
        """Return the row of a trap in the first bytes of what is mapped."""
        return self.row(3 * self.page)

    @property
    def copy(self) -> MmapPatch:
        """Return the row of a copy in the second page, which is written by two pieces."""
        return MmapPatch(self.inode, 9 * self.page // 2, bytes(range(20)), bytes([self.old]) * 20)
