"""Decode instructions: the control flow comes from their bits, the text from capstone.

An instruction is a word, or a prefix (primary opcode 1) and a word: Power ISA 3.1B, Book I, 1.6. capstone 5 knows no
prefixed one and not all of 3.0 and 3.1; the others are in disassembly.py. A word with reserved bits set is the same
instruction.

    b, ba, bl, bla              JUMP, CALL                        bcl 20,31,$+4        NEXT: it only reads its address
    bc by BO                    BRANCH, or JUMP if it always branches; with LK CALL
    bclr always, on a condition RETURN, BRANCH without a target;  with LK INDIRECT_CALL
    bcctr, bctar                INDIRECT_JUMP, BRANCH without a target; with LK INDIRECT_CALL
    tw, td, twi, tdi            TRAP if they always trap; on a condition NEXT (WARN_ON)
    sc, rfid, mtmsrd, stop, …   SYSTEM
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import capstone

from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le.disassembly import CACHED, cr_bit, disassemble, prefixed_text
from gdb_optprobe.isa.ppc64le.fields import (
    BC,
    BCCTR,
    BCLR,
    BCTAR,
    CR_OPS,
    MASK,
    MTMSR,
    MTMSRD,
    SC,
    TD,
    TDI,
    TW,
    TWI,
    X31,
    B,
    branches_always,
    displacement,
    is_absolute,
    links,
    opcode,
    ra,
    rb,
    rt,
    xo,
)

WORD, PREFIXED = 4, 8
# capstone keeps a piece's instructions in memory, 250 bytes each, before it hands out the first.
PIECE = 1 << 16

BCL_NEXT = 0x429F_0005  # bcl 20,31,$+4

# rfid rfscv hrfid rfebb, of other processors rfi rfmci rfdi rfci, and the waits that lose state: doze nap sleep
# rvwinkle stop.
_SYSTEM_19 = frozenset((18, 82, 274, 146, 50, 38, 39, 51, 402, 434, 466, 498, 370))
_ALWAYS, _EQUAL = 31, 4  # TO


def flow(word: int, address: int) -> tuple[Flow, int | None]:
    """Return the flow and the target of a one-word instruction (Book I, 2.4 and 3.3.12; Book III, 4.3)."""
    match opcode(word):
        case 18:
            target = _target(word, address)
            return (Flow.CALL if links(word) else Flow.JUMP), target
        case 16:
            if word == BCL_NEXT:
                return Flow.NEXT, None
            kind = Flow.CALL if links(word) else Flow.JUMP if branches_always(word) else Flow.BRANCH
            return kind, _target(word, address)
        case 19:
            return _flow_19(word), None
        case 17:
            return Flow.SYSTEM, None
        case 2 | 3:
            return (Flow.TRAP if rt(word) == _ALWAYS else Flow.NEXT), None
        case 31:
            return _flow_31(word), None
    return Flow.NEXT, None


@lru_cache(CACHED)
def _flow_19(word: int) -> Flow:
    extended = xo(word)
    if extended in (BCLR, BCCTR, BCTAR):
        if links(word):
            return Flow.INDIRECT_CALL
        if not branches_always(word):
            return Flow.BRANCH
        return Flow.RETURN if extended == BCLR else Flow.INDIRECT_JUMP
    return Flow.SYSTEM if extended in _SYSTEM_19 else Flow.NEXT


def _flow_31(word: int) -> Flow:
    extended = xo(word)
    if extended in (TW, TD):
        of_itself = ra(word) == rb(word) and rt(word) & _EQUAL
        return Flow.TRAP if rt(word) == _ALWAYS or of_itself else Flow.NEXT
    return Flow.SYSTEM if extended in (MTMSR, MTMSRD) else Flow.NEXT


def _target(word: int, address: int) -> int:
    return (displacement(word) + (0 if is_absolute(word) else address)) & MASK


# First bytes, in memory the last, without the two bits that belong to a field. All others are Flow.NEXT.
_SUSPECT = frozenset(op << 2 for op in (TDI, TWI, BC, SC, CR_OPS))
_B, _X31 = B << 2, X31 << 2
_SUSPECT_31 = frozenset(extended << 1 for extended in (TW, TD, MTMSR, MTMSRD))


@cache
def engine() -> Any:
    return capstone.Cs(capstone.CS_ARCH_PPC, capstone.CS_MODE_64 | capstone.CS_MODE_LITTLE_ENDIAN)


@lru_cache(CACHED)
def is_prefixed(data: bytes) -> bool:
    """Return whether these eight bytes are a prefixed instruction."""
    return len(data) == PREFIXED and data[3] >> 2 == 1 and bool(prefixed_text(data))


def decode(code: bytes, address: int) -> list[Insn]:
    """Decode `code` from its first byte, up to the first word that is no instruction, or an incomplete one."""
    found: list[Insn] = []
    at, size = 0, len(code) & ~3
    while at < size:
        found += _sweep(code, at, size, address)
        at = found[-1].end - address if found else at
        insn = _unknown_to_capstone(code[at : at + PREFIXED], address + at)
        if insn is None:
            break
        found.append(insn)
        at = insn.end - address
    return found


def _unknown_to_capstone(data: bytes, address: int) -> Insn | None:
    if len(data) < WORD:
        return None
    if is_prefixed(data):
        return Insn(address, data, prefixed_text(data), Flow.NEXT)
    word = int.from_bytes(data[:WORD], "little")
    text = disassemble(word)
    return Insn(address, data[:WORD], text, *flow(word, address)) if text else None


def _sweep(code: bytes, start: int, size: int, address: int) -> list[Insn]:
    """Decode `code` as far as capstone knows every word."""
    lite, new = engine().disasm_lite, tuple.__new__  # Insn's own constructor takes three times as long
    found: list[Insn] = []
    append, suspects, suspects31 = found.append, _SUSPECT, _SUSPECT_31
    plain, jump, call = Flow.NEXT, Flow.JUMP, Flow.CALL
    at = start
    while at < size:
        end = min(at + PIECE, size)
        for where, _, mnemonic, operands in lite(code[at:end], address + at):
            data = code[at : at + 4]
            at += 4
            text = f"{mnemonic} {operands}" if operands else mnemonic
            first = data[3] & 0xFC
            if first == _B:  # as flow() has it: one instruction in ten
                append(new(Insn, (where, data, text, call if data[0] & 1 else jump, int(operands, 0) & MASK)))
            elif first in suspects or (first == _X31 and (data[0] | data[1] << 8) & 0x7FE in suspects31):
                kind, target = flow(word := int.from_bytes(data, "little"), where)
                append(new(Insn, (where, data, _spelled(word, text, target), kind, target)))
            else:
                append(new(Insn, (where, data, text, plain, None)))
        if at < end:
            break
    return found


def _spelled(word: int, text: str, target: int | None) -> str:
    """Return the text of a branch: capstone 5 reads some BO as others, a branch always as bdnz."""
    if word >> 26 != BC or not (text[0:2] == "bd" or branches_always(word)):
        return text
    name = f"bc{'l' if links(word) else ''}{'a' if is_absolute(word) else ''}"
    where = "$+4" if target is None else f"{target:#x}"
    simple = rt(word) & 0b10100 == 0b10000  # only CTR is tested
    return text if simple else f"{name} {rt(word)}, {cr_bit(ra(word))}, {where}"
