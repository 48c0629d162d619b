"""The kernel's page allocator, asked with flags with which it neither sleeps nor frees what others use (gfp.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux import gfp
from gdb_optprobe.guest.linux.arch.base import Call
from gdb_optprobe.guest.linux.kernel import Kernel

ALLOCATES = ("__get_free_pages", "get_free_pages_noprof")
FREES = "free_pages"
NO_CODE = "the kernel lends no memory for code"


@dataclass(frozen=True, slots=True)
class PageAllocator:
    """See guest.linux.arch.base.Allocator. Where a block appears does not depend on where the kernel has it."""

    kernel: Kernel

    def allocate(self, order: int, low: int, high: int) -> Call:
        return Call(self.kernel.one_of(ALLOCATES), (gfp.at_once(self.kernel), order))

    def free(self, order: int) -> Call:
        return Call(self.kernel.address(FREES), (order,))


class Pages:
    """Base of a `Window` with blocks of data that come from the page allocator."""

    __slots__ = ()

    kernel: Kernel

    @property
    def allocator(self) -> PageAllocator:
        return PageAllocator(self.kernel)

    @property
    def range(self) -> tuple[int, int]:
        return 0, 0

    def inside(self, low: int, high: int) -> tuple[int, int]:
        return low, high

    def protects(self, order: int, block: int) -> Sequence[Call]:
        return ()

    def unprotects(self, order: int, block: int) -> Sequence[Call]:
        return ()

    def journal(self, place: int, order: int) -> tuple[int, int]:
        return 0, 0
