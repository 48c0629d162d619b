"""Physical memory by the kernel's direct map, and the kernel's records of its frames (struct page)."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.user.elf import Kind
from gdb_optprobe.guest.linux.user.mmu import Mmu

RECORD = 64
"""Bytes of a struct page (include/linux/mm_types.h). With another size no page would pass the checks."""


@dataclass(frozen=True, slots=True)
class PageFrames:
    """start, size: of the direct map. records: address of the record of frame 0. kind: of programs."""

    kernel: Kernel
    start: int
    size: int
    records: int
    kind: Kind

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return self.kind.page

    @staticmethod
    def of(kernel: Kernel, mmu: Mmu) -> PageFrames:
        return PageFrames(kernel, mmu.start, mmu.size, mmu.records(kernel), mmu.kind)

    def frame(self, record: int) -> int:
        """Return the physical address of the page with its struct page at `record`. Raises NoSuchKernel."""
        number, rest = divmod(record - self.records, RECORD)
        if rest or not 0 <= number < self.size // self.page:
            raise NoSuchKernel(f"there is no record of a page at {record:#x}")
        return number * self.page

    def record(self, physical: int) -> int:
        """Return the address of the record of the page that has `physical`."""
        return self.records + physical // self.page * RECORD

    def read(self, physical: int, size: int) -> bytes:
        """Read within one page."""
        return self.kernel.memory.read(self._at(physical), size)

    def write(self, physical: int, data: bytes) -> None:
        self.kernel.memory.write(self._at(physical), data)

    def _at(self, physical: int) -> int:
        if not 0 <= physical < self.size:
            raise NoSuchKernel(f"there is no memory at {physical:#x}")
        return self.start + physical
