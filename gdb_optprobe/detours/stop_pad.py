"""The stop pad, to which a program that stops the guest goes.

    pad     │ branch behind the program │ branch to the probed address │
             ▲                           ▲
             GDB's breakpoint            where GDB sends a vCPU that stopped there

A guest without GDB runs the first branch: the hit continues as one that does not stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.isa.record import Isa

PAGE = 4096
SIZE = 16
HALF = SIZE // 2


@dataclass(slots=True)
class StopPad:
    """slot: its `SIZE` bytes of memory. data: its code."""

    slot: Slot
    data: bytes

    @property
    def address(self) -> int:
        return self.slot.address

    @property
    def via(self) -> int:
        """Return the address of the branch to the probed address."""
        return self.slot.address + HALF

    def code(self, behind: int, probed: int, isa: Isa) -> bytes:
        """Encode its two branches. behind: the address behind the program. Raises OutOfReach."""
        branches = (isa.branch(self.address, behind), isa.branch(self.via, probed))
        return b"".join(one + isa.breakpoint * ((HALF - len(one)) // len(isa.breakpoint)) for one in branches)
