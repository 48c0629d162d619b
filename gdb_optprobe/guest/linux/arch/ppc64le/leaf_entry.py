"""Find the page of a user's address: its entry in the radix tree, and the kernel's record of it (struct page).

    address ─► SPR PID ─► the process table ─► … ─► leaf of the smallest size: the user's, of RAM with records ─► record
Interrupts are off, and so no table is freed meanwhile (mm/gup.c, gup_fast). Entries are big-endian (Power ISA 3.1B,
Book III, 6.7.10); `value` is as a load has it, reversed.

    r11   address             kept
    r10                   ─►  the record; ABSENT; OTHER: no page that can have been written to here
    r9                    ─►  where the linear map has the entry, of any level; r8 ─► its value
    r7, r6, cr0               lost
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import ADDRESS_BITS, LINEAR_BITS, LINEAR_MAP, Linear
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.encodings import Item, compare, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if
from gdb_optprobe.isa.user import ABSENT, OTHER, Leaf

REGISTERS = Leaf("r11", "r10", "r9", "r8", ("r7", "r6"))
SPECIAL, PRIVILEGED = 0x400, 8
"""The kernel's mark of a page that it has no record of (asm/book3s/64/pgtable.h, _PAGE_SPECIAL), and the machine's."""
RECORD_SHIFT = 6
"""Of a record's size."""
_SIZE_OF_ENTRY = 4  # of a process's in the table, as a shift


def routine(linear: Linear, records: int) -> bytes:
    """Return the position-independent code. records: address of the first. Raises OptprobeError without keystone."""
    return encodings.encode_items([*_parts(linear, records)], 0)


def _parts(linear: Linear, records: int) -> Iterator[Item]:
    absent, other = Label(), Label()
    yield from (*load(7, LINEAR_MAP | linear.processes), plain("mfpid", "r10"))
    yield from (rotate("rldicr", "r10", "r10", _SIZE_OF_ENTRY, 63 - _SIZE_OF_ENTRY), plain("add", "r9", "r7", "r10"))
    yield from (plain("ldbrx", "r10", "r10", "r7"), number("ld", "r8", "r9", 0))
    # The entry of a process that has ended is 0.
    yield from (rotate("rldicl", "r7", "r10", 0, 59), compare("cmpldi", 0, "r7", linear.indexes[0]))
    yield branch_if(Comparison.NE, other)
    yield from (rotate("rldicl", "r7", "r11", 64 - ADDRESS_BITS, ADDRESS_BITS), compare("cmpldi", 0, "r7", 0))
    yield branch_if(Comparison.NE, other)
    yield from load(6, LINEAR_MAP)
    shift = ADDRESS_BITS
    for index in linear.indexes:
        shift -= index
        yield from (rotate("rldicl", "r7", "r11", 64 - shift + 3, 64 - index - 3), rotate("rldicr", "r7", "r7", 0, 60))
        yield from (rotate("rldicl", "r10", "r10", 0, 4), rotate("rldicr", "r10", "r10", 0, 55))
        yield from (logical("or", "r9", "r7", "r10"), logical("or", "r9", "r9", "r6"))
        yield from (plain("ldbrx", "r10", "r0", "r9"), number("ld", "r8", "r9", 0))
        # 0, 1: not valid; 2: a table; 3: a leaf.
        yield from (rotate("rldicl", "r7", "r10", 2, 62), compare("cmpldi", 0, "r7", 2))
        yield branch_if(Comparison.LT, absent)
        is_last = shift == linear.page.bit_length() - 1
        yield branch_if(Comparison.NE if not is_last else Comparison.EQ, other)
    yield from (logical("andi.", "r7", "r10", SPECIAL | PRIVILEGED), branch_if(Comparison.NE, other))
    low = linear.page.bit_length() - 1
    yield rotate("rldicl", "r10", "r10", 64 - low, low + 7)
    yield rotate("rldicl", "r7", "r10", 64 - LINEAR_BITS + low, LINEAR_BITS - low)
    yield from (compare("cmpldi", 0, "r7", 0), branch_if(Comparison.NE, other))
    yield from (rotate("rldicr", "r10", "r10", RECORD_SHIFT, 63 - RECORD_SHIFT), *load(7, records))
    yield from (plain("add", "r10", "r10", "r7"), plain("blr"))
    yield from (other, number("addi", "r10", "r0", OTHER), plain("blr"))
    yield from (absent, number("addi", "r10", "r0", ABSENT), plain("blr"))
