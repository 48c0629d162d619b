"""Calls of routines (isa/routines.py): x30 has the return address, and x11 has x30 meanwhile.

    mov x11, x30 ; bl routine ; mov x30, x11         where x11 is dead
    bl routine                                       where x30 is: before a call
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.isa.aarch64.abi import LR, PC
from gdb_optprobe.isa.aarch64.encodings import plain
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.writer import branch
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.routines import RoutineCalls

KEEPS_LR = "x11"
RET = to_bytes(0xD65F_03C0)


class _A64RoutineCalls:
    """Implements RoutineCalls."""

    link: str | None = LR
    clobbers = frozenset((KEEPS_LR,))
    changed = frozenset((PC, LR, KEEPS_LR))
    behind = 8
    back = RET

    def call(self, routine: int, to: int) -> bytes:
        before, after = plain("orr", KEEPS_LR, "xzr", LR), plain("orr", LR, "xzr", KEEPS_LR)
        return to_bytes(before) + branch(to + 4, routine, link=True) + to_bytes(after)

    def before(self, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        return {**registers, PC: registers[LR] - self.behind, LR: registers[KEEPS_LR]}


class _BeforeCalls:
    """Implements RoutineCalls."""

    link: str | None = LR
    clobbers = frozenset((LR,))
    changed = frozenset((PC, LR))
    behind = 4
    back = RET

    def call(self, routine: int, to: int) -> bytes:
        return branch(to, routine, link=True)

    def before(self, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        return {**registers, PC: registers[LR] - self.behind}


ROUTINE_CALLS: Sequence[RoutineCalls] = (_A64RoutineCalls(), _BeforeCalls())
