"""Find the page of a user's address: its entry in the page tables, and the kernel's record of it (struct page).

    address ─► CR3 ─► … ─► leaf of 4 KiB: present, of RAM that has records ─► record
Interrupts are off, and so no table is freed meanwhile (mm/gup.c, gup_fast).

    rax   address            kept; of an instruction that was just run: the page is the user's
    rcx                  ─►  the record
    r9                   ─►  where the direct map has the entry; r10 ─► its value
    rdx, r8, flags           lost
"""

from __future__ import annotations

from collections.abc import Callable

from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Label, MemoryValue
from gdb_optprobe.isa.user import Leaf
from gdb_optprobe.isa.x86_64.codegen import X86Emitter

REGISTERS = Leaf("rax", "rcx", "r9", "r10", ("rdx", "r8"))
SPECIAL = 1 << 9
"""The kernel's mark of a page that it has no record of (arch/x86/include/asm/pgtable_types.h, _PAGE_BIT_SPECIAL)."""
RECORD_SHIFT = 6
"""Of a record's size."""
PRESENT, LARGE, PAGE_SHIFT, LEVEL_BITS = 1, 1 << 7, 12, 9
GET_ROOT = bytes.fromhex("410f20da")  # mov r10, cr3

LeafWalk = Callable[[X86Emitter, Label, Label], None]
"""Emits the walk, with the labels of an absent page and of others."""


def walk(direct: Direct, records: int) -> LeafWalk:
    """Return the walk. records: address of the first record."""
    address, record, entry, value = REGISTERS.address, REGISTERS.record, REGISTERS.entry, REGISTERS.value
    tables, base = REGISTERS.lost

    def emitted(emit: X86Emitter, absent: Label, other: Label) -> None:
        emit.constant(tables, paging.ADDRESS)
        emit.constant(base, direct.start)
        emit.raw(GET_ROOT)
        for level in range(5 if direct.la57 else 4, 0, -1):
            emit.binary(Arithmetic.AND, value, value, tables, 64, False)
            emit.binary(Arithmetic.ADD, value, value, base, 64, False)
            emit.binary(Arithmetic.SHR, entry, address, PAGE_SHIFT + LEVEL_BITS * (level - 1), 64, False)
            emit.binary(Arithmetic.AND, entry, entry, (1 << LEVEL_BITS) - 1, 64, False)
            at = Address(value, index=entry)
            if level == 1:
                emit.address(entry, at)
                at = Address(entry)
            emit.load(value, MemoryValue(at))
            emit.branch_bits(value, PRESENT, False, absent)
            if level in (2, 3):
                emit.branch_bits(value, LARGE, True, other)
        emit.branch_bits(value, SPECIAL, True, other)
        emit.binary(Arithmetic.AND, record, value, tables, 64, False)
        emit.constant(tables, direct.size)
        emit.branch(Comparison.GE, record, tables, False, other)
        emit.binary(Arithmetic.SHR, record, record, PAGE_SHIFT - RECORD_SHIFT, 64, False)
        emit.constant(tables, records)
        emit.binary(Arithmetic.ADD, record, record, tables, 64, False)

    return emitted
