"""Copy displaced instructions so that they do the same elsewhere; isa/relocation.py lays the copies out.

    original                           copy
    b X                                b X
    bc X on CR alone, or CTR alone     bc on the opposite, 1f; b X; 1:
    bc X on both                       bc 1f; b 2f; 1: b X; 2:
    bl X, bcl X                        LR ← E, then the same without LK   (E is the original return address)
    bctrl, bctarl                      LR ← E, then bctr, bctar
    bcl 20,31,$+4                      LR ← E
    addpcis                            li, lis, ori, … of the same address
    prefixed, R=1                      the same with another displacement, and a nop against 64-byte boundaries
    nop                                nothing
    any other                          itself: loads and stores with update, stdu r1 and addi r1 too

LR ← E needs a general register: a dead one, or one that is saved in a frame below the red zone.
"""

from __future__ import annotations

from functools import lru_cache

from gdb_optprobe.isa.base import Dead, Flow, Hazard, Insn, OutOfReach, Unrelocatable
from gdb_optprobe.isa.ppc64le.abi import LR
from gdb_optprobe.isa.ppc64le.decoder import BCL_NEXT, flow
from gdb_optprobe.isa.ppc64le.disassembly import CACHED
from gdb_optprobe.isa.ppc64le.fields import (
    ADDPCIS,
    BC,
    BCLR,
    BO_CR_TRUE,
    BO_CTR_ZERO,
    BO_NO_CR,
    BO_NO_CTR,
    CR_OPS,
    TD,
    TDI,
    TRAP,
    TW,
    TWI,
    X31,
    B,
    branches_always,
    d_of_addpcis,
    displacement34,
    fits,
    is_absolute,
    is_pc_relative,
    links,
    opcode,
    operand_size,
    ra,
    rt,
    suffix_of,
    to_bytes,
    with_displacement34,
    word_of,
    xo,
)
from gdb_optprobe.isa.ppc64le.templates import load, templates, word
from gdb_optprobe.isa.ppc64le.writer import FrameSaves, branch, keep
from gdb_optprobe.isa.relocation import DisplacedRegion, Relocation

NOP = 0x6000_0000
PROBE = 0x0BE0_0000  # tdi 31,r0,0: traps always
LINE = 64  # no prefixed instruction may cross such a boundary (Book I, 1.6)
TBEGIN = 654  # an extended opcode of 31
SCRATCH = (12, 11, 0, *range(10, 2, -1))


def hazard(insn: Insn) -> Hazard | None:
    """Return why `insn` cannot be moved anywhere; None if it can, or if that depends on the place."""
    return _hazard(insn.data)


def moves_as_it_is(insn: Insn) -> bool:
    """Return whether every copy of `insn` is its own bytes, or nothing: a sweep need not try to move it."""
    return _moves_as_it_is(insn.data)


def fills(insn: Insn) -> bool:
    """Return whether assemblers fill gaps with `insn`: a nop, a trap."""
    return is_nop(insn.data) or word_of(insn.data) == TRAP


def shadows(insn: Insn) -> bool:
    """Return whether `insn` holds off interrupts until the next instruction has run: none does."""
    return False


def restarts(insn: Insn) -> bool:
    """Return whether a step may do a part of `insn` and leave the PC on it: of none."""
    return False


@lru_cache(CACHED)
def _moves_as_it_is(data: bytes) -> bool:
    first = word_of(data)
    if _hazard(data) is not None or is_pc_relative(data) or _is_addpcis(first) or first == BCL_NEXT:
        return False
    kind, target = flow(first, 0) if len(data) == 4 else (Flow.NEXT, None)
    return target is None and kind not in (Flow.INDIRECT_CALL, Flow.CALL) and len(data) == 4


@lru_cache(CACHED)
def _hazard(data: bytes) -> Hazard | None:
    if len(data) == 8:
        return None
    first = word_of(data)
    op = opcode(first)
    if op in (TDI, TWI) or (op == X31 and xo(first) in (TW, TD)):
        return Hazard.TRAP  # on a condition too: the kernel knows its traps by their addresses
    if flow(first, 0)[0] is Flow.SYSTEM:
        return Hazard.SYSTEM
    if op == CR_OPS and xo(first) == BCLR and links(first):
        return Hazard.NOT_SUPPORTED  # goes where LR says while LR becomes something else
    if op == X31 and xo(first) == TBEGIN:
        return Hazard.READS_ITS_ADDRESS  # a failed transaction returns behind it
    return None


