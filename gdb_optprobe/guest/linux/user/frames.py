"""Physical memory by the kernel's direct map, and the kernel's records of its frames (struct page)."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel

PAGE = 4096
RECORD = 64
"""Bytes of a struct page (include/linux/mm_types.h): were it another, no page would hold what is looked for."""
FIXED_RECORDS = 0xFFFF_EA00_0000_0000
"""Where they are in kernels that do not choose (arch/x86/include/asm/pgtable_64_types.h, __VMEMMAP_BASE_L4)."""


@dataclass(frozen=True, slots=True)
class Frames:
    """start, size: of the direct map. records: where those of frame 0 is."""

    kernel: Kernel
    start: int
    size: int
    records: int

    @staticmethod
    def of(kernel: Kernel, start: int, size: int) -> Frames:
        variable = kernel.symbols.address("vmemmap_base")
        return Frames(kernel, start, size, kernel.word(variable) if variable is not None else FIXED_RECORDS)

    def frame(self, record: int) -> int:
        """The physical address of the page whose record is at `record`. Raises NoSuchKernel."""
        number, rest = divmod(record - self.records, RECORD)
        if rest or not 0 <= number < self.size // PAGE:
            raise NoSuchKernel(f"there is no record of a page at {record:#x}")
        return number * PAGE

    def record(self, physical: int) -> int:
        """Where the record of the page is that `physical` is in."""
        return self.records + physical // PAGE * RECORD

    def read(self, physical: int, size: int) -> bytes:
        """Within one page."""
        return self.kernel.memory.read(self._at(physical), size)

    def write(self, physical: int, data: bytes) -> None:
        self.kernel.memory.write(self._at(physical), data)

    def _at(self, physical: int) -> int:
        if not 0 <= physical < self.size:
            raise NoSuchKernel(f"there is no memory at {physical:#x}")
        return self.start + physical
