"""Sequences that the kernel restarts if an interrupt came inside them; it knows them by their addresses.

    __start___restart_table ─► start, end, restart: addresses             (asm/interrupt.h, RESTART_TABLE)

    1: lbz  r9,2355(r13)      has an interrupt come while they were off?
       cmpwi r9,0
       bne  …
       stb  r9,2354(r13)      they are on again        (arch_local_irq_restore)
    2:
A copy is not in the table: an interrupt that comes inside a copy is lost until the next one.
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.ppc64le.constants import RESTART_ROW
from gdb_optprobe.guest.linux.kernel import Kernel

STEP = 4


class Restarts:
    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__start___restart_table", "__stop___restart_table")
        self._ranges = [(first, end) for _, (first, end, _) in kernel.rows(start, stop, RESTART_ROW)]

    def within(self, start: int, end: int) -> list[int]:
        """Return the instructions in [start, end) that are in such a sequence, ascending."""
        return sorted(at for first, last in self._ranges for at in range(max(first, start), min(last, end), STEP))
