"""Decode instructions: length and text come from capstone, the control flow from the opcode bytes.

An x86 instruction, as `Shape` sees it:

    ┌──────────┬─────┬──────────────────┬───────┬─────┬──────────────┬───────────┐
    │ prefixes │ REX │ 0F, 0F38, 0F3A,  │ ModRM │ SIB │ displacement │ immediate │
    │ 66 67 F2 │     │ VEX, EVEX escape │       │     │ 0, 1 or 4    │ the rest  │
    │ F3 lock… │     │ and opcode       │       │     │ bytes        │           │
    └──────────┴─────┴──────────────────┴───────┴─────┴──────────────┴───────────┘
    (Intel SDM volume 2, chapter 2)

A sweep of a whole kernel is millions of instructions: it takes `disasm_lite` and one table
look-up each, with Python's collector of cycles at rest: an instruction is in none, and looking
through millions of them over and over took two thirds of the time. Whatever needs more
(operands, flags) asks for one instruction and is cached by its bytes, of which a kernel has far
fewer than instructions.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import capstone

from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.x86_64.abi import SEGMENT_BASES

CACHED = 1 << 16
LONGEST = 15
WORD = 4
LOWEST = 1 << 24
"""No image lies lower."""
# capstone keeps a piece's instructions in memory, 250 bytes each, before it hands out the first.
PIECE = 1 << 12

LEGACY_PREFIXES = frozenset((0x66, 0x67, 0xF2, 0xF3, 0xF0, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65))
EVEX, VEX3, VEX2, XOP = 0x62, 0xC4, 0xC5, 0x8F


# Instructions of today's kernels that capstone 5 does not know. None branches; none has an operand in its bytes.
UNKNOWN_TO_CAPSTONE = {
    bytes.fromhex(code): text
    for code, text in (
        ("0f01e8", "serialize"),
        ("660f01cc", "tdcall"),
        ("660f01ce", "seamops"),
        ("660f01cf", "seamcall"),
        ("f20f01fd", "rmpread"),
        ("f20f01fe", "rmpupdate"),
        ("f20f01ff", "pvalidate"),
        ("f30f01fd", "rmpquery"),
        ("f30f01fe", "rmpadjust"),
        ("f30f01ff", "psmash"),
        ("f30f01ee", "clui"),
        ("f30f01ef", "stui"),
        ("c4e27849c0", "tilerelease"),
    )
}


def _bits(*spans: int | range) -> frozenset[int]:
    return frozenset(i for span in spans for i in (span if isinstance(span, range) else (span,)))


# Opcodes with a ModRM byte: SDM volume 2, appendix A, tables, 64-bit mode.
ONE_BYTE_MODRM = _bits(
    *(range(base, base + 4) for base in range(0, 0x40, 8)),
    0x63, 0x69, 0x6B, range(0x80, 0x90), 0xC0, 0xC1, 0xC6, 0xC7, range(0xD0, 0xD4), range(0xD8, 0xE0),
    0xF6, 0xF7, 0xFE, 0xFF,
)  # fmt: skip
TWO_BYTE_NO_MODRM = _bits(
    range(0x04, 0x0D), 0x0E, range(0x30, 0x38), 0x77, range(0x80, 0x90), range(0xA0, 0xA3), range(0xA8, 0xAB),
    range(0xC8, 0xD0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of one instruction.

    rex:   offset of the REX prefix; -1 if there is none.
    map:   0 one-byte, 1 0F, 2 0F38, 3 0F3A; from VEX, EVEX or XOP too.
    escape: offset of the VEX, EVEX or XOP prefix; -1 if there is none.
    modrm: offset; -1 if there is none.
    disp:  offset of the displacement of a memory operand. disp_size: its size; 0 if there is none.
    imm:   offset of the immediate or the branch's displacement, up to the end.
    """

    prefixes: frozenset[int]
    rex: int
    escape: int
    map: int
    opcode: int
    modrm: int
    sib: int
    disp: int
    disp_size: int
    imm: int
    size: int
    modrm_byte: int

    @property
    def imm_size(self) -> int:
        return self.size - self.imm

    @property
    def reg(self) -> int:
        """Return the three bits that extend the opcode of a group."""
        return self.modrm_byte >> 3 & 7

    @property
    def is_register(self) -> bool:
        """Return whether ModRM names a register rather than memory."""
        return self.modrm >= 0 and self.modrm_byte >= 0xC0

    @property
    def is_memory(self) -> bool:
        return self.modrm >= 0 and self.modrm_byte < 0xC0

    @property
    def is_rip_relative(self) -> bool:
        return self.modrm >= 0 and self.modrm_byte & 0xC7 == 0x05


