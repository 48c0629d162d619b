"""Static calls: `call target` with a target that the kernel rewrites at any time.

    __start_static_call_sites     (include/linux/static_call_types.h)
    ┌──────────┬─────────┐
    │ addr s32 │ key s32 │   each relative to its own address
    └──────────┴─────────┘
Their trampolines (__SCT__name, all in .static_call.text) are rewritten in the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct

from gdb_optprobe.guest.linux.kernel import MASK, Kernel

ROW = Struct("<ii")
ALIGNMENT = 4
LARGEST = 1 << 18
"""A limit (budget.py), in bytes of all trampolines: Debian's 6.12 has 30 KiB."""


class StaticCalls:
    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__start_static_call_sites", "__stop_static_call_sites")
        self.sites = sorted(at + address & MASK for at, (address, _) in kernel.rows(start, stop, ROW))
        self._trampolines = kernel.range("__static_call_text_start", "__static_call_text_end")

    @property
    def trampolines(self) -> range:
        """The first bytes of trampolines, and of padding behind some (static_call.h, __ARCH_DEFINE_STATIC_CALL_TRAMP).
        """
        start, end = self._trampolines
        return range(start, min(end, start + LARGEST), ALIGNMENT)

    def within(self, start: int, end: int) -> list[int]:
        """Return the addresses in [start, end) that are rewritten."""
        first, last = self._trampolines
        if start < last and first < end:
            return [max(start, first)]
        return self.sites[bisect_left(self.sites, start) : bisect_left(self.sites, end)]
