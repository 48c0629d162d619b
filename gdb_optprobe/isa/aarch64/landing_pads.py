"""Find the instructions that indirect branches into guarded pages must arrive at (DDI 0487, BTI)."""

from __future__ import annotations

from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Insn

_BTI = frozenset(to_bytes(0xD503_241F | kind << 6) for kind in range(4))
_SIGN = frozenset(to_bytes(word) for word in (0xD503_233F, 0xD503_237F))  # paciasp, pacibsp


def is_bti(insn: Insn) -> bool:
    """Return whether `insn` is a landing pad and nothing else."""
    return insn.data in _BTI


def is_signing(insn: Insn) -> bool:
    """Return whether `insn` signs a return address, which calls by a register may arrive at as well."""
    return insn.data in _SIGN
