"""Find where a debugger's step over one instruction runs on, since no step can be inside exclusive access.

From an exclusive load GDB runs to behind the next exclusive store, or to where the only b.cond between them goes
(aarch64_software_single_step). It takes ldar for such a load, stlr and ldapr for such a store, and does not see that
any other branch leaves the pair: then no breakpoint is where the thread goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from gdb_optprobe.isa.aarch64.exclusives import LOAD, is_exclusive
from gdb_optprobe.isa.aarch64.fields import is_b_cond, word_of
from gdb_optprobe.isa.base import Flow, Insn

_REACH = 16
"""Instructions behind a load among which its store is looked for."""


def step_runs_on(insn: Insn, behind: Iterable[Insn]) -> bool:
    """Return whether a step over `insn` may run on elsewhere, while there is no breakpoint at `insn`.

    The answer holds whichever of the instructions that a probe may displace are branches to detours.
    """
    first = word_of(insn.data)
    if not first & LOAD or not (is_exclusive(first) or _is_ordered(first)):
        return False
    leaves, conditions = _is_ordered(first), 0
    near = [*islice(behind, _REACH)]
    for after in near:
        word = word_of(after.data)
        if not word & LOAD and (is_exclusive(word) or _is_ordered(word) or _is_ldapr(word)):
            return leaves or not is_exclusive(word)
        conditions += is_b_cond(word)
        # GDB steps over one instruction then. Behind what leaves the pair a probe may be at one of these conditions.
        if conditions > 1 and not leaves:
            return False
        leaves = leaves or not (after.flow is Flow.NEXT or is_b_cond(word))
    # What follows is no code, and may look like a store.
    return leaves and len(near) < _REACH


def _is_ordered(word: int) -> bool:
    """Return whether a word is a load with acquire or a store with release: of one register, not exclusive."""
    return word & 0x3FA0_0000 == 0x0880_0000


def _is_ldapr(word: int) -> bool:
    """Return whether a word is a load with acquire of FEAT_LRCPC."""
    return word & 0x3FFF_FC00 == 0x38BF_C000
