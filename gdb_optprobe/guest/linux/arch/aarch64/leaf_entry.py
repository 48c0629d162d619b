"""Find the page of a program's address: its entry in the page tables, and the kernel's record of it (struct page).

    address ─► TTBR0_EL1 ─► … ─► an entry of the last level: a page of RAM with records ─► record
With TCR_EL1.DS (LPA2) there is a level more, and entries have bits 51 and 50 of the physical address in bits 9 and 8.
The CPU's own translation (AT) does not tell the entry. Interrupts are off, and so no table is freed meanwhile: that
waits for a grace period (mm/mmu_gather.c, tlb_remove_table).

    x16   address             kept; of an instruction that was just run, so the tables reach it
    x15                   ─►  the record
    x14                   ─►  where the linear map has the entry of the last level; x13 ─► its value
    x12, x11                  lost

The index of an entry is inserted below the address of its table:

    entry     63 flags │ 47 address of the table │ 11 flags    0
    address, shifted                      … index │ 11 index │ 2 0    then bits 2 to 0 are cleared, and those from 48 on
One bit says whether there is a table, as it does for the kernel (asm/pgtable.h, pmd_bad): no block has it, nor an entry
that is not valid, but on the last level, where the valid bit says whether there is a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.paging import MOST_BITS, TABLE, VALID, Regime
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import Linear
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    bits,
    branch_on_bit,
    jump,
    literal,
    masked,
    plain,
    scaled,
    shifted,
)
from gdb_optprobe.isa.aarch64.fields import MASK
from gdb_optprobe.isa.codegen import Label
from gdb_optprobe.isa.user import Leaf

REGISTERS = Leaf("x16", "x15", "x14", "x13", ("x12", "x11"))
SPECIAL = 1 << 56
"""The kernel's mark of a page that it has no record of (asm/pgtable-prot.h, PTE_SPECIAL)."""
RECORD_SHIFT = 6
"""Of a record's size."""
PAGE_SHIFT, TOP, WIDE_TOP = 12, 48, 50
"""The physical address in an entry is between these bits; with LPA2 up to the last one."""
UPPER, ROOT_UPPER = (WIDE_TOP, 8, MOST_BITS - WIDE_TOP), (TOP, 2, MOST_BITS - TOP)
"""With LPA2, of an entry and of TTBR0_EL1: where further bits of the address belong, where they are, and how many."""
_ENTRY_SHIFT = 3
"""Of an entry's size."""
_ADDRESS, _RECORD, _ENTRY, _VALUE = REGISTERS.address, REGISTERS.record, REGISTERS.entry, REGISTERS.value
_UPPER, _BASE = REGISTERS.lost

LeafWalk = Callable[[Label, Label], tuple[Sequence[Item], Sequence[Item]]]
"""Returns the code of the walk, and what may be anywhere near it: for the labels of an absent page and of others."""


def walk(linear: Linear, records: int) -> LeafWalk:
    """Return the walk. records: of the physical page 0. Raises OptprobeError."""
    if linear.user.granule != PAGE_SHIFT:
        raise OptprobeError("the page tables of this guest's programs are not of pages of 4 KiB")

    def parts(absent: Label, other: Label) -> tuple[Sequence[Item], Sequence[Item]]:
        offset, first, no_table = Label(), Label(), Label()
        code = [*_found(linear.user, offset, absent, other, no_table), *_record(linear.user, first)]
        # Where there is no table there is a block, or nothing.
        apart = [no_table, _on_bit("tbz", VALID, absent), jump(other)]
        apart += [offset, *_word(linear.offset), first, *_word(records)]
        return code, apart

    return parts


def _found(user: Regime, offset: Label, absent: Label, other: Label, no_table: Label) -> Iterator[Item]:
    """Yield: find the entry. offset: where that of the linear map is."""
    yield from (plain("get_ttbr0_el1", _VALUE), literal(_BASE, offset))
    for level, shift in enumerate(user.shifts):
        upper = ROOT_UPPER if level == 0 else UPPER
        if user.wide:
            yield _field(_UPPER, _VALUE, *upper[1:])
        low, width = shift - _ENTRY_SHIFT, user.entries(level).bit_length() - 1 + _ENTRY_SHIFT
        yield from (
            bits("bfm", _VALUE, _ADDRESS, low, low + width - 1),
            _masked(_VALUE, upper[0] if user.wide else TOP),
        )
        if user.wide:
            yield shifted("orr", _VALUE, _VALUE, _UPPER, upper[0])
        if shift != PAGE_SHIFT:
            yield from (plain("ldr_sum", _VALUE, _VALUE, _BASE), _on_bit("tbz", TABLE, no_table))
    yield from (plain("add", _ENTRY, _VALUE, _BASE), scaled("ldr", _VALUE, _ENTRY, 0, 8))
    yield from (_on_bit("tbz", VALID, absent), _on_bit("tbnz", SPECIAL, other))


def _record(user: Regime, first: Label) -> Iterator[Item]:
    """Yield: find the record by the entry. first: where the address of the first record is."""
    yield from (
        literal(_BASE, first),
        _field(_RECORD, _VALUE, PAGE_SHIFT, (WIDE_TOP if user.wide else TOP) - PAGE_SHIFT),
    )
    if user.wide:
        yield _field(_UPPER, _VALUE, *UPPER[1:])
        yield shifted("orr", _RECORD, _RECORD, _UPPER, WIDE_TOP - PAGE_SHIFT)
    yield shifted("add", _RECORD, _BASE, _RECORD, RECORD_SHIFT)


def _on_bit(name: str, flag: int, label: Label) -> Item:
    """Return a branch on a flag of the entry."""
    return branch_on_bit(name, _VALUE, flag.bit_length() - 1, label)


def _field(to: str, source: str, low: int, width: int) -> int:
    return bits("ubfm", to, source, low, low + width - 1)


def _masked(register: str, top: int) -> int:
    word = masked("andi", register, register, (1 << top) - (1 << _ENTRY_SHIFT))
    assert word is not None, "a run of ones"
    return word


def _word(value: int) -> tuple[int, int]:
    return value & MASK >> 32, value >> 32 & MASK >> 32
