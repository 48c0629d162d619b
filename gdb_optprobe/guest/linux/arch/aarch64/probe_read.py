"""Read memory at an address that may not be mapped, without a fault: the CPU is asked to translate it first.

    address ─► AT S1E1R, or S1E0R for a program's ─► PAR_EL1: fault, or physical ─► AT S1E1R of its linear address
                                                              a device            ─► read there
The linear map has all RAM, and keeps what is in use: what another CPU unmaps meanwhile is read all the same. PAN does
not apply there. Interrupts are off, so that no other code of this CPU changes PAR_EL1 meanwhile, which is restored.

    x16   address     ─►  bytes; those that could not be read are 0xff
    x15   size, 1-8   ─►  how many could be read, before the first that could not: `size` or more where all could
    x17   the caller's x30, kept          x12 x13 x14 x30 and the flags   lost
An address of several pages has a frame of its own, and one that crosses no 4 KiB none.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.isa.aarch64.abi import LR, SP
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    bits,
    branch_if,
    branch_on_bit,
    branch_on_zero,
    constant,
    encode_items,
    jump,
    masked,
    number,
    plain,
    scaled,
)
from gdb_optprobe.isa.aarch64.probe_read import SIZE, TEMPORARY, WORD, frame
from gdb_optprobe.isa.codegen import Comparison, Label, ProbeReadCode

PAGE = 4096
KERNEL_HALF = 55
"""The bit of an address that says which half it is in."""
FAILED = 0
"""The bit of PAR_EL1 that is set where nothing is mapped. Its highest four bits are 0 for a device."""
PHYSICAL = 0x000F_FFFF_FFFF_F000
_FIRST, _SECOND, _THIRD = 8, 16, 24  # in the frame
_PAR, _OLD_PAR, _INTERRUPTS = TEMPORARY


def routine(linear: int) -> ProbeReadCode:
    """Return the position-independent code. It does not read text: the caller repeats it. Raises OptprobeError without
    keystone.

    linear: what is added to a physical address for its place in the linear map.
    """
    return ProbeReadCode(encode_items([*_parts(linear)]), 0)


def _parts(linear: int) -> Iterator[Item]:
    slow, one = Label(), Label()
    yield from (_mask(_PAR, WORD, PAGE - 1), number("subi", _PAR, _PAR, PAGE - 8))
    # Of up to 8 bytes from there on all are in the page: the difference is negative, or 0.
    yield from (branch_on_zero("cbz", _PAR, one), branch_on_bit("tbz", _PAR, 63, slow))
    yield one
    yield from _one(linear)
    yield slow
    yield from _of_two_pages(one)


def _one(linear: int) -> Iterator[Item]:
    """Yield a read of the eight bytes at x16, which are in one page."""
    user, translated, fault, out = (Label() for _ in range(4))
    yield from (plain("get_daif", _INTERRUPTS), plain("mask_interrupts"), plain("get_par_el1", _OLD_PAR))
    yield from (branch_on_bit("tbz", WORD, KERNEL_HALF, user), plain("at_s1e1r", WORD), jump(translated))
    yield from (user, plain("at_s1e0r", WORD), translated, plain("isb"), plain("get_par_el1", _PAR))
    yield from (branch_on_bit("tbnz", _PAR, FAILED, fault), bits("ubfm", SIZE, _PAR, 60, 63))
    yield branch_on_zero("cbz", SIZE, fault)
    yield from (_mask(_PAR, _PAR, PHYSICAL), _mask(WORD, WORD, PAGE - 1), plain("orr", _PAR, _PAR, WORD))
    yield from (*constant(WORD, linear), plain("add", WORD, WORD, _PAR), plain("at_s1e1r", WORD), plain("isb"))
    yield from (plain("get_par_el1", _PAR), branch_on_bit("tbnz", _PAR, FAILED, fault))
    yield from (scaled("ldr", WORD, WORD, 0, 8), *constant(SIZE, 8))
    yield from (jump(out), fault)
    yield from (*constant(WORD, -1), *constant(SIZE, 0))
    yield from (out, plain("set_par_el1", _OLD_PAR), plain("set_daif", _INTERRUPTS), plain("ret", n=LR))


def _of_two_pages(one: Label) -> Iterator[Item]:
    """Yield a read across pages: the last eight bytes of a page, then the rest of the next page."""
    offset, other, _ = TEMPORARY
    done, end, joined = Label(), Label(), Label()
    opened, closed = frame()
    yield from (opened, _mask(offset, WORD, PAGE - 1), plain("sub", WORD, WORD, offset))
    yield from (number("addi", WORD, WORD, PAGE - 8), scaled("str", offset, SP, _FIRST, 8))
    yield from (scaled("str", SIZE, SP, _SECOND, 8), scaled("str", WORD, SP, _THIRD, 8), jump(one, link=True))
    yield from (branch_on_zero("cbz", SIZE, done), scaled("ldr", offset, SP, _FIRST, 8))
    yield from (number("subi", offset, offset, PAGE - 8), plain("sub", SIZE, SIZE, offset))
    yield from (_times_8(offset, offset), plain("lsr", WORD, WORD, offset), scaled("ldr", other, SP, _SECOND, 8))
    yield from (plain("subs", "xzr", SIZE, other), branch_if(Comparison.GE, done))
    yield from (scaled("str", WORD, SP, _FIRST, 8), scaled("str", SIZE, SP, _SECOND, 8))
    yield from (scaled("ldr", WORD, SP, _THIRD, 8), number("addi", WORD, WORD, 8), branch_on_zero("cbz", WORD, end))
    yield from (jump(one, link=True), scaled("ldr", offset, SP, _SECOND, 8), branch_on_zero("cbnz", SIZE, joined))
    yield from (plain("orr", SIZE, "xzr", offset), jump(joined))
    yield end
    yield from (*constant(WORD, -1), scaled("ldr", offset, SP, _SECOND, 8), plain("orr", SIZE, "xzr", offset))
    yield from (joined, _times_8(offset, offset), plain("lsl", WORD, WORD, offset))
    yield from (scaled("ldr", other, SP, _FIRST, 8), plain("orr", WORD, WORD, other))
    yield from (done, closed, plain("ret", n=LR))


def _mask(to: str, register: str, mask: int) -> int:
    word = masked("andi", to, register, mask)
    assert word is not None, "a run of ones"
    return word


def _times_8(to: str, register: str) -> int:
    return bits("ubfm", to, register, 61, 60)