def is_nop(data: bytes) -> bool:
    return word_of(data) == NOP


def _is_addpcis(first: int) -> bool:
    return opcode(first) == CR_OPS and first >> 1 & 31 == ADDPCIS


def _copy(insn: Insn, at: int, region: DisplacedRegion) -> bytes:
    why = _hazard(insn.data)
    if why is not None:
        raise Unrelocatable(why, insn)
    if insn.size == 8:
        return _prefixed(insn, at, region)
    first = word_of(insn.data)
    if first == BCL_NEXT:
        return _linked(region.return_address(insn), region.dead)
    if _is_addpcis(first):
        return to_bytes(*load(rt(first), insn.end + (d_of_addpcis(first) << 16)))
    if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
        linked = _linked(region.return_address(insn), region.dead)
        return linked + _unlinked(insn, first & ~1, at + len(linked), region)
    return _unlinked(insn, first, at, region)


def _linked(address: int, dead: Dead) -> bytes:
    """Encode LR ← `address`. A dead CTR can hold a register meanwhile, a dead LR cannot: it changes."""
    free = next((number for number in SCRATCH if f"r{number}" in dead.registers), None)
    scratch = SCRATCH[0] if free is None else free
    kept = FrameSaves() if free is not None else keep([scratch], Dead(False, dead.registers - {LR}))
    return to_bytes(*kept.before, *load(scratch, address), word("mtlr", scratch), *kept.after)


def _unlinked(insn: Insn, first: int, at: int, region: DisplacedRegion) -> bytes:
    """Copy `first`, which is `insn` without LK: if it is a branch, it leaves no return address."""
    if insn.target is None:
        return insn.data if first == word_of(insn.data) else to_bytes(first)
    target = region.resolve(insn, insn.target)
    if target == insn.target and is_absolute(first):
        return to_bytes(first)
    if opcode(first) != BC or branches_always(first):
        return branch(at, target)
    return _conditional(first, at, target)


def _conditional(first: int, at: int, target: int) -> bytes:
    """Copy a conditional branch. The hint bits of BO are in other places for other tests (Book I, 2.4)."""
    bo = rt(first)
    if bo & BO_NO_CTR:  # on CR alone: 0b0x1at
        opposite = bo ^ BO_CR_TRUE ^ (bo >> 1 & 1)
    elif bo & BO_NO_CR:  # on CTR alone: 0b1ax0t
        opposite = bo ^ BO_CTR_ZERO ^ (bo >> 3 & 1)
    else:
        return to_bytes(_bc(first, bo, 8), B << 26 | 8) + branch(at + 8, target)
    return to_bytes(_bc(first, opposite, 8)) + branch(at + 4, target)


def _bc(first: int, bo: int, displacement: int) -> int:
    return BC << 26 | bo << 21 | first & 31 << 16 | displacement


def _prefixed(insn: Insn, at: int, region: DisplacedRegion) -> bytes:
    data, relative = insn.data, is_pc_relative(insn.data)
    size = operand_size(data)
    if relative or (size and not ra(suffix_of(data))):
        operand = displacement34(data) + (insn.address if relative else 0)
        if size:
            region.check_operand(insn, operand, size)
        else:  # paddi
            region.check_address(insn, operand)
    if relative:
        where = at + 4 if at % LINE == LINE - 4 else at
        if not fits(operand - where, 34):
            raise OutOfReach(at, operand)
        data = with_displacement34(data, operand - where)
    nop = to_bytes(templates()["nop"])
    return nop + data if at % LINE == LINE - 4 else data + nop


def _copy_falls_through(insn: Insn) -> bool:
    first = word_of(insn.data)
    # A conditional call that is not taken falls through.
    is_conditional = opcode(first) != B and not branches_always(first)
    is_call = insn.flow in (Flow.CALL, Flow.INDIRECT_CALL)
    return insn.flow in (Flow.NEXT, Flow.BRANCH) or (is_call and is_conditional)


relocate = Relocation(_copy, branch, is_nop, shadows, _copy_falls_through, moves_as_it_is).relocate
