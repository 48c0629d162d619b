"""Read memory at an address that may not be mapped, without a fault: walk the radix tree first.

    address ─► quadrant 3: the kernel's tree         ─► … ─► leaf
      ▲        quadrant 0: the tree of SPR PID,              ├─ of the linear map: it is mapped, read there
      │                    by the process table              │
      └──────── the same byte in the linear map ◄────────────┘  elsewhere: a page of RAM, if the linear map has it
Tables are RAM, so the linear map has them; it has no devices. KUAP does not apply there. External interrupts are off
meanwhile, so no table is freed: that waits for every CPU (mm/gup.c). Where Linux masks them by the PACA alone, MSR is
left alone: an interrupt that came meanwhile would have changed it.

    r11   address     ─►  bytes; those that could not be read are 0xff
    r12   size, 1-8   ─►  how many could be read, before the first that could not: `size` or more where all could
    r0    the caller's LR, kept          r8 r9 r10 cr0 LR   lost
An address of several pages has a frame of its own, and one that crosses no 4 KiB none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.isa.codegen import Comparison, Label, ProbeReadCode
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.abi import SP
from gdb_optprobe.isa.ppc64le.encodings import Item, LabelBranch, compare, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.probe_read import LINK, SIZE, WORD, frame
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if

LINEAR_MAP, LINEAR_BITS = 0xC000_0000_0000_0000, 50
ADDRESS_BITS = 52
_PAGE = 4096
_FIRST, _SECOND, _THIRD = 40, 48, 56
_EE = 48  # as a rotation that brings the bit to the top


@dataclass(frozen=True, slots=True)
class Linear:
    """A kernel with radix page tables.

    root:      the physical address of the kernel's tree.
    processes: the physical address of the process table.
    indexes:   of the address, the sizes of all, the first one's first.
    soft_mask: where the PACA says whether Linux takes interrupts to be off.
    """

    root: int
    processes: int
    indexes: tuple[int, ...]
    soft_mask: int

    @property
    def page(self) -> int:
        """The size of the smallest."""
        return 1 << ADDRESS_BITS - sum(self.indexes)


def routine(linear: Linear) -> ProbeReadCode:
    """Return the position-independent code. It does not read text: the caller repeats it. Raises OptprobeError without
    keystone.
    """
    return ProbeReadCode(encodings.encode_items([*_parts(linear)]), 0)


def _parts(linear: Linear) -> Iterator[Item]:
    slow, one, fault = Label(), Label(), Label()
    yield from (rotate("rldicl", "r10", WORD, 0, 52), compare("cmpldi", 0, "r10", _PAGE - 8))
    yield branch_if(Comparison.GT, slow)
    yield one
    yield from _without_interrupts(linear)
    yield from _walk(linear, fault)
    yield from _loaded(fault)
    yield slow
    yield from _of_two_pages(one)


def _without_interrupts(linear: Linear) -> Iterator[Item]:
    """Yield the code that masks interrupts. r12: MSR to restore; 0 where it is not changed."""
    on, off = Label(), Label()
    yield from (plain("mfmsr", "r12"), number("lbz", "r10", "r13", linear.soft_mask))
    yield from (compare("cmpldi", 0, "r10", 0), branch_if(Comparison.EQ, on))
    yield from (number("addi", "r12", "r0", 0), LabelBranch(off), on)
    yield from (rotate("rldicl", "r10", "r12", _EE, 1), rotate("rldicl", "r10", "r10", 64 - _EE, 0))
    yield from (plain("mtmsrd", "r10"), off)


def _walk(linear: Linear, fault: Label) -> Iterator[Item]:
    """Yield the walk. r11: an address ─► its address in the linear map; r9: the start of that."""
    again, kernel, levels, leaf, mine, found = (Label() for _ in range(6))
    yield from (*_linear_map(), again)
    yield from (rotate("rldicl", "r10", WORD, 2, 62), compare("cmpldi", 0, "r10", 3), branch_if(Comparison.EQ, kernel))
    yield from (compare("cmpldi", 0, "r10", 0), branch_if(Comparison.NE, fault))
    yield from (plain("mfpid", "r10"), compare("cmpldi", 0, "r10", 0), branch_if(Comparison.EQ, fault))
    yield from (rotate("rldicr", "r10", "r10", 4, 59), *load(8, LINEAR_MAP | linear.processes))
    yield plain("ldbrx", "r10", "r10", "r8")
    # The entry of a process that has ended is 0.
    yield from (rotate("rldicl", "r8", "r10", 0, 59), compare("cmpldi", 0, "r8", linear.indexes[0]))
    yield from (branch_if(Comparison.NE, fault), LabelBranch(levels))
    yield kernel
    yield from load(10, linear.root)
    yield levels
    unused = 62 - ADDRESS_BITS
    yield from (rotate("rldicl", "r8", WORD, 64 - ADDRESS_BITS, 64 - unused), compare("cmpldi", 0, "r8", 0))
    yield branch_if(Comparison.NE, fault)
    shift = ADDRESS_BITS
    for index in linear.indexes:
        shift -= index
        is_last = shift == linear.page.bit_length() - 1
        more = fault if is_last else Label()
        yield from (rotate("rldicl", "r8", WORD, 64 - shift + 3, 64 - index - 3), rotate("rldicr", "r8", "r8", 0, 60))
        yield from (rotate("rldicl", "r10", "r10", 0, 4), rotate("rldicr", "r10", "r10", 0, 55))
        yield from (logical("or", "r8", "r8", "r9"), plain("ldbrx", "r10", "r10", "r8"))
        yield from (rotate("rldicl", "r8", "r10", 2, 62), compare("cmpldi", 0, "r8", 2))
        yield from (branch_if(Comparison.LT, fault), branch_if(Comparison.EQ, more), number("addi", "r8", "r0", shift))
        if not is_last:
            yield from (LabelBranch(leaf), more)
    yield leaf
    yield from (logical("andi.", "r9", "r10", 4), branch_if(Comparison.EQ, fault))
    yield from (rotate("rldicl", "r9", WORD, 64 - LINEAR_BITS, LINEAR_BITS), compare("cmpldi", 0, "r9", 0x3000))
    yield from (branch_if(Comparison.EQ, found), compare("cmpdi", 0, WORD, 0), branch_if(Comparison.LT, mine))
    yield from (logical("andi.", "r9", "r10", 8), branch_if(Comparison.NE, fault), mine)
    yield from (number("addi", "r9", "r0", -1), logical("sld", "r9", "r9", "r8"))
    yield from (logical("and", "r10", "r10", "r9"), logical("andc", WORD, WORD, "r9"))
    yield from (rotate("rldicl", "r10", "r10", 0, 7), logical("or", WORD, WORD, "r10"))
    yield from (rotate("rldicl", "r9", WORD, 64 - LINEAR_BITS, LINEAR_BITS), compare("cmpldi", 0, "r9", 0))
    yield from (branch_if(Comparison.NE, fault), *_linear_map(), logical("or", WORD, WORD, "r9"))
    yield from (LabelBranch(again), found)


def _loaded(fault: Label) -> Iterator[Item]:
    out, off = Label(), Label()
    yield from (number("ld", WORD, WORD, 0), number("addi", "r10", "r0", 8), LabelBranch(out))
    yield from (fault, number("addi", WORD, "r0", -1), number("addi", "r10", "r0", 0))
    yield from (out, compare("cmpldi", 0, "r12", 0), branch_if(Comparison.EQ, off), plain("mtmsrd", "r12"))
    yield from (off, logical("or", SIZE, "r10", "r10"), plain("blr"))


def _of_two_pages(one: Label) -> Iterator[Item]:
    """Yield a read across pages: the last eight bytes of a page from offset r10 on, then the rest of the next page."""
    done, end, joined = Label(), Label(), Label()
    opened, saved, closed = frame()
    yield from (opened, plain("mflr", "r9"), saved)
    yield from (plain("subf", "r9", "r10", WORD), number("addi", WORD, "r9", _PAGE - 8))
    yield from (number("std", "r10", SP, _FIRST), number("std", SIZE, SP, _SECOND), number("std", WORD, SP, _THIRD))
    yield from (LabelBranch(one, link=True), compare("cmpldi", 0, SIZE, 0), branch_if(Comparison.EQ, done))
    yield from (number("ld", "r10", SP, _FIRST), number("addi", "r9", "r10", 8 - _PAGE))
    yield from (rotate("rldicr", "r9", "r9", 3, 60), logical("srd", WORD, WORD, "r9"))
    yield from (plain("neg", SIZE, "r10"), number("addi", SIZE, SIZE, _PAGE), number("ld", "r8", SP, _SECOND))
    yield from (compare("cmpld", 0, SIZE, "r8"), branch_if(Comparison.GE, done))
    yield from (number("std", WORD, SP, _FIRST), number("std", SIZE, SP, _SECOND), number("ld", WORD, SP, _THIRD))
    yield from (number("addi", WORD, WORD, 8), compare("cmpldi", 0, WORD, 0), branch_if(Comparison.EQ, end))
    yield from (LabelBranch(one, link=True), compare("cmpldi", 0, SIZE, 0), number("ld", "r10", SP, _SECOND))
    yield from (branch_if(Comparison.NE, joined), logical("or", SIZE, "r10", "r10"), LabelBranch(joined))
    yield from (end, number("addi", WORD, "r0", -1), number("ld", "r10", SP, _SECOND))
    yield from (joined, rotate("rldicr", "r9", "r10", 3, 60), logical("sld", WORD, WORD, "r9"))
    yield from (number("ld", "r8", SP, _FIRST), logical("or", WORD, WORD, "r8"))
    yield from (done, number("ld", "r9", SP, LINK), plain("mtlr", "r9"), closed, plain("blr"))


def _linear_map() -> Sequence[Item]:
    return number("addi", "r9", "r0", -1), rotate("rldicr", "r9", "r9", 0, 1)
