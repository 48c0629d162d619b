"""Find the places where nothing may stop: while exclusive access is held, and what a kernel knows by its address.

Between a load-exclusive and what ends it, a store-exclusive or the wait for another CPU's store:

1: ldxr  x1, [x0]        exclusive access begins
   add   x1, x1, #1      inside: a probe's program would replace it with its own, and the return from a trap ends it;
   stxr  w2, x1, [x0]    the store fails, for ever, or the wait misses what it waits for
   cbnz  w2, 1b          outside again
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.aarch64.fields import BRK, to_bytes, word_of
from gdb_optprobe.isa.aarch64.relocator import hazard
from gdb_optprobe.isa.base import Hazard, Insn
from gdb_optprobe.isa.reservations import inside

_NEVER = (Hazard.TRAP, Hazard.SYSTEM)
LOAD = 1 << 22
_WFE = 0xD503_205F


def forbidden(code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
    """Return the addresses in `code` (a function's) where no tier is possible, with the reasons.

    Beside exclusive access: traps, which kernels know by their addresses, and what enters or leaves a kernel. A trap
    word that may be a breakpoint is left out.
    """
    breakpoint = to_bytes(BRK)
    found = {insn.address: why for insn in code.values() if (why := hazard(insn)) in _NEVER and insn.data != breakpoint}
    return found | dict.fromkeys(reserved(code), Hazard.RESERVED)


def reserved(code: Mapping[int, Insn]) -> Mapping[int, Insn]:
    """Return the addresses in `code` (a function's) inside such a pair, with its store, each with the load."""
    return inside(code, _begins, _ends)


def _begins(insn: Insn) -> bool:
    first = word_of(insn.data)
    return is_exclusive(first) and bool(first & LOAD)


def _ends(insn: Insn) -> bool:
    first = word_of(insn.data)
    return (is_exclusive(first) and not first & LOAD) or first == _WFE


def is_exclusive(word: int) -> bool:
    """Return whether a word is an exclusive load or store; of two registers it has 32 bits or 64."""
    return word & 0x3FA0_0000 == 0x0800_0000 or word & 0xBFA0_0000 == 0x8820_0000
