"""Calls of routines (isa/routines.py): LR has the return address, and r11 has LR meanwhile.

    mflr r11 ; bl routine ; mtlr r11         where r11 is dead
    bl routine                               where LR is: before a call
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.ppc64le.abi import LR, PC
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.templates import word
from gdb_optprobe.isa.ppc64le.writer import branch
from gdb_optprobe.isa.routines import RoutineCalls

KEEPS_LR = 11
_BLR = 0x4E80_0020  # bclr 20, 0


class _PpcRoutineCalls:
    """Implements RoutineCalls."""

    link: str | None = LR
    clobbers = frozenset((f"r{KEEPS_LR}",))
    changed = frozenset((PC, LR, f"r{KEEPS_LR}"))
    behind = 8
    back = to_bytes(_BLR)

    def call(self, routine: int, to: int) -> bytes:
        return to_bytes(word("mflr", KEEPS_LR)) + branch(to + 4, routine, link=True) + to_bytes(word("mtlr", KEEPS_LR))

    def before(self, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        return {**registers, PC: registers[LR] - self.behind, LR: registers[f"r{KEEPS_LR}"]}


class _BeforeCalls:
    """Implements RoutineCalls."""

    link: str | None = LR
    clobbers = frozenset((LR,))
    changed = frozenset((PC, LR))
    behind = 4
    back = to_bytes(_BLR)

    def call(self, routine: int, to: int) -> bytes:
        return branch(to, routine, link=True)

    def before(self, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        return {**registers, PC: registers[LR] - self.behind}


ROUTINE_CALLS: Sequence[RoutineCalls] = (_PpcRoutineCalls(), _BeforeCalls())
