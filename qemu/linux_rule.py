"""The instructions at which Linux itself would optimize a kprobe, computed from outside, for comparison.

As of arch/x86/kernel/kprobes/opt.c (can_optimize, copy_optimized_instructions) and core.c (can_boost), and of
kernel/kprobes.c (check_kprobe_address_safe): no function with a recovered fault in it, nothing of what is on the
blacklist; all within the jump's five bytes must be boostable and free of other kprobes, and nothing jumps behind
its first byte. At an ftrace site Linux calls its handler by ftrace, which is not counted as optimized.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.text import Function
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.x86_64.decoder import shape

__all__ = ["BLACKLIST", "LinuxRule", "boostable", "ranges"]

BLACKLIST = "/sys/kernel/debug/kprobes/blacklist"
JUMP = 5

# twobyte_is_boostable: a row for each high digit of the second opcode byte, the low digits that are boostable.
_ALL = "0123456789abcdef"
_ROWS: tuple[str, ...] = ("23689", "f", "0123", "1", _ALL, "", "0123456789abef", "4567ef", "", _ALL)
_ROWS += ("0134589bdf", "01234567bcdef", "0189abcdef", "123589bcdf", "12589bcdf", "123589acde")
_TWO_BYTE = frozenset(row << 4 | int(low, 16) for row, lows in enumerate(_ROWS) for low in lows)
_NEVER = frozenset((0x62, *range(0x70, 0x80), 0x9A, 0xC0, 0xC1, *range(0xCC, 0xCF), *range(0xD0, 0xD4), 0xD6))
_NEVER |= frozenset((*range(0xD8, 0xE4), 0xE8, 0xE9, 0xEB, *range(0xF0, 0xF5), 0xF6, 0xF7, 0xFE))
CS, ADDRESS_SIZE = 0x2E, 0x67
"""Prefixes."""


@lru_cache(1 << 16)
def boostable(data: bytes) -> bool:
    """Return whether can_boost() and insn_masking_exception() accept it, without the exception table."""
    parts = shape(data)
    if parts.escape >= 0 or parts.map > 1:
        return False
    if parts.map == 1:
        return parts.opcode in _TWO_BYTE
    if parts.prefixes & {CS, ADDRESS_SIZE} or parts.opcode in _NEVER:
        return False
    if parts.opcode == 0x8E:
        return parts.reg != 2
    return parts.opcode != 0xFF or parts.reg == 4


def ranges(blacklist: str) -> list[tuple[int, int]]:
    """Parse the guest's blacklist of kprobes: lines of 0x…-0x… and a name, the end excluded."""
    rows = (line.split()[0].split("-") for line in blacklist.splitlines() if line.startswith("0x"))
    return sorted((int(start, 16), int(end, 16)) for start, end in rows)


class LinuxRule:
    """The rule for one kernel. Where jump tables were made, before 6.6, no function with an indirect jump is taken."""

    def __init__(self, text: KernelText, blacklist: Iterable[tuple[int, int]], thunks: tuple[int, int]) -> None:
        self._text = text
        self._blacklist = sorted(blacklist)
        self._thunks = thunks

    def optimizable(self, function: Function) -> list[Insn]:
        """Return the instructions of the function at which Linux would optimize a probe."""
        text, start, end, insns = self._text, function.start, function.end, function.hot
        if text.exceptions.faulting(start, end) or any(map(self._is_indirect_jump, insns)):
            return []
        landings = sorted(i.target for i in insns if i.target is not None and i.flow in (Flow.JUMP, Flow.BRANCH))
        taken = [(at, at + JUMP) for at in (*text.ftrace.within(start, end), *text.static_calls.within(start, end))]
        taken += [(at, function.own[at].end) for at, _ in text.jump_labels.within(start, end) if at in function.own]
        taken.sort()
        return [
            insn
            for index, insn in enumerate(insns)
            if insn.address + JUMP <= end
            and (size := _window(insns, index))
            and not _crosses(taken, insn.address, insn.address + size)
            and bisect_left(landings, insn.address + 1) == bisect_right(landings, insn.address + JUMP)
            and not _crosses(self._blacklist, insn.address, insn.address + 1)
        ]

    def _is_indirect_jump(self, insn: Insn) -> bool:
        if not self._thunks[1]:
            return False
        into = insn.target is not None and self._thunks[0] <= insn.target <= self._thunks[1]
        return insn.flow is Flow.INDIRECT_JUMP or (into and insn.flow in (Flow.JUMP, Flow.BRANCH))


def _window(insns: Sequence[Insn], index: int) -> int:
    """Return the bytes of the instructions that a jump at one of them covers; 0 where one of them is not boostable."""
    size = 0
    while size < JUMP:
        if index == len(insns) or not boostable(insns[index].data):
            return 0
        size += insns[index].size
        index += 1
    return size


def _crosses(rows: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether one of the sorted, disjoint ranges shares a byte with [start, end)."""
    last = bisect_left(rows, (end, 0)) - 1
    return last >= 0 and rows[last][1] > start
