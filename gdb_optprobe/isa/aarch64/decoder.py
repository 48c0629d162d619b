"""Decode instructions: the control flow comes from their bits, the text from capstone.

b, bl                            JUMP, CALL
b.cond, cbz, cbnz, tbz, tbnz     BRANCH; b.al and b.nv always branch: JUMP
br, blr, ret, and with a         INDIRECT_JUMP, INDIRECT_CALL, RETURN
  pointer's authentication
brk, hlt, udf                    TRAP
svc, hvc, smc, dcps, eret, drps  SYSTEM
"""

from __future__ import annotations

from functools import cache
from typing import Any

import capstone

from gdb_optprobe.isa.aarch64.fields import (
    MASK,
    branch_offset,
    is_b,
    is_b_cond,
    is_branch_register,
    is_cb,
    is_tb,
)
from gdb_optprobe.isa.base import Flow, Insn

SIZE = 4
CACHED = 1 << 16
# capstone keeps a piece's instructions in memory, 250 bytes each, before it hands out the first.
PIECE = 1 << 16

# By the field opc; of branches to registers without its highest bit: a register to authenticate with.
_REGISTERS = {0: Flow.INDIRECT_JUMP, 1: Flow.INDIRECT_CALL, 2: Flow.RETURN}  # else eret, drps
_EXCEPTIONS = {1: Flow.TRAP, 2: Flow.TRAP}  # brk, hlt; else svc, hvc, smc, dcps


def flow(word: int, address: int) -> tuple[Flow, int | None]:
    """Return the flow and the target of an instruction."""
    kind = _direct(word)
    if kind is not None:
        return kind, address + branch_offset(word) & MASK
    if is_branch_register(word):
        return _REGISTERS.get(word >> 21 & 7, Flow.SYSTEM), None
    if word >> 24 == 0xD4:
        return _EXCEPTIONS.get(word >> 21 & 7, Flow.SYSTEM), None
    return (Flow.NEXT if word >> 16 else Flow.TRAP), None


def _direct(word: int) -> Flow | None:
    """Return the flow of a direct branch; None of any other instruction."""
    if is_b(word):
        return Flow.CALL if word >> 31 else Flow.JUMP
    if is_b_cond(word):
        return Flow.JUMP if word & 14 == 14 else Flow.BRANCH
    return Flow.BRANCH if is_cb(word) or is_tb(word) else None


# Highest bytes of words that may change the control flow. All others are Flow.NEXT.
_SUSPECT = frozenset(
    (0x00, *range(0x14, 0x18), *range(0x34, 0x38), 0x54, *range(0x94, 0x98), *range(0xB4, 0xB8), 0xD4, 0xD6, 0xD7)
)


@cache
def engine() -> Any:
    return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)


def decode(code: bytes, address: int) -> list[Insn]:
    """Decode `code` from its first byte, up to the first word that is no instruction, or an incomplete one."""
    lite, new = engine().disasm_lite, tuple.__new__  # Insn's own constructor takes three times as long
    found: list[Insn] = []
    append, suspects, plain = found.append, _SUSPECT, Flow.NEXT
    at, size = 0, len(code) & ~3
    while at < size:
        end = min(at + PIECE, size)
        for where, _, mnemonic, operands in lite(code[at:end], address + at):
            data = code[at : at + SIZE]
            at += SIZE
            if data[3] in suspects:
                kind, target = flow(int.from_bytes(data, "little"), where)
                # GDB writes a target without the sign of an immediate.
                operands = operands if target is None else f"{operands.rpartition('#')[0]}{target:#x}"
                append(new(Insn, (where, data, f"{mnemonic} {operands}" if operands else mnemonic, kind, target)))
            else:
                append(new(Insn, (where, data, f"{mnemonic} {operands}" if operands else mnemonic, plain, None)))
        if at < end:
            break
    return found