@lru_cache(CACHED)
def shape(data: bytes) -> Shape:
    """Return the parts of one instruction."""
    at, size, rex = 0, len(data), -1
    while at < size and (data[at] in LEGACY_PREFIXES or data[at] & 0xF0 == 0x40):
        rex = at if data[at] & 0xF0 == 0x40 else -1  # one that is not the last prefix means nothing
        at += 1
    prefixes = LEGACY_PREFIXES.intersection(data[:at])
    escape, table, opcode, has_modrm = -1, 0, data[at], True
    if opcode == 0x0F:
        table, opcode, at = 1, data[at + 1], at + 1
        if opcode in (0x38, 0x3A):
            table, opcode, at = (2 if opcode == 0x38 else 3), data[at + 1], at + 1
        else:
            has_modrm = opcode not in TWO_BYTE_NO_MODRM
    elif opcode == VEX2:
        escape, table, opcode, at = at, 1, data[at + 2], at + 2
        has_modrm = opcode != 0x77
    elif opcode == VEX3 or (opcode == XOP and data[at + 1] & 0x1F >= 8):
        escape, table, opcode, at = at, data[at + 1] & 0x1F, data[at + 3], at + 3
        has_modrm = opcode != 0x77 or table != 1
    elif opcode == EVEX:
        escape, table, opcode, at = at, data[at + 1] & 7, data[at + 4], at + 4
    else:
        has_modrm = opcode in ONE_BYTE_MODRM
    at += 1
    modrm = sib = -1
    modrm_byte = disp_size = 0
    if has_modrm and at < size:
        modrm, modrm_byte, at = at, data[at], at + 1
        mod, rm = modrm_byte >> 6, modrm_byte & 7
        # Moves to and from control and debug registers take a register whatever mod says.
        if table == 1 and 0x20 <= opcode <= 0x23 and escape < 0:
            modrm_byte |= 0xC0
            mod = 3
        if mod != 3:
            base = rm
            if rm == 4:
                sib, base, at = at, data[at] & 7, at + 1
            disp_size = 1 if mod == 1 else 4 if mod == 2 or base == 5 else 0
    return Shape(prefixes, rex, escape, table, opcode, modrm, sib, at, disp_size, at + disp_size, size, modrm_byte)


# First bytes of instructions that may change the control flow, or that hide such an opcode behind them.
# All others are Flow.NEXT by their first byte alone.
_SUSPECT = _bits(
    range(0x40, 0x50), 0x0F, range(0x70, 0x80), 0xC2, 0xC3, 0xC7, range(0xCA, 0xD0), range(0xE0, 0xE4),
    range(0xE8, 0xEC), 0xF1, 0xFF, *LEGACY_PREFIXES,
)  # fmt: skip
_SUSPECT_AFTER_0F = _bits(0x01, 0x05, 0x07, 0x0B, 0x34, 0x35, range(0x80, 0x90), 0xAA, 0xB9, 0xFF)


# Nearly all direct branches: an opcode, then the displacement.
_OPCODE_ALONE = {0xE8: Flow.CALL, 0xE9: Flow.JUMP, 0xEB: Flow.JUMP, **dict.fromkeys(range(0x70, 0x80), Flow.BRANCH)}


