"""Page tables of programs on x86-64."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.user.elf import Kind
from gdb_optprobe.guest.linux.user.mmu import Leaf, Mmu, ReadPhysical

FIXED_RECORDS = 0xFFFF_EA00_0000_0000
"""Where they are in kernels that do not choose (arch/x86/include/asm/pgtable_64_types.h, __VMEMMAP_BASE_L4)."""
KIND = Kind((3, 62), 4096)  # EM_386, EM_X86_64


@dataclass(frozen=True, slots=True)
class X86Mmu:
    """See Mmu. la57: whether page tables have five levels."""

    start: int
    size: int
    la57: bool
    kind: Kind = KIND

    def records(self, kernel: Kernel) -> int:
        variable = kernel.symbols.address("vmemmap_base")
        start = kernel.word(variable) if variable is not None else FIXED_RECORDS
        try:
            kernel.word(start)
        except Unreadable:
            raise NoSuchKernel("this kernel has its records of pages in sections (no SPARSEMEM_VMEMMAP)") from None
        return start

    def leaf(self, read: ReadPhysical, table: int, address: int) -> Leaf | None:
        found = paging.translate(read, table, address, la57=self.la57)
        if found is None or not found.user:
            return None
        return Leaf(found.frame_of(address) & -self.kind.page, found.level == 1 and bool(found.entry & paging.KEPT))


def _(mmu: X86Mmu) -> Mmu:
    return mmu
