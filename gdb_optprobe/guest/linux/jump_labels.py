"""Jump labels: each is a nop or a jump, and the kernel exchanges them at any time.

    __start___jump_table          (include/linux/jump_label.h, CONFIG_HAVE_ARCH_JUMP_LABEL_RELATIVE)
    ┌──────────┬────────────┬─────────┐
    │ code s32 │ target s32 │ key s64 │   each relative to its own address
    └──────────┴────────────┴─────────┘
The target counts as a jump's target even while the nop is there.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct

from gdb_optprobe.guest.linux.kernel import Kernel

ROW = Struct("<iiq")


class JumpLabels:
    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__start___jump_table", "__stop___jump_table")
        codes, targets = kernel.references(start, stop, ROW.size, 2)
        self._rows = sorted(zip(codes, targets, strict=True))

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (address of the nop or jump, its target) for those in [start, end)."""
        return self._rows[bisect_left(self._rows, (start, 0)) : bisect_left(self._rows, (end, 0))]
