"""Copy displaced instructions so that they do the same elsewhere; isa/relocation.py lays the copies out.

    original                           copy
    b X                                b X
    b.cond X, cbz X, tbz X             the same on the opposite, 1f; b X; 1:
    bl X                               x30 ← E; b X                      (E is the original return address)
    blr xN, blraa xN, xM               mov x16, xN; x30 ← E; br x16, braa x16, xM
    adr xD, X                          adrp and add of the same address
    adrp xD, X                         adrp of the same page
    ldr xT, X                          adrp and add of the address in xT; ldr xT, [xT]
    nop                                nothing
    any other                          itself: what moves the stack pointer, signs x30 or changes pstate, too

x30 ← E is adrp and add: no register more is used, and no data are among code. x16 is free at a call, where a
veneer may be (AAPCS64, general-purpose registers); only jumps by it or x17 may arrive at landing pads of calls (BTI).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gdb_optprobe.isa.aarch64.decoder import CACHED, SIZE
from gdb_optprobe.isa.aarch64.fields import (
    BRK,
    MASK,
    NEGATES,
    NOP,
    UDF,
    ZERO_OR_SP,
    adr_target,
    is_adr,
    is_b_cond,
    is_load_literal,
    links,
    offset19,
    rd,
    rn,
    to_bytes,
    word_of,
)
from gdb_optprobe.isa.aarch64.templates import address, adrp, word
from gdb_optprobe.isa.aarch64.writer import branch, redirect
from gdb_optprobe.isa.base import Flow, Hazard, Insn, Unrelocatable
from gdb_optprobe.isa.relocation import DisplacedRegion, Relocation

LR, VENEER = 30, 16
_NEVER = {Flow.TRAP: Hazard.TRAP, Flow.SYSTEM: Hazard.SYSTEM}
# blr and blraa differ from br and braa in one bit: C6.2.
_LINKS = 1 << 21


class _Load(NamedTuple):
    word: int
    size: int


# The same load of what a register has the address of, by opc: C6.2, ldr, ldrsw.
_LOADS = {0: _Load(0xB940_0000, 4), 1: _Load(0xF940_0000, 8), 2: _Load(0xB980_0000, 4)}


def hazard(insn: Insn) -> Hazard | None:
    """Return why `insn` cannot be moved anywhere; None if it can, or if that depends on the place."""
    if insn.flow in _NEVER:
        return _NEVER[insn.flow]
    # Direct branches, most of which are unlike any other, are kept away from the cache.
    return None if insn.target is not None else _hazard(insn.data)


def moves_as_it_is(insn: Insn) -> bool:
    """Return whether every copy of `insn` is its own bytes, or nothing: a sweep need not try to move it."""
    return insn.target is None and insn.flow not in _NEVER and _moves_as_it_is(insn.data)


def fills(insn: Insn) -> bool:
    """Return whether assemblers and linkers fill gaps with `insn`: a nop, a breakpoint, zeros."""
    return word_of(insn.data) in (NOP, BRK, UDF)


def shadows(insn: Insn) -> bool:
    """Return whether `insn` holds off interrupts until the next instruction has run: none does."""
    return False


def restarts(insn: Insn) -> bool:
    """Return whether a step may do a part of `insn` and leave the PC on it: of none."""
    return False


@lru_cache(CACHED)
def _moves_as_it_is(data: bytes) -> bool:
    first = word_of(data)
    return _hazard(data) is None and not (is_adr(first) or is_load_literal(first) or links(first))


@lru_cache(CACHED)
def _hazard(data: bytes) -> Hazard | None:
    first = word_of(data)
    if is_load_literal(first) and (first >> 26 & 1 or first >> 30 not in _LOADS or rd(first) == ZERO_OR_SP):
        return Hazard.NOT_SUPPORTED  # of a vector register, a prefetch: no register to have the address in
    if links(first) and rd(first) in (VENEER, LR):
        return Hazard.NOT_SUPPORTED  # blraa: what authenticates the pointer is in a register that changes first
    return None


def is_nop(data: bytes) -> bool:
    return word_of(data) == NOP


def _copy(insn: Insn, at: int, region: DisplacedRegion) -> bytes:
    why = hazard(insn)
    if why is not None:
        raise Unrelocatable(why, insn)
    first = word_of(insn.data)
    if is_adr(first):
        return _address(insn, first, at, region)
    if is_load_literal(first):
        operand = insn.address + offset19(first) & MASK
        region.check_operand(insn, operand, _LOADS[first >> 30].size)
        return to_bytes(*address(rd(first), operand, at), _LOADS[first >> 30].word | rd(first) << 5 | rd(first))
    if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
        return _call(insn, first, at, region)
    if insn.target is None:
        return insn.data
    return _branch(insn, first, at, region.resolve(insn, insn.target))


def _address(insn: Insn, first: int, at: int, region: DisplacedRegion) -> bytes:
    target = adr_target(first, insn.address)
    if rd(first) == ZERO_OR_SP:  # `adr xzr` does nothing, but `add sp, sp` would
        return to_bytes(NOP)
    if first >> 31:
        return to_bytes(adrp(rd(first), target, at))
    region.check_address(insn, target)
    return to_bytes(*address(rd(first), target, at))


def _call(insn: Insn, first: int, at: int, region: DisplacedRegion) -> bytes:
    """Copy a call as a jump that leaves the original return address in x30."""
    back = region.return_address(insn)
    if insn.target is not None:
        linked = to_bytes(*address(LR, back, at))
        return linked + branch(at + len(linked), region.resolve(insn, insn.target))
    by_veneer = first & ~_LINKS & ~(31 << 5) | VENEER << 5
    return to_bytes(word("move", VENEER, rm=rn(first)), *address(LR, back, at + SIZE), by_veneer)


def _branch(insn: Insn, first: int, at: int, target: int) -> bytes:
    """Copy a direct branch that leaves no return address."""
    if insn.flow is Flow.JUMP:
        return branch(at, target)
    opposite = first ^ (1 if is_b_cond(first) else NEGATES)
    over = Insn(at, to_bytes(opposite), insn.text, Flow.BRANCH)
    return redirect(over, at + 2 * SIZE) + branch(at + SIZE, target)


relocate = Relocation(
    _copy, branch, is_nop, shadows, lambda insn: insn.flow in (Flow.NEXT, Flow.BRANCH), moves_as_it_is
).relocate
