"""The kernel's records of pages (struct page): which pages it has reserved for good.

    address ─► page tables ─► physical ─► record: base + (physical >> 12) * sizeof(struct page) ─► flags

Where the records are follows from constants of a kernel's build, which changed (asm/memory.h, VMEMMAP_START):

    since 5.4     what the linear map can have takes up -(1 << VA_BITS - 6) … and up
    since 6.9     … 1 GiB below the end of the address space

Both are tried, for each number of address bits that kernels are built for. One is taken if the pages of the kernel's
text are reserved by it, and a page of a thread's stack is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.find import PageTables
from gdb_optprobe.guest.linux.arch.aarch64.names import KernelNames
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel

PAGE_SHIFT, RECORD_SHIFT = 12, 6
PAGE = 1 << PAGE_SHIFT
BITS = (48, 39, 52)
GAP = 1 << 30
SAMPLES = 8
RESERVED = "PG_reserved"


@dataclass(frozen=True, slots=True)
class PageRecords:
    """base: where the record of physical page 0 would be. flag: the bit of `flags` that is set for a reserved page."""

    kernel: Kernel
    view: PageTables
    base: int
    flag: int

    @classmethod
    def of(cls, kernel: Kernel, view: PageTables) -> PageRecords:
        """Return the records. Raises OptprobeError where they cannot be found."""
        if view.regime.granule != PAGE_SHIFT:
            raise NoSuchKernel("records of pages are known for pages of 4 KiB alone")
        flag = _reserved(kernel)
        memory_start = _signed(kernel.word(kernel.address("memstart_addr")))
        start, end = kernel.range("_stext", "_etext")
        inside = range(start, end, max(PAGE, (end - start) // SAMPLES // PAGE * PAGE))
        other = kernel.word(kernel.address("init_task") + kernel.offset("task_struct", "tasks"))
        for first in _starts():
            base = first - (memory_start >> PAGE_SHIFT << RECORD_SHIFT) & MASK
            records = cls(kernel, view, base, flag)
            try:
                if all(map(records.is_reserved, inside)) and not records.is_reserved(other):
                    return records
            except OptprobeError:
                continue
        raise NoSuchKernel("the kernel's records of pages are not where they are looked for")

    def is_reserved(self, address: int) -> bool:
        """Return whether the page of an address is reserved. Raises OptprobeError where it has no record."""
        page = self.view.page(address)
        if page is None:
            raise NoSuchKernel(f"nothing is mapped at {address:#x}")
        number = page.physical + address - page.address >> PAGE_SHIFT
        return bool(self.kernel.word(self.base + (number << RECORD_SHIFT) & MASK) >> self.flag & 1)


def _starts() -> Iterator[int]:
    """Yield where the records of the linear map may begin."""
    for bits in BITS:
        yield -(1 << bits - PAGE_SHIFT + RECORD_SHIFT)
    for bits in BITS:
        # Where the hardware has fewer bits, the linear map ends where it does with that many.
        size = ((1 << bits) - (1 << min(bits, 48) - 1)) >> PAGE_SHIFT << RECORD_SHIFT
        yield -GAP - size


def _reserved(kernel: Kernel) -> int:
    """Return the bit's number. Raises OptprobeError."""
    names = kernel.symbols
    found = names.constant(RESERVED) if isinstance(names, KernelNames) else None
    if found is None:
        raise NoSuchKernel(f"this kernel's types do not tell of {RESERVED}")
    return found


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
