"""Lower the lookup of the file that a trap in a program is in, and of its offset there, from the trap's page.

    entry of the page tables ─► struct page ─► index: which page of the file
                                           └─► anon_vma ─► a node of its tree ─► mapping ─► file ─► inode
A page that was written to belongs to its address space, "anonymous", and keeps its place in the file when it is moved,
swapped or shared with a fork (mm/rmap.c, __page_set_anon_rmap). All mappings in the tree of one anon_vma are of one
file, at one distance (mm/mmap.c, anon_vma_compatible). Another CPU may change the tree meanwhile: a node is valid as
long as it is the root, so the root is compared after every load, and the page's entry after all of them.

Interrupts are off: the memory of an anon_vma stays an anon_vma (SLAB_TYPESAFE_BY_RCU), and a page that was taken out of
the tables is not used for anything else before they are on again.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Label, MemoryValue
from gdb_optprobe.isa.user import ABSENT, OTHER, UserEmitter, UserTrapping

ANONYMOUS, MOVED = 1, 2
"""Bits of a page's `mapping`; both: it is merged with others of the same content (include/linux/page-flags.h)."""
UNKNOWN = 0
"""The inode of a merged page: all pages that were merged have the same trap at the same offset."""


@dataclass(frozen=True, slots=True)
class FilePageOffsets:
    """Offsets of members that lead from a page to its file.

    bits:  of an address within a page.
    mapping, index: in a struct page. root: of the tree's root, in an anon_vma. area: of the pointer to its mapping,
           from a node of the tree. file: in a mapping. inode: in a file.
    """

    bits: int
    mapping: int
    index: int
    root: int
    area: int
    file: int
    inode: int


@dataclass(frozen=True, slots=True)
class LookupExits:
    """Where a lookup that fails jumps. absent: no page is there any more. foreign: not an anonymous page of a file."""

    absent: Label
    foreign: Label


def lower_file_lookup(
    emit: UserEmitter, isa: UserTrapping, mapped: FilePageOffsets, routine: int, ways: LookupExits
) -> tuple[str, str]:
    """Return the registers with the trap's offset in its file and with the file's inode, which may be UNKNOWN."""
    leaf, pool = isa.leaf, emit.pool
    again, found, none, end = (Label() for _ in range(4))
    for name in (leaf.address, leaf.record, leaf.entry, leaf.value, *leaf.lost):
        pool.reserve(name)
    emit.bind(again)
    emit.load(leaf.address, MemoryValue(Address(isa.frame, isa.pc)))
    emit.binary(Arithmetic.SUB, leaf.address, leaf.address, isa.behind, 64, False)
    emit.call(routine)
    emit.branch(Comparison.EQ, leaf.record, ABSENT, False, ways.absent)
    emit.branch(Comparison.EQ, leaf.record, OTHER, False, ways.foreign)
    for name in leaf.lost:
        pool.free(name)
    offset, owner, inode = leaf.address, pool.allocate(), pool.allocate()
    emit.load(owner, MemoryValue(Address(leaf.record, mapped.mapping)))
    emit.load(inode, MemoryValue(Address(leaf.record, mapped.index)))
    emit.binary(Arithmetic.SHL, inode, inode, mapped.bits, 64, False)
    emit.binary(Arithmetic.AND, offset, offset, (1 << mapped.bits) - 1, 64, False)
    emit.binary(Arithmetic.OR, offset, offset, inode, 64, False)
    emit.constant(inode, UNKNOWN)
    emit.branch_bits(owner, ANONYMOUS, False, none)
    emit.branch_bits(owner, MOVED, True, found)
    node, root = leaf.record, MemoryValue(Address(owner, mapped.root - ANONYMOUS))
    emit.load(node, root)
    emit.branch(Comparison.EQ, node, 0, False, none)
    emit.load(inode, MemoryValue(Address(node, mapped.area)))
    emit.branch(Comparison.NE, root, node, False, again)
    emit.load(inode, MemoryValue(Address(inode, mapped.file)))
    emit.branch(Comparison.NE, root, node, False, again)
    emit.branch(Comparison.EQ, inode, 0, False, none)
    emit.load(inode, MemoryValue(Address(inode, mapped.inode)))
    emit.branch(Comparison.NE, root, node, False, again)
    emit.bind(found)
    emit.branch(Comparison.EQ, MemoryValue(Address(leaf.entry)), leaf.value, False, end)
    emit.jump(again)
    emit.bind(none)
    emit.branch(Comparison.NE, MemoryValue(Address(leaf.entry)), leaf.value, False, again)
    emit.jump(ways.foreign)
    emit.bind(end)
    for name in (leaf.record, leaf.entry, leaf.value, owner):
        pool.free(name)
    return offset, inode
