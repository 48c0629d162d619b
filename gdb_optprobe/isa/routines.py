"""How detours call one routine that does for each of them what a program of its own would.

    detour    call routine ──────►  routine    a lowered program; it knows the detour by where it returns to
              displaced ◄─────────             back
Memory and all registers that live are in the routine as at the probed instruction, but for what the call itself needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gdb_optprobe.isa.base import ReadMemory


class RoutineCalls(Protocol):
    """What an ISA knows of such calls.

    link:     the register that the routine has its return address in; None where that is on the stack.
    clobbers: registers that must be dead where there is a call.
    changed:  registers that are others in the routine than at the probed instruction.
    behind:   bytes from where a call begins to where it returns to.
    back:     the code with which a routine returns.
    """

    link: str | None
    clobbers: frozenset[str]
    changed: frozenset[str]
    behind: int
    back: bytes

    def call(self, routine: int, to: int) -> bytes:
        """Return code for `to` that calls `routine`. Raises OutOfReach."""

    def before(self, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        """Return the registers before the call, from those of the routine without what it has on the stack."""
