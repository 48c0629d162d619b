"""Barriers against speculation: a nop or `ori r31,r31,0`, which the kernel turns into the other at any time.

    __start___barrier_nospec_fixup ─► s64, relative to itself ─► the barrier    (asm/feature-fixups.h; debugfs
                                                                                 powerpc/barrier_nospec)
The kernel writes there without reading what it overwrites.
"""

from __future__ import annotations

from bisect import bisect_left

from gdb_optprobe.guest.linux.arch.ppc64le.constants import BARRIER_ROW
from gdb_optprobe.guest.linux.kernel import MASK, Kernel


class Barriers:
    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__start___barrier_nospec_fixup", "__stop___barrier_nospec_fixup")
        self._places = sorted(at + offset & MASK for at, (offset,) in kernel.rows(start, stop, BARRIER_ROW))

    def within(self, start: int, end: int) -> list[int]:
        """Return the addresses in [start, end) that are rewritten."""
        return self._places[bisect_left(self._places, start) : bisect_left(self._places, end)]