def flow(data: bytes, address: int) -> tuple[Flow, int | None]:
    """Return the flow and the target of one instruction (SDM volume 2; AMD APM volume 3 agrees except on 66 E8)."""
    kind = _OPCODE_ALONE.get(data[0])
    if kind is not None:
        return kind, _target(data, address, 1)
    parts = shape(data)
    opcode = parts.opcode
    if parts.escape >= 0:
        return Flow.NEXT, None
    if parts.map == 0:
        if opcode in (0xE8, 0xE9, 0xEB) or 0x70 <= opcode <= 0x7F or 0xE0 <= opcode <= 0xE3:
            kind = Flow.CALL if opcode == 0xE8 else Flow.JUMP if opcode >= 0xE9 else Flow.BRANCH
            return kind, _target(data, address, parts.imm)
        if opcode in (0xC2, 0xC3):
            return Flow.RETURN, None
        if opcode == 0xFF and parts.reg in (2, 3, 4, 5):
            if parts.reg in (3, 5):
                return Flow.SYSTEM, None
            return (Flow.INDIRECT_CALL if parts.reg == 2 else Flow.INDIRECT_JUMP), None
        if opcode == 0xC7 and parts.modrm_byte == 0xF8:  # xbegin: on an abort it goes to its target
            return Flow.BRANCH, _target(data, address, parts.imm)
        if opcode in (0xCC, 0xF1):
            return Flow.TRAP, None
        if opcode in (0xCA, 0xCB, 0xCD, 0xCE, 0xCF, 0x9A, 0xEA):
            return Flow.SYSTEM, None
    elif parts.map == 1:
        if 0x80 <= opcode <= 0x8F:
            return Flow.BRANCH, _target(data, address, parts.imm)
        if opcode in (0x05, 0x07, 0x34, 0x35, 0xAA):  # syscall sysret sysenter sysexit rsm
            return Flow.SYSTEM, None
        if opcode in (0x0B, 0xB9, 0xFF):
            return Flow.TRAP, None
        if opcode == 0x01 and parts.modrm_byte == 0xCA and parts.prefixes & {0xF2, 0xF3}:  # erets, eretu (FRED)
            return Flow.SYSTEM, None
        if opcode == 0x01 and parts.modrm_byte == 0xEC and 0xF3 in parts.prefixes:  # uiret
            return Flow.SYSTEM, None
    return Flow.NEXT, None


def _target(data: bytes, address: int, displacement_at: int) -> int:
    displacement = int.from_bytes(data[displacement_at:], "little", signed=True)
    return address + len(data) + displacement & 0xFFFF_FFFF_FFFF_FFFF


def _is_suspect(data: bytes) -> bool:
    first = data[0]
    if first not in _SUSPECT:
        return False
    if first & 0xF0 == 0x40:
        first, data = data[1], data[1:]
        if first not in _SUSPECT:
            return False
    if first == 0x0F:
        return data[1] in _SUSPECT_AFTER_0F
    return True


class MemoryOperand(NamedTuple):
    """A memory operand that no general register addresses.

    displacement: from address 0, or from the next instruction if `is_relative`.
    size:         upper bound of the bytes read or written; 0 for lea.
    """

    displacement: int
    size: int
    is_relative: bool


# Sizes that capstone 5 has too small, or that the processor's state decides (SDM volume 1, 13.4: AMX is the largest).
LARGEST_OPERAND = 1 << 14
_SIZES = (
    (("xsave", "xrstor"), LARGEST_OPERAND),
    (("fxsave", "fxrstor"), 512),
    (("fnsave", "fsave", "frstor"), 108),
    (("fnstenv", "fstenv", "fldenv"), 28),
    (("vgf2p8",), 64),
    (("lfs", "lgs", "lss", "les", "lds"), 10),
    (("rstorssp", "clrssbsy", "bound"), 8),
)


@lru_cache(CACHED)
def memory_operand(data: bytes, bits: int = 64) -> MemoryOperand | None:
    """Return the memory operand of one instruction that no general register addresses; None if there is none.

    A bit's number in a register (bt) counts as an index: its value is not known.
    """
    x86 = capstone.x86
    insn = next(engine(detail=True, bits=bits).disasm(data, 0, 1), None)
    operands = [one for one in insn.operands if one.type == x86.X86_OP_MEM] if insn is not None else []
    if insn is None or not operands:
        return None
    found = operands[0].mem
    indexed = found.index not in (0, x86.X86_REG_RIZ, x86.X86_REG_EIZ)
    if indexed or found.base not in (0, x86.X86_REG_RIP, x86.X86_REG_EIP):
        return None
    mnemonic = insn.mnemonic.split()[-1]
    size = max(one.size for one in operands) or 64
    if size == 2 and bits == 64:
        parts = shape(data)  # REX.W wins over 66, in capstone it does not
        size = 8 if 0x66 in parts.prefixes and parts.rex >= 0 and data[parts.rex] & 8 else size
    size = max(size, next((least for names, least in _SIZES if mnemonic.startswith(names)), 0))
    return MemoryOperand(found.disp, 0 if mnemonic == "lea" else size, found.base != 0)


