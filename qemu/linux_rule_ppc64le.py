"""The instructions of ppc64le at which Linux itself would optimize a kprobe, computed from outside, for comparison.

As of arch/powerpc/kernel/optprobes.c (can_optimize, is_conditional_branch), arch/powerpc/lib/sstep.c (analyse_instr,
which must have computed the instruction: it leaves loads and stores, and what changes the machine's state, to others)
and kernel/kprobes.c (check_kprobe_address_safe). At an ftrace site Linux calls its handler by ftrace, which is not
counted as optimized; nor is counted how few fit (150).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.text import Fact, Function
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.ppc64le.fields import opcode, word_of, xo

__all__ = ["PowerRule", "computed"]

_B = 18
_IMMEDIATE = frozenset((7, 8, *range(10, 16), 20, 21, *range(23, 30)))
"""mulli, subfic, cmpli … addis, rlwimi, rlwinm, rlwnm … andis."""
_CR_FORMS = frozenset((0, 33, 129, 150, 193, 225, 257, 289, 417, 449))
"""mcrf, the logical operations on bits of CR, isync."""
ADDPCIS, ISEL = 2, 15
_COMPARES = (0, 32, 192, 224, 508)
_ARITHMETIC = (8, 9, 10, 11, 40, 73, 75, 104, 136, 138, 200, 202, 232, 233, 234, 235, 266, 457, 459, 489, 491)
_SINCE_POWER9 = (128, 170, 265, 267, 393, 425, 538, 570, 576, 755, 777, 779, 890, 891)
_LOGICAL = (26, 28, 58, 60, 122, 124, 154, 186, 252, 284, 316, 378, 412, 444, 476, 506, 922, 954, 986)
_SHIFTS = (24, 27, 536, 539, 792, 794, 824, 826, 827)
_BARRIERS, _OF_CR = (598, 854), (19, 144)
_X_FORMS = frozenset((*_COMPARES, *_ARITHMETIC, *_LOGICAL, *_SHIFTS, *_SINCE_POWER9, *_BARRIERS, *_OF_CR))
_FROM_SPR, _TO_SPR = 339, 467
_PLAIN_SPRS = frozenset((1, 8, 9))  # XER, LR, CTR


@lru_cache(1 << 16)
def computed(data: bytes) -> bool:
    """Return whether analyse_instr() has computed the instruction, and it is no conditional branch."""
    word = word_of(data)
    match opcode(word):
        case op if op in _IMMEDIATE or op == _B:
            return True
        case 30:
            return (word >> 2 & 7) < 4 or (word >> 1 & 15) in (8, 9)
        case 1:
            return len(data) == 8 and data[7] >> 2 == 14  # paddi
        case 19:
            return xo(word) in _CR_FORMS or word >> 1 & 31 == ADDPCIS
        case 31 if xo(word) in (_FROM_SPR, _TO_SPR):
            return (word >> 16 & 31 | word >> 6 & 0x3E0) in _PLAIN_SPRS
        case 31:
            return xo(word) in _X_FORMS or word >> 1 & 31 == ISEL
        case _:
            return False


class PowerRule:
    """The rule for one kernel."""

    def __init__(self, text: PowerText, blacklist: Iterable[tuple[int, int]]) -> None:
        self._text = text
        self._blacklist = sorted(blacklist)

    def optimizable(self, function: Function) -> list[Insn]:
        """Return the instructions of the function at which Linux would optimize a probe."""
        text, start, end = self._text, function.start, function.end
        taken = {mark.address for mark in text.marks(start, end) if mark.fact in (Fact.JUMP_LABEL, Fact.BUG)}
        taken.update(site.address for site in text.ftrace_sites(start, end))
        return [
            insn
            for insn in function.hot
            if computed(insn.data) and insn.address not in taken and not self._is_listed(insn.address)
        ]

    def _is_listed(self, address: int) -> bool:
        last = bisect_left(self._blacklist, (address + 1, 0)) - 1
        return last >= 0 and self._blacklist[last][1] > address
