"""Lock prefixes that the kernel took away because it booted on one CPU, and puts back when a second one comes.

    __smp_locks ─► s32, relative to itself ─► lock, now a DS prefix: 3E          (arch/x86/kernel/alternative.c)

The kernel turns any 3E at such a place into F0, so it must be the prefix and nothing else. Where all CPUs were online
at boot, or no more can come, the table is freed and nothing is rewritten.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct

from gdb_optprobe.guest.linux.kernel import MASK, Kernel

ROW = Struct("<i")


class SmpLocks:
    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__smp_locks", "__smp_locks_end")
        rows = kernel.rows(start, stop, ROW) if waiting(kernel) else ()
        self._prefixes = sorted(at + offset & MASK for at, (offset,) in rows if offset)

    def within(self, start: int, end: int) -> list[int]:
        """Return the addresses of prefixes in [start, end) that may be rewritten."""
        return self._prefixes[bisect_left(self._prefixes, start) : bisect_left(self._prefixes, end)]


def waiting(kernel: Kernel) -> bool:
    """Return whether the core kernel's locks are in the list of what alternatives_enable_smp() rewrites."""
    head = kernel.symbols.address("smp_alt_modules")
    first = kernel.symbols.address("uniproc_patched")
    if head is None or kernel.word(head) == head:
        return False
    return first is None or kernel.memory.read(first, 1) != b"\0"
