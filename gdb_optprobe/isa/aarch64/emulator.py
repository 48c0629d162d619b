"""Compute the effects of an instruction from its bits, for the tiers that stop the guest but need no step."""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.aarch64.abi import GENERAL
from gdb_optprobe.isa.aarch64.fields import is_branch_register, rn, word_of
from gdb_optprobe.isa.base import Effects, Flow, Insn, Pointer, ReadMemory

Registers = Mapping[str, int]


def emulate(insn: Insn, registers: Registers, read: ReadMemory) -> Effects | None:
    """Return the effects of `insn` on these registers; None if it is not emulated. Raises what `read` raises."""
    return None


def pointer(insn: Insn) -> Pointer | None:
    """Return where an indirect call or jump goes; None of any other instruction."""
    word = word_of(insn.data)
    if insn.flow not in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP) or not is_branch_register(word):
        return None
    return None if word >> 11 & 1 else Pointer(GENERAL[rn(word)])  # an authenticated pointer is no address
