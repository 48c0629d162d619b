"""The kernel's radix tree of page tables (Power ISA 3.1B, Book III, 6.7.10): how the linear map maps an address.

    table entry   V │ L=0 │ … │ next table, a multiple of 256 bytes │ … │ size of its index in bits (5)
    leaf          V │ L=1 │ … │ page's address                      │ … │ privileged, read, write, execute (4)
Entries are big-endian, whatever the kernel is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

VALID, LEAF = 1 << 63, 1 << 62
NEXT_TABLE, NEXT_SIZE = 0x0FFF_FFFF_FFFF_FF00, 0x1F
FRAME = 0x01FF_FFFF_FFFF_F000
WRITE, EXECUTE = 2, 1
REFERENCED, CHANGED = 0x100, 0x80  # set by the machine when the page is used, unless they are already
ADDRESS_BITS, ROOT_BITS = 52, 13  # asm/book3s/64/radix.h: RADIX_PGD_INDEX_SIZE is 13 for pages of 4K and of 64K
DEEPEST = 5
SMALLEST = 4096
"""Bytes of the smallest page on any machine: a walk from page to page is bounded by it."""


@dataclass(frozen=True, slots=True)
class Page:
    """address: where the page begins; physical: where its frame does; at: the physical address of `entry`.

    above: that of the entry which leads to the table that `entry` is in; 0 for the root.
    """

    address: int
    physical: int
    size: int
    entry: int
    at: int
    above: int = field(default=0, compare=False)

    @property
    def writable(self) -> bool:
        return bool(self.entry & WRITE)

    @property
    def executable(self) -> bool:
        return bool(self.entry & EXECUTE)


def translate(read_physical: Callable[[int, int], bytes], root: int, address: int) -> Page | None:
    """Return the page around `address`, by the tree with its root table at the physical address `root`."""
    table, bits, shift, above = root, ROOT_BITS, ADDRESS_BITS, 0
    for _ in range(DEEPEST):
        shift -= bits
        if shift < 0:
            return None
        index = address >> shift & (1 << bits) - 1
        at = table + 8 * index
        entry = int.from_bytes(read_physical(at, 8), "big")
        if not entry & VALID:
            return None
        if entry & LEAF:
            size = 1 << shift
            if size < SMALLEST:
                return None
            start = address & -size
            return Page(start, entry & FRAME & -size, size, entry, at, above)
        table, bits, above = entry & NEXT_TABLE, entry & NEXT_SIZE, at
    return None
