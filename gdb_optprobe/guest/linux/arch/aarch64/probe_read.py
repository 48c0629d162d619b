"""Read memory at an address that may not be mapped, without a fault: the CPU is asked for its translation first.

    address ─► in the linear map? ─ yes ─► AT S1E1R ─► mapped: read there
      ▲            │ no
      │            └─► AT S1E1R, of a program's AT S1E0R ─► PAR_EL1: its place in memory, or the fault that a load
      │                                                     would take
      └──────── the same byte in the linear map ◄──┘
The linear map has no devices and no pages that the kernel has removed from it. A program's data are read there too, so
that PAN does not apply, and it is normal memory: no alignment is needed. Interrupts are off meanwhile: handlers of
faults use PAR_EL1, which is restored.

    x16   address     ─►  bytes; those that could not be read are 0xff
    x15   size, 1-8   ─►  how many could be read, before the first that could not: `size` or more where all could
    x17   the caller's x30, kept          x12 x13 x14 x30 and the flags   lost
An address of several pages has a frame of its own, and one that crosses no 4 KiB none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.aarch64 import paging
from gdb_optprobe.guest.linux.arch.aarch64.paging import ACCESSED, USER, Page, Regime
from gdb_optprobe.isa.aarch64 import encodings
from gdb_optprobe.isa.aarch64.abi import LR, SP
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    bits,
    branch_if,
    branch_on_bit,
    branch_on_zero,
    constant,
    jump,
    masked,
    number,
    plain,
    scaled,
)
from gdb_optprobe.isa.aarch64.fields import MASK
from gdb_optprobe.isa.aarch64.probe_read import SIZE, TEMPORARY, WORD, frame
from gdb_optprobe.isa.codegen import Comparison, Label, ProbeReadCode

PAGE = 4096
_HALF, _FAILED = 55, 0
"""Bits: of an address, which half it is in; of PAR_EL1, that it has no translation."""
_OFFSET, _PLACE = PAGE - 1, (1 << 52) - PAGE
_FIRST, _SECOND, _THIRD = 16, 24, 32
_PAR, _ZERO = TEMPORARY[0], "xzr"
_OLD_PAR, _DAIF = TEMPORARY[1:]


@dataclass(frozen=True, slots=True)
class Linear:
    """The kernel's linear map: it has the physical address p at offset + p, from the lowest address of its half on up
    to the modules. regime: of the kernel's page tables; user: of programs'.
    """

    offset: int
    regime: Regime
    user: Regime

    @property
    def shift(self) -> int:
        """The bits below those that tell whether an address is in it: asm/memory.h, PAGE_END."""
        return min(self.regime.bits, 48) - 1

    @property
    def parts(self) -> int:
        """How many of `shift` bits the half has; the last one is not of the linear map."""
        return 1 << self.regime.bits - self.shift

    def has(self, address: int) -> bool:
        return self.regime.start <= address < (1 << 64) - (1 << self.shift)

    def at(self, physical: int) -> int:
        return self.offset + physical & MASK


def routine(linear: Linear) -> ProbeReadCode:
    """Return the position-independent code. It does not read text: the caller does that. Raises OptprobeError without
    keystone.
    """
    return ProbeReadCode(encodings.encode_items([*_parts(linear)]), 0)


def place(
    read_physical: Callable[[int, int], bytes], roots: tuple[int, int], address: int, linear: Linear
) -> int | None:
    """Return the physical address from which the routine would read `address`; None where it would not read it.
    roots: TTBR0_EL1 and TTBR1_EL1.
    """
    if not linear.has(address):
        physical = _physical(read_physical, roots, address, linear)
        if physical is None or not linear.has(address := linear.at(physical)):
            return None
    return _physical(read_physical, roots, address, linear)


def _physical(
    read_physical: Callable[[int, int], bytes], roots: tuple[int, int], address: int, linear: Linear
) -> int | None:
    is_kernel = address >> _HALF & 1
    regime = linear.regime if is_kernel else linear.user
    # Tags (TBI): the upper byte of an address says nothing.
    untagged = address | MASK << _HALF & MASK if is_kernel else address & ~(MASK << _HALF)
    page = paging.translate(read_physical, regime, regime.root(roots[is_kernel]), untagged)
    return page.physical + untagged - page.address if page is not None and _may_read(page, is_kernel) else None


def _may_read(page: Page, is_kernel: int) -> bool:
    # A page that was not accessed faults, as it does for the kernel's own reads that must not fault.
    return bool(page.entry & ACCESSED) and bool(is_kernel or page.entry & USER)


def _parts(linear: Linear) -> Iterator[Item]:
    slow, one, fault = Label(), Label(), Label()
    yield from (_masked(_PAR, WORD, _OFFSET), number("subsi", _ZERO, _PAR, PAGE - 8))
    yield branch_if(Comparison.GT, slow)
    yield one
    yield from (plain("get_daif", _DAIF), plain("mask_interrupts", "x0"), plain("get_par_el1", _OLD_PAR))
    yield from _in_linear_map(linear, fault)
    yield from _loaded(fault)
    yield slow
    yield from _of_two_pages(one)


def _in_linear_map(linear: Linear, fault: Label) -> Iterator[Item]:
    """Yield the code that makes x16 an address of the linear map at which there is memory."""
    user, translated, found = Label(), Label(), Label()
    yield from (*_compared(linear), branch_if(Comparison.LE, found))
    yield from (branch_on_bit("tbz", WORD, _HALF, user), plain("at_s1e1r", WORD), jump(translated))
    yield from (user, plain("at_s1e0r", WORD), translated)
    yield from _translated(fault)
    yield from (_masked(WORD, WORD, _OFFSET), _masked(_PAR, _PAR, _PLACE), plain("orr", WORD, WORD, _PAR))
    yield from (*constant(_PAR, linear.offset), plain("add", WORD, WORD, _PAR))
    yield from (*_compared(linear), branch_if(Comparison.GT, fault), found)
    yield plain("at_s1e1r", WORD)
    yield from _translated(fault)


def _compared(linear: Linear) -> Iterator[Item]:
    """Yield the comparison that is `less or equal`, without signs, for an address of the linear map."""
    yield bits("sbfm", _PAR, WORD, linear.shift, 63)
    yield from (number("addi", _PAR, _PAR, linear.parts), number("subsi", _ZERO, _PAR, linear.parts - 2))


def _translated(fault: Label) -> Iterator[Item]:
    yield from (plain("isb"), plain("get_par_el1", _PAR), branch_on_bit("tbnz", _PAR, _FAILED, fault))


def _loaded(fault: Label) -> Iterator[Item]:
    out = Label()
    yield from (scaled("ldr", WORD, WORD, 0, 8), *constant(SIZE, 8))
    yield from (jump(out), fault)
    yield from (*constant(WORD, MASK), *constant(SIZE, 0))
    yield from (out, plain("set_par_el1", _OLD_PAR), plain("set_daif", _DAIF), plain("ret", n=LR))


def _of_two_pages(one: Label) -> Iterator[Item]:
    """Yield a read across pages: the last eight bytes of a page from offset x14 on, then the rest of the next page."""
    offset, other = TEMPORARY[:2]
    end, joined, done = Label(), Label(), Label()
    opened, closed = frame()
    yield from (opened, _stored(offset, _FIRST), _stored(SIZE, _SECOND))
    yield from (plain("sub", WORD, WORD, offset), number("addi", WORD, WORD, PAGE - 8), _stored(WORD, _THIRD))
    yield from (jump(one, link=True), branch_on_zero("cbz", SIZE, done))
    yield from (_fetched(offset, _FIRST), number("subi", other, offset, PAGE - 8))
    yield from (_times_eight(other, other), plain("lsr", WORD, WORD, other))
    yield from (*constant(SIZE, PAGE), plain("sub", SIZE, SIZE, offset), _fetched(other, _SECOND))
    yield from (plain("subs", _ZERO, SIZE, other), branch_if(Comparison.GE, done))
    yield from (_stored(WORD, _FIRST), _stored(SIZE, _SECOND), _fetched(WORD, _THIRD), number("addi", WORD, WORD, 8))
    yield from (branch_on_zero("cbz", WORD, end), jump(one, link=True), _fetched(offset, _SECOND))
    yield from (branch_on_zero("cbnz", SIZE, joined), plain("orr", SIZE, _ZERO, offset), jump(joined))
    yield end
    yield from (*constant(WORD, MASK), _fetched(offset, _SECOND))
    yield from (joined, _times_eight(offset, offset), plain("lsl", WORD, WORD, offset))
    yield from (_fetched(offset, _FIRST), plain("orr", WORD, WORD, offset), done, closed, plain("ret", n=LR))


def _masked(to: str, source: str, mask: int) -> int:
    word = masked("andi", to, source, mask)
    assert word is not None, "a run of ones"
    return word


def _times_eight(to: str, source: str) -> int:
    return bits("ubfm", to, source, 64 - 3, 63 - 3)


def _stored(name: str, at: int) -> int:
    return scaled("str", name, SP, at, 8)


def _fetched(name: str, at: int) -> int:
    return scaled("ldr", name, SP, at, 8)
