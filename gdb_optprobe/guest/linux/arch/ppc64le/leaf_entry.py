"""Find the page of a user's address: its entry in the radix tree, and the kernel's record of it (struct page).

    address ─► SPR PID ─► the process table ─► … ─► leaf of the smallest size: the user's, of RAM with records ─► record
Interrupts are off, and so no table is freed meanwhile (mm/gup.c, gup_fast). Entries are big-endian (Power ISA 3.1B,
Book III, 6.7.10); `value` is as a load has it, reversed.

    r11   address             kept
    r10                   ─►  the record; of the routine: ABSENT; OTHER: no page that can have been written to here
    r9                    ─►  where the linear map has the entry; r8 ─► its value
    r7, r6, cr0               lost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import ADDRESS_BITS, LINEAR_BITS, LINEAR_MAP, Linear
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.encodings import Item, compare, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if
from gdb_optprobe.isa.user import Leaf

REGISTERS = Leaf("r11", "r10", "r9", "r8", ("r7", "r6"))
SPECIAL, PRIVILEGED = 0x400, 8
"""The kernel's mark of a page that it has no record of (asm/book3s/64/pgtable.h, _PAGE_SPECIAL), and the machine's."""
RECORD_SHIFT = 6
"""Of a record's size."""
ABSENT, OTHER = 0, 1
"""Results of the routine in place of the page's record: no page, or one that was not written to."""
_SIZE_OF_ENTRY = 4  # of a process's in the table, as a shift
_TOP = 60
"""The bit from which on an address says that it is in the linear map; entries have flags there."""

LeafWalk = Callable[[Label, Label], Sequence[Item]]
"""Returns the code of the walk, for the labels of an absent page and of others."""


def routine(linear: Linear, records: int) -> bytes:
    """Return the position-independent code. records: address of the first. Raises OptprobeError without keystone."""
    absent, other = Label(), Label()
    # A user's register may have any address.
    items: list[Item] = [rotate("rldicl", "r7", "r11", 64 - ADDRESS_BITS, ADDRESS_BITS), compare("cmpldi", 0, "r7", 0)]
    items += [branch_if(Comparison.NE, other), *_parts(linear, records, absent, other), plain("blr")]
    items += [other, number("addi", "r10", "r0", OTHER), plain("blr")]
    items += [absent, number("addi", "r10", "r0", ABSENT), plain("blr")]
    return encodings.encode_items(items, 0)


def walk(linear: Linear, records: int) -> LeafWalk:
    """Return the walk from an instruction that was just run: the tree reaches it. records: address of the first."""
    return lambda absent, other: [*_parts(linear, records, absent, other)]


def _parts(linear: Linear, records: int, absent: Label, other: Label) -> Iterator[Item]:
    yield from (*load(7, LINEAR_MAP | linear.processes), plain("mfpid", "r10"))
    yield rotate("rldicr", "r10", "r10", _SIZE_OF_ENTRY, 63 - _SIZE_OF_ENTRY)
    yield plain("ldbrx", "r10", "r10", "r7")
    # The entry of a process that has ended is 0.
    yield from (rotate("rldicl", "r7", "r10", 0, 59), compare("cmpldi", 0, "r7", linear.indexes[0]))
    yield branch_if(Comparison.NE, other)
    yield number("addi", "r6", "r0", LINEAR_MAP >> _TOP)
    shift = ADDRESS_BITS
    for index in linear.indexes:
        shift -= index
        is_last = shift == linear.page.bit_length() - 1
        yield from (rotate("rldicl", "r7", "r11", 64 - shift + 3, 64 - index - 3), rotate("rldicr", "r7", "r7", 0, 60))
        yield from (rotate("rldicr", "r10", "r10", 0, 55), rotate("rldimi", "r10", "r6", _TOP, 0))
        if is_last:
            # A value that is older than what is followed differs from the entry later on.
            yield from (plain("add", "r9", "r10", "r7"), number("ld", "r8", "r9", 0), plain("ldbrx", "r10", "r0", "r9"))
        else:
            yield plain("ldbrx", "r10", "r10", "r7")
        # 0, 1: not valid; 2: a table; 3: a leaf.
        yield from (rotate("rldicl", "r7", "r10", 2, 62), compare("cmpldi", 0, "r7", 2))
        yield branch_if(Comparison.LT, absent)
        yield branch_if(Comparison.NE if not is_last else Comparison.EQ, other)
    yield from (logical("andi.", "r7", "r10", SPECIAL | PRIVILEGED), branch_if(Comparison.NE, other))
    low = linear.page.bit_length() - 1
    yield rotate("rldicl", "r10", "r10", 64 - low, low + 7)
    yield rotate("rldicl", "r7", "r10", 64 - LINEAR_BITS + low, LINEAR_BITS - low)
    yield from (compare("cmpldi", 0, "r7", 0), branch_if(Comparison.NE, other))
    yield from (rotate("rldicr", "r10", "r10", RECORD_SHIFT, 63 - RECORD_SHIFT), *load(7, records))
    yield plain("add", "r10", "r10", "r7")
