"""Read memory at an address that may not be mapped, without a fault: walk the page tables first.

    address ─► canonical? ─► CR3 ─► PML5 ─► PML4 ─► PDPT ─► PD ─► PT ─► leaf
      ▲                                                                  ├─ in the direct map: it is mapped, read there
      └──────── the same byte in the direct map ◄────────────────────────┘  elsewhere: a page of RAM, if the direct map
                                                                             has it: that is what a second round finds
Tables are RAM, so the kernel's direct map always has them. It maps no devices and no pages that the kernel has removed
from it, so none of these is read. User data are read there too, where SMAP does not apply. Interrupts are off
meanwhile: page tables are freed only once every CPU has answered (mm/gup.c, gup_fast).

    rax   address     ─►  bytes; of `text` those before the first 0, then zeros; what could not be read is 0xff
    r10   size, 1-8   ─►  how many could be read, before the first that could not: `size` or more where all could
    r11, flags            lost
Of `text`, all could be read where a 0 was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.isa.codegen import ProbeReadCode
from gdb_optprobe.isa.x86_64.templates import Assembled, assembled

PAGE = 4096
LEGACY = range(0xA_0000, 0x10_0000)
"""Video memory and ROM, which the direct map has although they are no RAM (arch/x86/mm/init.c, ISA_END_ADDRESS)."""
_LOW, _HIGH = 0x0101_0101_0101_0101, 0x8080_8080_8080_8080
_CONSTANTS = ("tables", "base", "size", "low", "high")


@dataclass(frozen=True, slots=True)
class Direct:
    """A kernel's direct map: where it begins, and what physical addresses it may have, all below `size`.

    la57: page tables have five levels.
    """

    start: int
    size: int
    la57: bool = False


def routine(direct: Direct) -> ProbeReadCode:
    """Return the position-independent code. Raises OptprobeError where keystone cannot be loaded or assembles wrongly.
    """
    numbers = (paging.ADDRESS, direct.start, direct.size, _LOW, _HIGH)
    made = _assembled(direct.la57)
    return ProbeReadCode(made.with_constants(numbers), made.places["text"])


def place(read_physical: Callable[[int, int], bytes], cr3: int, address: int, direct: Direct) -> int | None:
    """Return the physical address from which the routine would read `address`; None where it would not read it."""
    page = paging.translate(read_physical, cr3, address, la57=direct.la57)
    if page is None or not (address >> 63 or page.entry & paging.USER):
        return None
    if 0 <= address - direct.start < direct.size:
        return None if address - direct.start in LEGACY else page.frame_of(address)
    frame = page.frame_of(address)
    return place(read_physical, cr3, direct.start + frame, direct) if frame < direct.size else None


def _source(la57: bool) -> Iterator[str]:
    """Yield the assembly as capstone prints it, with labels."""
    yield from """
    bytes:
        pushfq
        cli
        mov r11d, eax
        and r11d, 0xfff
        cmp r11d, 0xff8
        jbe within
        push rcx
        push rdx
        push rbx
        mov edx, r10d
        mov ecx, 0x1000
        sub ecx, r11d
        lea rbx, [rax + rcx]
        call translate
        mov r10d, 0
        jb read
        mov rax, qword ptr [rax + rcx - 8]
        mov r10d, ecx
        neg ecx
        lea ecx, [rcx*8 + 0x40]
        shr rax, cl
        cmp r10d, edx
        jae read
        mov edx, r10d
        xchg rbx, rax
        test rax, rax
        je ends
        call translate
        mov r10d, edx
        jb join
        mov rax, qword ptr [rax]
        mov r10d, 8
        jmp join
    ends:
        or rax, 0xffffffffffffffff
    join:
        neg ecx
        shl rax, cl
        or rax, rbx
    read:
        pop rbx
        pop rdx
        pop rcx
        jmp out
    within:
        call translate
        mov r10d, 0
        jb out
        mov rax, qword ptr [rax]
        mov r10d, 8
    out:
        popfq
        ret
    text:
        call bytes
        push rcx
        mov rcx, rax
        sub rcx, qword ptr [rip + low]
        mov r11, rax
        not r11
        and rcx, r11
        and rcx, qword ptr [rip + high]
        je whole
        mov r11, rcx
        neg r11
        and r11, rcx
        shr r11, 7
        dec r11
        and rax, r11
        mov r10d, 8
    whole:
        pop rcx
        ret
    """.strip().splitlines()
    yield from _translate(la57)


def entry_of(level: int) -> Sequence[str]:
    """Return the code that goes one table down, for the address in rax: r10, an entry ─► the one that it leads to."""
    return (
        "and r10, qword ptr [rip + tables]",
        "mov r11, rax",
        f"shr r11, {9 * level:#x}" if level > 1 else "shr r11, 9",
        "and r11d, 0xff8",
        "add r11, qword ptr [rip + base]",
        "mov r10, qword ptr [r10 + r11]",
    )


def leaves(level: int) -> Sequence[str]:
    """Return the code that leaves the walk with an entry of this level that maps a page itself."""
    return ("test r10b, r10b", f"js leaf{level}") if level in (2, 3) else ()


def _translate(la57: bool) -> Iterator[str]:
    """Yield the code that translates. rax: an address ─► where the direct map has it, CF clear; or all ones, CF set."""
    unused = 7 if la57 else 16
    yield "translate:"
    yield from ("mov r11, rax", f"shl r11, {unused:#x}" if unused > 9 else "shl r11, 7")
    yield from (f"sar r11, {unused:#x}" if unused > 9 else "sar r11, 7", "cmp r11, rax", "jne fault", "mov r10, cr3")
    for level in range(5 if la57 else 4, 0, -1):
        yield from (*entry_of(level), "test r10b, 1", "je fault", *leaves(level))
    for level in (1, 2, 3):
        yield f"leaf{level}:"
        yield from ("mov r11, rax", "sub r11, qword ptr [rip + base]", "cmp r11, qword ptr [rip + size]", "jb direct")
        yield f"mov r11d, {(PAGE << 9 * (level - 1)) - 1:#x}"
        if level < 3:
            yield "jmp compose"
    yield from f"""
    compose:
        test rax, rax
        js kernel
        test r10b, 4
        je fault
    kernel:
        and r10, qword ptr [rip + tables]
        and rax, r11
        not r11
        and r10, r11
        or rax, r10
        cmp rax, qword ptr [rip + size]
        jae fault
        add rax, qword ptr [rip + base]
        jmp translate
    direct:
        sub r11, {LEGACY.start:#x}
        cmp r11, {len(LEGACY):#x}
        jb fault
        ret
    fault:
        or rax, 0xffffffffffffffff
        stc
        ret
    """.strip().splitlines()


@cache
def _assembled(la57: bool) -> Assembled:
    return assembled(_source(la57), _CONSTANTS)