@cache
def engine(detail: bool = False, bits: int = 64) -> Any:
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64 if bits == 64 else capstone.CS_MODE_32)
    engine.syntax = capstone.CS_OPT_SYNTAX_INTEL if detail else capstone.CS_OPT_SYNTAX_ATT
    engine.detail = detail
    return engine


_HUGE = re.compile(r"\$(1844674407\d{10})")


def _in_hexadecimal(text: str) -> str:
    """Rewrite negative 64-bit immediates, which capstone writes as unsigned decimals."""
    return _HUGE.sub(lambda number: f"${int(number[1]):#x}", text)


def switches(code: bytes, address: int) -> Mapping[int, range]:
    """Return none: compilers put tables elsewhere."""
    return {}


def addresses_in(insn: Insn) -> Sequence[tuple[int, int]]:
    """Return offset and size of what may be an address, or the distance from `insn` to a per-CPU offset.

    Where `insn` and what it refers to lie in one image, their distance is the same wherever that is.
    """
    if insn.flow is not Flow.NEXT or insn.size < WORD:
        return ()
    parts, found = shape(insn.data), list[tuple[int, int]]()
    if parts.imm_size >= WORD:
        found.append((parts.imm, parts.imm_size))
    if parts.disp_size == WORD and (not parts.is_rip_relative or parts.prefixes & SEGMENT_BASES.keys()):
        found.append((parts.disp, WORD))
    return [(at, size) for at, size in found if int.from_bytes(insn.data[at : at + size], "little") >= LOWEST]


def decode(code: bytes, address: int) -> list[Insn]:
    """Decode `code` from its first byte, up to the first that is no instruction, or an incomplete one."""
    found: list[Insn] = []
    at = 0
    collecting = gc.isenabled()
    gc.disable()
    try:
        while at < len(code):
            after = _sweep(code, at, address, found) or _unknown(code, at, address, found)
            if not after:
                break
            at = after
    finally:
        if collecting:
            gc.enable()
    return found


def _sweep(code: bytes, at: int, address: int, found: list[Insn]) -> int:
    """Decode a piece of `code` from offset `at` on; return the offset of the rest, 0 if nothing was decoded."""
    # What starts in a piece's last bytes may be cut: the next piece decodes it.
    piece = code[at : at + PIECE + LONGEST]
    end = len(code) if at + len(piece) == len(code) else at + PIECE
    append, new = found.append, tuple.__new__  # Insn's own constructor takes three times as long
    suspects, plain, begin = _SUSPECT, Flow.NEXT, at
    for where, length, mnemonic, operands in engine().disasm_lite(piece, address + at):
        if at >= end:
            break
        data = code[at : at + length]
        text = f"{mnemonic} {operands}" if operands else mnemonic
        if "$1844" in text:
            text = _in_hexadecimal(text)
        if data[0] in suspects and _is_suspect(data):
            if mnemonic == "ud1":
                break
            append(new(Insn, (where, data, text, *flow(data, where))))
        else:
            append(new(Insn, (where, data, text, plain, None)))
        at += length
    return at if at > begin else 0


def _unknown(code: bytes, at: int, address: int, found: list[Insn]) -> int:
    """Decode an instruction that capstone does not know, or without its operands; return the offset behind it, else 0.

    The kernel distinguishes its traps by the operands of ud1 (SDM volume 2, UD).
    """
    data = next((code[at : at + size] for size in (3, 4, 5) if code[at : at + size] in UNKNOWN_TO_CAPSTONE), b"")
    text, kind = UNKNOWN_TO_CAPSTONE.get(data, "ud1"), Flow.NEXT if data else Flow.TRAP
    if not data:
        parts = shape(code[at : at + LONGEST].ljust(LONGEST, b"\0"))
        data = code[at : at + parts.imm]
        if (parts.escape, parts.map, parts.opcode) != (-1, 1, 0xB9) or len(data) != parts.imm:
            return 0
    found.append(Insn(address + at, data, text, kind))
    return at + len(data)
