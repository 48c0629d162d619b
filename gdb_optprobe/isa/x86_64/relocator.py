"""Copy displaced instructions so that they do the same elsewhere; isa/relocation.py lays the copies out.

    original                     copy
    jcc / jmp rel8, rel32        jcc / jmp rel32
    loop, jrcxz X                loop 1f; jmp 2f; 1: jmp X; 2:
    call X                       push E; jmp X           (E is the original return address)
    call *%reg, *mem             push E; jmp *%reg, *mem (8 more where mem is based on rsp)
    call *%rsp, *-8(%rsp)        push operand; push (%rsp); mov E, 8(%rsp); ret
    disp(%rip)                   disp'(%rip), or disp32 alone if that is the same address
    nop                          nothing
    any other                    itself

No register, flag or byte at or above the stack pointer is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from gdb_optprobe.isa.base import Flow, Hazard, Insn, OutOfReach, Unrelocatable
from gdb_optprobe.isa.relocation import MASK, DisplacedRegion, Relocation
from gdb_optprobe.isa.x86_64.decoder import CACHED, LARGEST_OPERAND, LONGEST, VEX2, Shape, flow, memory_operand, shape
from gdb_optprobe.isa.x86_64.writer import BRANCH_SIZE, branch, fits, push, rel32, signed, store

SLACK = 4096  # more than any copy is long
MOFFS = range(0xA0, 0xA4)  # mov between an address in the instruction and al, eax, rax
_LANDING_PADS = frozenset(bytes.fromhex(code) for code in ("f30f1efa", "f30f1efb"))  # endbr64, endbr32


def hazard(insn: Insn) -> Hazard | None:
    """Return why `insn` cannot be moved anywhere; None if it can, or if that depends on the place."""
    return _hazard(insn.data)


def forbidden(code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
    """Return no address: any instruction may be stopped at."""
    return {}


def moves_as_it_is(insn: Insn) -> bool:
    """Return whether every copy of `insn` is its own bytes, or nothing: a sweep need not try to move it."""
    # Branches, most of which are unlike any other, are kept away from the cache.
    return insn.flow in (Flow.NEXT, Flow.RETURN) and _moves_as_it_is(insn.data)


@lru_cache(CACHED)
def _moves_as_it_is(data: bytes) -> bool:
    parts = shape(data)
    return _hazard(data) is None and not _may_name_memory(data, parts) and not _shadows(data)


@lru_cache(CACHED)
def _hazard(data: bytes) -> Hazard | None:
    parts = shape(data)
    kind, target = flow(data, 0)
    if kind is Flow.TRAP:
        return Hazard.TRAP
    if kind is Flow.SYSTEM:
        return Hazard.SYSTEM
    # AMD takes 66 on a near branch as 16 bits of target, Intel ignores it.
    if kind not in (Flow.NEXT, Flow.RETURN) and 0x66 in parts.prefixes and not _is_wide(data, parts):
        return Hazard.NOT_SUPPORTED
    if kind is Flow.RETURN and 0x66 in parts.prefixes:
        return Hazard.NOT_SUPPORTED
    if target is not None and parts.imm_size not in (1, 4):
        return Hazard.NOT_SUPPORTED
    if parts.map == 1 and parts.opcode == 0x01 and parts.modrm_byte == 0xD7:  # enclu: leaves its own address in rcx
        return Hazard.READS_ITS_ADDRESS
    return None


def _is_wide(data: bytes, parts: Shape) -> bool:
    return parts.rex >= 0 and bool(data[parts.rex] & 8)


def fills(insn: Insn) -> bool:
    """Return whether assemblers fill gaps with `insn`: a nop, an int3."""
    return insn.data == b"\xcc" or is_nop(insn.data)


def is_landing_pad(insn: Insn) -> bool:
    """Return whether an indirect branch must find `insn` where it lands (CET)."""
    return insn.data in _LANDING_PADS


def shadows(insn: Insn) -> bool:
    """Return whether `insn` holds off interrupts until the next instruction has run (SDM volume 3, 6.8.3)."""
    return _shadows(insn.data)


def restarts(insn: Insn) -> bool:
    """Return whether a step may do one turn of several: a string instruction with a rep prefix (SDM volume 2, REP)."""
    return insn.text.startswith("rep")


@lru_cache(CACHED)
def _shadows(data: bytes) -> bool:
    parts = shape(data)
    if parts.map or parts.escape >= 0:
        return False
    return parts.opcode == 0xFB or (parts.opcode == 0x8E and parts.reg == 2)  # sti; mov to ss


@lru_cache(CACHED)
def is_nop(data: bytes) -> bool:
    parts = shape(data)
    if parts.prefixes & {0xF2, 0xF3, 0xF0}:  # pause; rdsspq and endbr64 are among the hinted nops
        return False
    if parts.map == 0 and parts.escape < 0:
        return parts.opcode == 0x90 and not (parts.rex >= 0 and data[parts.rex] & 1)  # 41 90 is xchg %eax, %r8d
    return parts.map == 1 and parts.escape < 0 and parts.opcode == 0x1F and parts.reg == 0


def _copy(insn: Insn, at: int, region: DisplacedRegion) -> bytes:
    why = _hazard(insn.data)
    if why is not None:
        raise Unrelocatable(why, insn)
    parts = shape(insn.data)
    _check_operand(insn, parts, region)
    if insn.flow is Flow.CALL:
        assert insn.target is not None
        before = push(region.return_address(insn))
        return before + branch(at + len(before), region.resolve(insn, insn.target))
    if insn.flow is Flow.INDIRECT_CALL:
        return _indirect_call(insn, parts, at, region)
    if insn.target is not None:
        return _direct(insn, parts, at, region.resolve(insn, insn.target))
    if parts.is_rip_relative:
        return _with_operand(insn, insn.data, parts, at, region)
    return insn.data


def _direct(insn: Insn, parts: Shape, at: int, target: int) -> bytes:
    """Copy a direct branch that leaves no return address."""
    if insn.flow is Flow.JUMP:
        return branch(at, target)
    if parts.map == 0 and 0xE0 <= parts.opcode <= 0xE3:  # loopne, loope, loop, jrcxz: rel8 is all they have
        size_of_rcx = b"\x67" if 0x67 in parts.prefixes else b""
        hop = size_of_rcx + bytes((parts.opcode, 2)) + bytes((0xEB, BRANCH_SIZE))
        return hop + branch(at + len(hop), target)
    opcode = b"\xc7\xf8" if parts.opcode == 0xC7 else bytes((0x0F, 0x80 | parts.opcode & 0xF))
    return opcode + rel32(at, at + 6, target)


def _with_reg(data: bytes, parts: Shape, reg: int) -> bytes:
    """Return `data` with another extension of its opcode in ModRM."""
    return data[: parts.modrm] + bytes((data[parts.modrm] & 0xC7 | reg << 3,)) + data[parts.modrm + 1 :]


CALL, JUMP, PUSH = 2, 4, 6  # opcode FF, by ModRM.reg


def _indirect_call(insn: Insn, parts: Shape, at: int, region: DisplacedRegion) -> bytes:
    back = region.return_address(insn)
    wide_b = parts.rex >= 0 and insn.data[parts.rex] & 1
    is_rsp = parts.is_register and parts.modrm_byte & 7 == 4 and not wide_b
    based_on_rsp = parts.sib >= 0 and insn.data[parts.sib] & 7 == 4 and not wide_b
    offset = int.from_bytes(insn.data[parts.disp : parts.disp + parts.disp_size], "little", signed=True)
    if is_rsp or (based_on_rsp and offset < 0):
        # The return address would overwrite the operand, or moves it: read it first.
        first = _with_reg(insn.data, parts, PUSH)
        return first + b"\xff\x34\x24" + store(back, 8) + b"\xc3"  # push (%rsp); mov; ret
    jump = _with_reg(insn.data, parts, JUMP)
    pushed = push(back)
    if based_on_rsp:
        offset += 8
        if not fits(offset):
            raise Unrelocatable(Hazard.NOT_SUPPORTED, insn)
        size, mod = (1, 0x40) if fits(offset, 8) else (4, 0x80)
        modrm = bytes((jump[parts.modrm] & 0x3F | mod, jump[parts.sib]))
        jump = jump[: parts.modrm] + modrm + offset.to_bytes(size, "little", signed=True)
    elif parts.is_rip_relative:
        jump = _with_operand(insn, jump, parts, at + len(pushed), region)
    return pushed + jump


def _with_operand(insn: Insn, data: bytes, parts: Shape, at: int, region: DisplacedRegion) -> bytes:
    """Return `data`, made of `insn`, at another place with the same operand, which is relative to RIP."""
    narrow, operand = 0x67 in parts.prefixes, _named(insn, parts)
    # Decided for the whole copy, so that its size does not depend on where in it the instruction is.
    if not narrow and all(fits(signed(operand - region.to) + slack) for slack in (-SLACK, SLACK)):
        return data[: parts.disp] + rel32(at, at + len(data), operand) + data[parts.imm :]
    absolute = operand if narrow else signed(operand)
    if not narrow and not fits(absolute):
        raise OutOfReach(at, operand)
    if len(data) == LONGEST:
        raise Unrelocatable(Hazard.NOT_SUPPORTED, insn)
    # ModRM.rm 4 with SIB 25 is a displacement alone (SDM volume 2, table 2-3), unless X makes it an index of r12.
    out = bytearray(data[: parts.disp])
    out[parts.modrm] = out[parts.modrm] & 0x38 | 0x04
    if parts.rex >= 0:
        out[parts.rex] &= ~0x02
    if parts.escape >= 0 and data[parts.escape] != VEX2:
        out[parts.escape + 1] |= 0x40  # kept inverted there
    return bytes(out) + b"\x25" + (absolute & 0xFFFF_FFFF).to_bytes(4, "little") + data[parts.imm :]


def _check_operand(insn: Insn, parts: Shape, region: DisplacedRegion) -> None:
    """Refuse an operand in the bytes that the branch covers: the copy would read or write the patch."""
    if not _may_name_memory(insn.data, parts):
        return
    address = _named(insn, parts)
    if parts.map == 0 and parts.escape < 0 and parts.opcode == 0x8D:  # lea
        region.check_address(insn, address)
    elif (region.end - address) & MASK <= LARGEST_OPERAND + region.end - region.start:  # near: few are
        operand = memory_operand(insn.data)
        if operand is not None:
            region.check_operand(insn, address, operand.size)


def _may_name_memory(data: bytes, parts: Shape) -> bool:
    """Return whether an operand's address is in the bytes of the instruction, without a general register."""
    if parts.map == 0 and parts.escape < 0 and parts.opcode in MOFFS:
        return True
    # ModRM.mod 0 with a SIB byte of no base and no index (SDM volume 2, table 2-3).
    alone = parts.sib >= 0 and parts.modrm_byte < 0x40 and data[parts.sib] & 0x3F == 0x25
    return parts.is_rip_relative or alone


def _named(insn: Insn, parts: Shape) -> int:
    """Return the address of such an operand, without a segment's base."""
    at, size = (parts.disp, parts.disp_size) if parts.disp_size else (parts.imm, parts.imm_size)
    address = int.from_bytes(insn.data[at : at + size], "little", signed=parts.disp_size > 0)
    address += insn.end if parts.is_rip_relative else 0
    return address & (0xFFFF_FFFF if 0x67 in parts.prefixes else MASK)


def _copy_falls_through(insn: Insn) -> bool:
    return insn.flow in (Flow.NEXT, Flow.BRANCH)


relocate = Relocation(_copy, branch, is_nop, shadows, _copy_falls_through, moves_as_it_is).relocate
