"""Find the page of a program's address: its entry in the page tables, and the kernel's record of it (struct page).

    address ─► TTBR0_EL1 ─► … ─► an entry of the last level: the program's, of RAM with records ─► record
With TCR_EL1.DS (LPA2) there is a level more, and entries have bits 51 and 50 of the physical address in bits 9 and 8.
The CPU's own translation (AT) does not tell the entry. Interrupts are off, and so no table is freed meanwhile: that
waits for a grace period (mm/mmu_gather.c, tlb_remove_table).

    x16   address             kept
    x15                   ─►  the record; ABSENT; OTHER: no page of the smallest size that has a record
    x14                   ─►  where the linear map has the entry of the last level; x13 ─► its value
    x12, x11                  lost
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.paging import MOST_BITS, TABLE, USER, VALID, Regime
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import Linear
from gdb_optprobe.isa.aarch64 import encodings
from gdb_optprobe.isa.aarch64.abi import LR
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    bits,
    branch_on_bit,
    branch_on_zero,
    constant,
    masked,
    plain,
    scaled,
    shifted,
)
from gdb_optprobe.isa.codegen import Label
from gdb_optprobe.isa.user import ABSENT, OTHER, Leaf

REGISTERS = Leaf("x16", "x15", "x14", "x13", ("x12", "x11"))
SPECIAL = 1 << 56
"""The kernel's mark of a page that it has no record of (asm/pgtable-prot.h, PTE_SPECIAL)."""
RECORD_SHIFT = 6
"""Of a record's size."""
PAGE_SHIFT, PHYSICAL = 12, (1 << 48) - (1 << 12)
WIDE, UPPER_SHIFT, UPPER_FROM = (1 << 50) - (1 << 12), 50, 8
"""The physical address in an entry with LPA2: its lower bits, and from where to where the upper two are moved."""
ROOT, ROOT_SHIFT, ROOT_FROM, ROOT_BITS = (1 << 48) - (1 << 6), 48, 2, 4
"""Likewise of TTBR0_EL1."""
_ADDRESS, _RECORD, _ENTRY, _VALUE = REGISTERS.address, REGISTERS.record, REGISTERS.entry, REGISTERS.value
_INDEX, _LINEAR = REGISTERS.lost


def routine(linear: Linear, records: int) -> bytes:
    """Return the position-independent code. records: of the physical page 0. Raises OptprobeError, also without
    keystone.
    """
    if linear.user.granule != PAGE_SHIFT:
        raise OptprobeError("the page tables of this guest's programs are not of pages of 4 KiB")
    return encodings.encode_items([*_parts(linear, records)], 0)


def _parts(linear: Linear, records: int) -> Iterator[Item]:
    absent, other = Label(), Label()
    yield from (plain("get_ttbr0_el1", _VALUE), *constant(_LINEAR, linear.offset))
    yield _field(_INDEX, _ADDRESS, linear.user.bits, 64 - linear.user.bits)
    yield branch_on_zero("cbnz", _INDEX, other)
    for level, shift in enumerate(linear.user.shifts):
        yield from _root(linear.user) if level == 0 else _physical(_VALUE, linear.user)
        yield _field(_INDEX, _ADDRESS, shift, linear.user.entries(level).bit_length() - 1)
        yield plain("add", _VALUE, _VALUE, _LINEAR)
        is_last = shift == PAGE_SHIFT
        if is_last:
            yield from (shifted("add", _ENTRY, _VALUE, _INDEX, 3), scaled("ldr", _VALUE, _ENTRY, 0, 8))
        else:
            yield plain("ldr_index", _VALUE, _VALUE, _INDEX)
        # Without it there is a block; on the last level there is nothing.
        yield from (_unless(VALID, absent), _unless(TABLE, absent if is_last else other))
    yield from (_unless(USER, other), branch_on_bit("tbnz", _VALUE, SPECIAL.bit_length() - 1, other))
    if linear.user.wide:
        yield from (plain("orr", _RECORD, "xzr", _VALUE), *_physical(_RECORD, linear.user))
        yield _field(_RECORD, _RECORD, PAGE_SHIFT, MOST_BITS - PAGE_SHIFT)
    else:
        yield _field(_RECORD, _VALUE, PAGE_SHIFT, PHYSICAL.bit_length() - PAGE_SHIFT)
    yield from (*constant(_INDEX, records), shifted("add", _RECORD, _INDEX, _RECORD, RECORD_SHIFT))
    yield plain("ret", n=LR)
    for label, result in ((other, OTHER), (absent, ABSENT)):
        yield label
        yield from (*constant(_RECORD, result), plain("ret", n=LR))


def _unless(flag: int, label: Label) -> Item:
    """Return a branch where the entry lacks a flag."""
    return branch_on_bit("tbz", _VALUE, flag.bit_length() - 1, label)


def _field(to: str, source: str, low: int, width: int) -> int:
    return bits("ubfm", to, source, low, low + width - 1)


def _root(user: Regime) -> Iterator[Item]:
    """Yield: turn TTBR0_EL1 into the physical address of the root."""
    if user.wide:
        yield from _joined(_VALUE, ROOT, ROOT_SHIFT, ROOT_FROM, ROOT_BITS)
    else:
        yield _masked(_VALUE, PHYSICAL)


def _physical(register: str, user: Regime) -> Iterator[Item]:
    """Yield: turn an entry into the physical address that it has."""
    if user.wide:
        yield from _joined(register, WIDE, UPPER_SHIFT, UPPER_FROM, MOST_BITS - UPPER_SHIFT)
    else:
        yield _masked(register, PHYSICAL)


def _joined(register: str, mask: int, shift: int, low: int, width: int) -> Iterator[Item]:
    """Yield: join the bits of the mask with `width` bits from `low` on, which belong at `shift`."""
    yield from (_field(_INDEX, register, low, width), _masked(register, mask))
    yield shifted("orr", register, register, _INDEX, shift)


def _masked(register: str, mask: int) -> int:
    word = masked("andi", register, register, mask)
    assert word is not None, "a run of ones"
    return word
