"""Lower the lookup of the file that a trap in a program is in, and of its offset there, from the trap's page.

    entry of the page tables ─► struct page ─► index: which page of the file
                                           └─► anon_vma ─► a node of its tree ─► mapping ─► file ─► inode
A page that was written to belongs to its address space, "anonymous", and keeps its place in the file when it is moved,
swapped or shared with a fork (mm/rmap.c, __page_set_anon_rmap). All mappings in the tree of one anon_vma are of one
file, at one distance (mm/mmap.c, anon_vma_compatible). The tail of a large page has no owner: its record is counts of
the whole page's. No page of a file that was written to is large.

Another CPU may change all of this meanwhile: the page may be freed, and used for anything. What was read is what it
seems to be if a comparison behind it finds no change:

    owner, index, tail   of the entry. Interrupts are off: the memory of an owner stays one's (SLAB_TYPESAFE_BY_RCU)
    mapping, file        of the root: the node is in the tree still, and so its mapping has its file
    inode                of the root and of the entry: the owner was the page's all the time
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Label, MemoryValue
from gdb_optprobe.isa.user import UserEmitter, UserTrapping

ANONYMOUS, MOVED = 1, 2
"""Bits of a page's `mapping`; both: it is merged with others of the same content (include/linux/page-flags.h)."""
TAIL = 1
"""Of `compound_head`."""
UNKNOWN = 1
"""In place of the inode of a merged page, and no inode's address: all pages that were merged have the same trap at the
same offset.
"""


@dataclass(frozen=True, slots=True)
class FilePageOffsets:
    """Offsets of members that lead from a page to its file.

    bits:  of an address within a page.
    head, mapping, index: in a struct page. root: of the tree's root, in an anon_vma. area: of the pointer to its
           mapping, from a node of the tree. file: in a mapping. inode: in a file.
    """

    bits: int
    head: int
    mapping: int
    index: int
    root: int
    area: int
    file: int
    inode: int


@dataclass
class FileLookup:
    """The lookup. absent: where it jumps if no page is there any more. foreign: not an anonymous page of a file.

    offset, inode: the registers with the trap's offset in its file and with the file's inode, which may be UNKNOWN.
    """

    emit: UserEmitter
    isa: UserTrapping
    mapped: FilePageOffsets
    absent: Label
    foreign: Label
    offset: str = ""
    inode: str = ""
    _owner: str = ""
    _again: Label = field(default_factory=Label)
    _merged: Label = field(default_factory=Label)
    _none: Label = field(default_factory=Label)
    _end: Label = field(default_factory=Label)

    def lower(self) -> None:
        """Emit the lookup. It uses `leaf` and two more registers, of which `offset` and `inode` stay in use."""
        emit, leaf, mapped = self.emit, self.isa.leaf, self.mapped
        for name in (leaf.address, leaf.record, leaf.entry, leaf.value, *leaf.lost):
            emit.pool.reserve(name)
        emit.bind(self._again)
        emit.load(leaf.address, MemoryValue(Address(self.isa.frame, self.isa.pc)))
        if self.isa.behind:
            emit.binary(Arithmetic.SUB, leaf.address, leaf.address, self.isa.behind, 64, False)
        emit.find_page(self.absent, self.foreign)
        for name in leaf.lost:
            emit.pool.free(name)
        self.offset, self._owner, self.inode = leaf.address, emit.pool.allocate(), emit.pool.allocate()
        entry = MemoryValue(Address(leaf.entry)), leaf.value
        with emit.pool.scratch() as head:
            emit.load_two(self._owner, self.inode, leaf.record, (mapped.mapping, mapped.index))
            emit.load(head, MemoryValue(Address(leaf.record, mapped.head)))
            emit.branch_unless((entry,), self._again)
            emit.branch_bits(head, TAIL, True, self.foreign)
        emit.join(self.offset, self.inode, mapped.bits)
        emit.branch_bits(self._owner, ANONYMOUS, False, self.foreign)
        emit.branch_bits(self._owner, MOVED, True, self._merged)
        self._follow(entry)
        emit.bind(self._end)
        for name in (leaf.record, leaf.entry, leaf.value, self._owner):
            emit.pool.free(name)

    def _follow(self, entry: tuple[MemoryValue, str]) -> None:
        """Emit the way from the owner to the inode."""
        emit, mapped, inode, node = self.emit, self.mapped, self.inode, self.isa.leaf.record
        root = MemoryValue(Address(self._owner, mapped.root - ANONYMOUS))
        emit.load(node, root)
        emit.branch(Comparison.EQ, node, 0, False, self._none)
        emit.load(inode, MemoryValue(Address(node, mapped.area)))
        emit.branch_unless(((root, node),), self._again)
        emit.load(inode, MemoryValue(Address(inode, mapped.file)))
        emit.branch_unless(((root, node),), self._again)
        emit.branch(Comparison.EQ, inode, 0, False, self._none)
        emit.load(inode, MemoryValue(Address(inode, mapped.inode)))
        emit.branch_unless(((root, node), entry), self._again)

    def lower_rest(self) -> None:
        """Emit what few traps come to."""
        emit, leaf = self.emit, self.isa.leaf
        with emit.pool.holding((leaf.entry, leaf.value, self.inode)):
            emit.bind(self._merged)
            emit.constant(self.inode, UNKNOWN)
            emit.jump(self._end)
            emit.bind(self._none)
            emit.branch_unless(((MemoryValue(Address(leaf.entry)), leaf.value),), self._again)
            emit.jump(self.foreign)
