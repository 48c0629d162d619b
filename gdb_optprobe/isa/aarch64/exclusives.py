"""Find the places where nothing may stop: while exclusive access is held, and what a kernel knows by its address.

Between a load-exclusive and what ends it, a store-exclusive or the wait for another CPU's store:

1: ldxr  x1, [x0]        exclusive access begins
   add   x1, x1, #1      inside: a probe's program would replace it with its own, and the return from a trap ends it;
   stxr  w2, x1, [x0]    the store fails, for ever, or the wait misses what it waits for
   cbnz  w2, 1b          outside again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from gdb_optprobe.isa.aarch64.fields import BRK, is_b_cond, to_bytes, word_of
from gdb_optprobe.isa.aarch64.relocator import hazard
from gdb_optprobe.isa.base import Flow, Hazard, Insn
from gdb_optprobe.isa.reservations import inside

_NEVER = (Hazard.TRAP, Hazard.SYSTEM)
_LOAD = 1 << 22
_STEPPED = 16
"""Instructions behind a load among which GDB looks for its store (aarch64_software_single_step)."""
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


def step_runs_on(insn: Insn, behind: Iterable[Insn]) -> bool:
    """Return whether GDB's step over `insn` may run on elsewhere, while there is no breakpoint at `insn`.

    From an exclusive load GDB runs to behind the next exclusive store, or to where the only b.cond between them goes.
    It takes ldar for such a load, stlr and ldapr for such a store, and does not see that any other branch leaves the
    pair.
    """
    first = word_of(insn.data)
    if not first & _LOAD or not (_is_exclusive(first) or _is_ordered(first)):
        return False
    leaves, conditions = _is_ordered(first), 0
    near = [*islice(behind, _STEPPED)]
    for after in near:
        word = word_of(after.data)
        if not word & _LOAD and (_is_exclusive(word) or _is_ordered(word) or _is_ldapr(word)):
            return leaves or not _is_exclusive(word)
        conditions += is_b_cond(word)
        if conditions > 1:
            return False  # GDB steps over one instruction then
        leaves = leaves or not (after.flow is Flow.NEXT or is_b_cond(word))
    # GDB looks on behind the function's end.
    return leaves and len(near) < _STEPPED


def _begins(insn: Insn) -> bool:
    first = word_of(insn.data)
    return _is_exclusive(first) and bool(first & _LOAD)


def _ends(insn: Insn) -> bool:
    first = word_of(insn.data)
    return (_is_exclusive(first) and not first & _LOAD) or first == _WFE


def _is_ordered(word: int) -> bool:
    """Return whether a word is a load with acquire or a store with release: of one register, not exclusive."""
    return word & 0x3FA0_0000 == 0x0880_0000


def _is_ldapr(word: int) -> bool:
    """Return whether a word is a load with acquire of FEAT_LRCPC."""
    return word & 0x3FFF_FC00 == 0x38BF_C000


def _is_exclusive(word: int) -> bool:
    """Return whether a word is an exclusive load or store; of two registers it has 32 bits or 64."""
    return word & 0x3FA0_0000 == 0x0800_0000 or word & 0xBFA0_0000 == 0x8820_0000
