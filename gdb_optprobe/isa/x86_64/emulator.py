"""Compute the effects of an instruction from its bytes, for the tiers that stop the guest but need no step.

Only exact effects: branches, calls, returns, the stack, moves between registers, lea, and additions to a
register, as a function's first instructions are. An operand in memory is read only where execution goes
through it or the stack gets it. SDM volume 2 for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from gdb_optprobe.isa.base import Effects, Flow, Insn, Pointer, ReadMemory
from gdb_optprobe.isa.x86_64.abi import (
    AF,
    ARITHMETIC_FLAGS,
    CF,
    FLAGS,
    GENERAL,
    OF,
    PC,
    PF,
    RF,
    SEGMENT_BASES,
    SF,
    SP,
    VM,
    ZF,
)
from gdb_optprobe.isa.x86_64.decoder import CACHED, Shape, shape
from gdb_optprobe.isa.x86_64.relocator import is_nop

MASK = 0xFFFF_FFFF_FFFF_FFFF
Registers = Mapping[str, int]


def emulate(insn: Insn, registers: Registers, read: ReadMemory) -> Effects | None:
    """Return the effects of `insn` on these registers; None if it is not emulated, or needs a segment base not given.

    Raises what `read` raises.
    """
    found = _emulator(insn.data)
    return None if found is None else found(_Hit(insn, shape(insn.data), registers, read))


def pointer(insn: Insn) -> Pointer | None:
    """Return where an indirect call or jump goes, by a register, or by memory that one register leads to; else None."""
    parts = shape(insn.data)
    if insn.flow not in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP) or parts.map or parts.opcode != 0xFF:
        return None
    hit = _Hit(insn, parts, {}, lambda address, size: bytes(size))
    if parts.is_register:
        return Pointer(hit.rm)
    if parts.is_rip_relative or parts.sib >= 0 or parts.prefixes & {0x67, *SEGMENT_BASES}:
        return None
    data = insn.data[parts.disp : parts.disp + parts.disp_size]
    return Pointer(hit.rm, int.from_bytes(data, "little", signed=True))


class _Hit:
    """One instruction about to run."""

    __slots__ = ("insn", "parts", "read", "registers")

    def __init__(self, insn: Insn, parts: Shape, registers: Registers, read: ReadMemory) -> None:
        self.insn, self.parts, self.registers, self.read = insn, parts, registers, read

    def rex(self, bit: int) -> int:
        """Return a bit of the REX prefix: 8, 4, 2, 1 for W, R, X, B."""
        return 1 if self.parts.rex >= 0 and self.insn.data[self.parts.rex] & bit else 0

    @property
    def reg(self) -> str:
        return GENERAL[self.parts.reg | self.rex(4) << 3]

    @property
    def rm(self) -> str:
        return GENERAL[self.parts.modrm_byte & 7 | self.rex(1) << 3]

    @property
    def in_opcode(self) -> str:
        return GENERAL[self.parts.opcode & 7 | self.rex(1) << 3]

    @property
    def immediate(self) -> int:
        return int.from_bytes(self.insn.data[self.parts.imm :], "little", signed=True)

    @property
    def width(self) -> int:
        return 64 if self.rex(8) else 32

    def flag(self, bit: int) -> bool:
        return bool(self.registers[FLAGS] & bit)

    def address(self, *, segment: bool = True) -> int | None:
        """Return the address of the operand in memory; None if it needs a segment base that is not given."""
        parts, data = self.parts, self.insn.data
        offset = int.from_bytes(data[parts.disp : parts.disp + parts.disp_size], "little", signed=True)
        mod, rm = parts.modrm_byte >> 6, parts.modrm_byte & 7
        if parts.is_rip_relative:
            offset += self.insn.end
        elif parts.sib >= 0:
            sib = data[parts.sib]
            if not (mod == 0 and sib & 7 == 5):
                offset += self.registers[GENERAL[sib & 7 | self.rex(1) << 3]]
            index = sib >> 3 & 7 | self.rex(2) << 3
            if index != 4:
                offset += self.registers[GENERAL[index]] << (sib >> 6)
        else:
            offset += self.registers[self.rm if rm != 4 else SP]
        offset &= 0xFFFF_FFFF if 0x67 in parts.prefixes else MASK
        for prefix, base in SEGMENT_BASES.items() if segment else ():
            if prefix in parts.prefixes:
                if base not in self.registers:
                    return None
                offset += self.registers[base]
        return offset & MASK

    def operand(self) -> int | None:
        """Return 64 bits from a register or memory."""
        if self.parts.is_register:
            return self.registers[self.rm]
        where = self.address()
        return None if where is None else self.load(where)

    def load(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def goes(self, to: int | None) -> Effects:
        """Return the effects of a jump to a direct target; None for the next instruction."""
        return self.sets({}, to)

    def sets(self, registers: Registers, to: int | None = None) -> Effects:
        return Effects({PC: self.insn.end if to is None else to & MASK, **registers})

    def pushes(self, value: int, to: int | None = None) -> Effects:
        top = self.registers[SP] - 8 & MASK
        return Effects(self.sets({SP: top}, to).registers, ((top, (value & MASK).to_bytes(8, "little")),))


Emulator = Callable[[_Hit], Effects | None]


def _jump(hit: _Hit) -> Effects:
    return hit.goes(hit.insn.target)


def _call(hit: _Hit) -> Effects:
    return hit.pushes(hit.insn.end, hit.insn.target)


def _jcc(hit: _Hit) -> Effects:
    flag, opcode = hit.flag, hit.parts.opcode
    less = flag(SF) != flag(OF)
    holds = (flag(OF), flag(CF), flag(ZF), flag(CF) or flag(ZF), flag(SF), flag(PF), less, less or flag(ZF))
    return hit.goes(hit.insn.target if holds[opcode >> 1 & 7] != bool(opcode & 1) else None)


def _loop(hit: _Hit) -> Effects:
    """Emulate loopne, loope, loop, jrcxz: the count is decremented before it is tested."""
    narrow = 0x67 in hit.parts.prefixes
    mask = 0xFFFF_FFFF if narrow else MASK
    opcode = hit.parts.opcode
    count = hit.registers["rcx"]
    if opcode == 0xE3:
        return hit.goes(hit.insn.target if not count & mask else None)
    count = count - 1 & mask
    again = count != 0 and (opcode == 0xE2 or hit.flag(ZF) == (opcode == 0xE1))
    return hit.sets({"rcx": count}, hit.insn.target if again else None)


def _return(hit: _Hit) -> Effects:
    released = 8 + (hit.immediate & 0xFFFF if hit.parts.opcode == 0xC2 else 0)
    top = hit.registers[SP]
    return hit.sets({SP: top + released & MASK}, hit.load(top))


def _indirect_jump(hit: _Hit) -> Effects | None:
    target = hit.operand()
    return None if target is None else hit.goes(target)


def _indirect_call(hit: _Hit) -> Effects | None:
    target = hit.operand()
    return None if target is None else hit.pushes(hit.insn.end, target)


def _push_operand(hit: _Hit) -> Effects | None:
    value = hit.operand()
    return None if value is None else hit.pushes(value)


def _push(hit: _Hit) -> Effects:
    return hit.pushes(hit.registers[hit.in_opcode])


def _push_immediate(hit: _Hit) -> Effects:
    return hit.pushes(hit.immediate)


def _push_flags(hit: _Hit) -> Effects:
    return hit.pushes(hit.registers[FLAGS] & ~(RF | VM))


def _pop(hit: _Hit) -> Effects:
    top = hit.registers[SP]
    return hit.sets({SP: top + 8 & MASK} | {hit.in_opcode: hit.load(top)})  # pop %rsp leaves what it popped


def _leave(hit: _Hit) -> Effects:
    frame = hit.registers["rbp"]
    return hit.sets({SP: frame + 8 & MASK, "rbp": hit.load(frame)})


def _nothing(hit: _Hit) -> Effects:
    return hit.goes(None)


def _move(hit: _Hit) -> Effects:
    source, destination = (hit.reg, hit.rm) if hit.parts.opcode == 0x89 else (hit.rm, hit.reg)
    return hit.sets({destination: hit.registers[source] & ((1 << hit.width) - 1)})


def _move_immediate(hit: _Hit) -> Effects:
    destination = hit.rm if hit.parts.modrm >= 0 else hit.in_opcode
    return hit.sets({destination: hit.immediate & ((1 << hit.width) - 1)})


def _lea(hit: _Hit) -> Effects | None:
    address = hit.address(segment=False)
    return None if address is None else hit.sets({hit.reg: address & ((1 << hit.width) - 1)})


def _add(hit: _Hit) -> Effects:
    """Emulate add, sub and cmp of an immediate and a register."""
    width = hit.width
    mask, sign = (1 << width) - 1, 1 << (width - 1)
    left, right = hit.registers[hit.rm] & mask, hit.immediate & mask
    extension = hit.parts.reg
    result = (left + right if extension == 0 else left - right) & mask
    carry = result < left if extension == 0 else left < right
    # Out of range only where the operands' signs agree (add) or differ (sub), and the result's is another.
    overflow = (left ^ right ^ (sign if extension == 0 else 0)) & (left ^ result) & sign
    flags = hit.registers[FLAGS] & ~ARITHMETIC_FLAGS
    flags |= CF * carry | ZF * (result == 0) | SF * bool(result & sign) | OF * bool(overflow)
    flags |= AF * bool((left ^ right ^ result) & 0x10) | PF * ((result & 0xFF).bit_count() % 2 == 0)
    return hit.sets({FLAGS: flags} | ({} if extension == 7 else {hit.rm: result}))


@lru_cache(CACHED)
def _emulator(data: bytes) -> Emulator | None:
    parts = shape(data)
    if parts.escape >= 0 or 0xF0 in parts.prefixes:
        return None
    opcode, reg = parts.opcode, parts.reg
    if is_nop(data) or (parts.map == 1 and opcode == 0x1E and data[-1] == 0xFA and 0xF3 in parts.prefixes):
        return _nothing
    if 0x66 in parts.prefixes:  # 16 bits
        return None
    if parts.map == 1:
        return _jcc if opcode & 0xF0 == 0x80 else None
    if parts.map != 0:
        return None
    if opcode & 0xF8 in (0x50, 0x58, 0xB8):
        return {0x50: _push, 0x58: _pop, 0xB8: _move_immediate}[opcode & 0xF8]
    if opcode & 0xF0 == 0x70:
        return _jcc
    if opcode in (0x89, 0x8B):
        return _move if parts.is_register else None
    if opcode == 0x8D:
        return _lea if parts.is_memory else None
    if opcode in (0x81, 0x83):
        return _add if parts.is_register and reg in (0, 5, 7) else None
    if opcode == 0xC7:
        return _move_immediate if parts.is_register and reg == 0 else None
    if opcode == 0xFF:
        return {2: _indirect_call, 4: _indirect_jump, 6: _push_operand}.get(reg)
    return _BY_OPCODE.get(opcode)


_BY_OPCODE: dict[int, Emulator] = {
    0x68: _push_immediate,
    0x6A: _push_immediate,
    0x9C: _push_flags,
    0xC2: _return,
    0xC3: _return,
    0xC9: _leave,
    **dict.fromkeys(range(0xE0, 0xE4), _loop),
    0xE8: _call,
    0xE9: _jump,
    0xEB: _jump,
}
