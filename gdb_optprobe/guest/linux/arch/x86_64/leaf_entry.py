"""Find the page of a user's address: its entry in the page tables, and the kernel's record of it (struct page).

    address ─► CR3 ─► … ─► leaf of 4 KiB: present, the user's, of RAM that has records ─► record
Interrupts are off, and so no table is freed meanwhile (mm/gup.c, gup_fast).

    rax   address            kept
    rcx                  ─►  the record; ABSENT; OTHER: no page that can have been written to here
    r9                   ─►  where the direct map has the entry, of any level; r10 ─► its value
    rdx, r8, flags           lost
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct
from gdb_optprobe.isa.user import ABSENT, OTHER, Leaf
from gdb_optprobe.isa.x86_64.templates import Assembled, assembled

REGISTERS = Leaf("rax", "rcx", "r9", "r10", ("rdx", "r8"))
SPECIAL = 1 << 9
"""The kernel's mark of a page that it has no record of (arch/x86/include/asm/pgtable_types.h, _PAGE_BIT_SPECIAL)."""
RECORD_SHIFT = 6
"""Of a record's size."""
_CONSTANTS = ("tables", "base", "size", "records")


def routine(direct: Direct, records: int) -> bytes:
    """Return the position-independent code. records: address of the first record. Raises OptprobeError without
    keystone.
    """
    return _assembled(direct.la57).with_constants((paging.ADDRESS, direct.start, direct.size, records))


def _source(la57: bool) -> Iterator[str]:
    """Yield the assembly as capstone prints it, with labels."""
    yield from ("mov rdx, qword ptr [rip + tables]", "mov r8, qword ptr [rip + base]")
    yield from (f"mov ecx, {ABSENT}", "mov r10, cr3")
    for level in range(5 if la57 else 4, 0, -1):
        yield from (
            "and r10, rdx",
            "mov r9, rax",
            f"shr r9, {9 * level:#x}" if level > 1 else "shr r9, 9",
            "and r9d, 0xff8",
            "add r9, r10",
            "add r9, r8",
            "mov r10, qword ptr [r9]",
            "test r10b, 1",
            "je done",
        )
        if level in (2, 3):
            yield from ("test r10b, r10b", "js other")
    yield from f"""
        mov ecx, r10d
        and ecx, {SPECIAL | paging.USER:#x}
        cmp ecx, {paging.USER}
        jne other
        mov rcx, r10
        and rcx, rdx
        cmp rcx, qword ptr [rip + size]
        jae other
        shr rcx, {12 - RECORD_SHIFT}
        add rcx, qword ptr [rip + records]
        ret
    other:
        mov ecx, {OTHER}
    done:
        ret
    """.strip().splitlines()


@cache
def _assembled(la57: bool) -> Assembled:
    return assembled(_source(la57), _CONSTANTS)
