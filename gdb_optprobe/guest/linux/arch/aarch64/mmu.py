"""Page tables of programs on aarch64; the kernel's map of physical memory is its linear one."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.aarch64 import paging
from gdb_optprobe.guest.linux.arch.aarch64.page_records import PAGE, PageRecords
from gdb_optprobe.guest.linux.arch.aarch64.paging import READ_ONLY, USER
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import Linear
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user.elf import Kind
from gdb_optprobe.guest.linux.user.mmu import Leaf, Mmu, ReadPhysical
from gdb_optprobe.isa.aarch64.abi import MACHINE

KIND = Kind((MACHINE.number,), PAGE, marks=b"$")
"""Mapping symbols: `$x` before code, `$d` before data (AAELF64, 5.5.5)."""
DIRTY, WRITE = 1 << 55, 1 << 51
"""asm/pgtable-prot.h: a page is dirty where the first is set, or the second without READ_ONLY (pte_dirty)."""
PHYSICAL_BITS = 48


@dataclass(frozen=True, slots=True)
class LinearMmu:
    """See Mmu. found: the kernel's records of pages."""

    linear: Linear
    found: PageRecords
    kind: Kind = KIND
    size: int = 1 << PHYSICAL_BITS

    @property
    def start(self) -> int:
        return self.linear.offset

    def records(self, kernel: Kernel) -> int:
        return self.found.base

    def leaf(self, read: ReadPhysical, table: int, address: int) -> Leaf | None:
        page = paging.translate(read, self.linear.user, table, address)
        if page is None or not page.entry & USER:
            return None
        is_dirty = page.entry & DIRTY or (page.entry & WRITE and not page.entry & READ_ONLY)
        frame = (page.physical + address - page.address) & -self.kind.page
        return Leaf(frame, page.size == self.kind.page and bool(is_dirty))


def _(mmu: LinearMmu) -> Mmu:
    return mmu
