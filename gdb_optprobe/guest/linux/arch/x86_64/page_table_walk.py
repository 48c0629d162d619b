"""Find where the kernel may write a user's memory without a fault: walk the page tables first.

    address ─► the user's? within a page? ─► CR3 ─► … ─► leaf: present, writable, the user's, dirty
                                                           └─► its page in the direct map, present and writable there
The write goes where a user's store with a cached translation would go. Interrupts are off meanwhile, so this CPU does
not answer a flush of translations, and the kernel unmaps, shares or cleans pages only after all CPUs have answered
(mm/gup.c, gup_fast). A page that is not dirty yet is left to the processor, which sets its dirty bit.

    rax   address        ─►  where it is in the direct map, CF clear; or CF set
    rsi   size, 1-8
    rdx, r8 to r11, flags    lost
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import PAGE, Direct, entry_of, leaves
from gdb_optprobe.isa.x86_64.templates import Assembled, assembled

_CONSTANTS = ("tables", "base", "size")


def routine(direct: Direct, shared: bool = False) -> bytes:
    """Return the position-independent code. Raises OptprobeError where keystone cannot be loaded or assembles wrongly.
    shared: accept pages that forks share, for a change that all of them must see. Those may be dirty by the kernel's
    bit.
    """
    numbers = (paging.ADDRESS, direct.start, direct.size)
    return _assembled(direct.la57, shared).with_constants(numbers)


def _source(la57: bool, shared: bool) -> Iterator[str]:
    """Yield the assembly as capstone prints it, with labels."""
    user = 56 if la57 else 47
    yield f"mov edx, {5 if shared else 7}"
    yield from ("mov r11, rax", f"shr r11, {user:#x}", "jne fault")
    yield from ("mov r11d, eax", f"and r11d, {PAGE - 1:#x}", "add r11d, esi", f"cmp r11d, {PAGE:#x}", "ja fault")
    yield "walk:"
    yield "mov r10, cr3"
    for level in range(5 if la57 else 4, 0, -1):
        yield from (*entry_of(level), "mov r11d, r10d", "not r11d", "test edx, r11d", "jne fault")
        yield from leaves(level)
    for level in (1, 2, 3):
        yield f"leaf{level}:"
        yield f"mov r8d, {(PAGE << 9 * (level - 1)) - 1:#x}"
        if level < 3:
            yield "jmp compose"
    yield from f"""
    compose:
        test r10b, {paging.DIRTY:#x}
        {"jne kept" if shared else "je fault"}
    """.strip().splitlines()
    if shared:
        yield from (f"bt r10, {paging.SAVED_DIRTY_BIT:#x}", "jae fault", "kept:")
    yield from """
        test rax, rax
        js done
        and r10, qword ptr [rip + tables]
        and rax, r8
        not r8
        and r10, r8
        or rax, r10
        cmp rax, qword ptr [rip + size]
        jae fault
        add rax, qword ptr [rip + base]
        mov edx, 3
        jmp walk
    done:
        ret
    fault:
        stc
        ret
    """.strip().splitlines()


@cache
def _assembled(la57: bool, shared: bool) -> Assembled:
    return assembled(_source(la57, shared), _CONSTANTS)
