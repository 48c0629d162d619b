"""Calls of routines (isa/routines.py): the return address is on the stack, as the kernel keeps nothing below it.

    call routine ; push %rax ; pop %rax
The push overwrites the return address: a thread that later sleeps, with a frame that has never written this word, would
seem to return into the detour.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.isa.x86_64.abi import PC, SP
from gdb_optprobe.isa.x86_64.writer import rel32

WORD = 8
_OVERWRITE = b"\x50\x58"  # push %rax ; pop %rax


class _X86RoutineCalls:
    """Implements RoutineCalls."""

    link: str | None = None
    clobbers: frozenset[str] = frozenset()
    changed = frozenset((PC, SP))
    behind = 5
    back = b"\xc3"  # ret

    def call(self, routine: int, to: int) -> bytes:
        return b"\xe8" + rel32(to, to + self.behind, routine) + _OVERWRITE

    def before(self, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        sp = registers[SP]
        return {**registers, PC: int.from_bytes(read(sp, WORD), "little") - self.behind, SP: sp + WORD}


ROUTINE_CALLS: RoutineCalls = _X86RoutineCalls()
