"""Page tables of programs on ppc64le: radix trees; the kernel's map of physical memory is its linear one."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.ppc64le import radix
from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import LINEAR_BITS, LINEAR_MAP
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user.elf import Kind
from gdb_optprobe.guest.linux.user.mmu import Leaf, Mmu, ReadPhysical

RECORDS = 0xC00C_0000_0000_0000
"""RADIX_VMEMMAP_START: of the kernel's four regions the last (arch/powerpc/include/asm/book3s/64/radix.h)."""
PRIVILEGED = 8
EM_PPC64 = 21


@dataclass(frozen=True, slots=True)
class RadixMmu:
    """See Mmu."""

    page: int
    start: int = LINEAR_MAP
    size: int = 1 << LINEAR_BITS

    @property
    def kind(self) -> Kind:
        return Kind((EM_PPC64,), self.page, local_entries=True)

    def records(self, kernel: Kernel) -> int:
        return RECORDS

    def leaf(self, read: ReadPhysical, table: int, address: int) -> Leaf | None:
        found = radix.translate(read, table, address)
        if found is None or found.entry & PRIVILEGED:
            return None
        frame = (found.physical + address - found.address) & -self.page
        return Leaf(frame, found.size == self.page and bool(found.entry & radix.CHANGED))


def _(mmu: RadixMmu) -> Mmu:
    return mmu
