"""Where programs that stop the guest leave to: pages without other code, for TCG runs one with a breakpoint slowly.

    pad     │ branch behind the program │ branch to the probed address │
             ▲                           ▲
             GDB's breakpoint            where GDB sends who comes to it
A guest without GDB runs the first branch: the hit goes on as one that does not stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.isa.base import Isa

PAGE = 4096
SIZE = 16
HALF = SIZE // 2


@dataclass(slots=True)
class Pad:
    """slot: of `SIZE` bytes. data: what it holds."""

    slot: Slot
    data: bytes

    @property
    def address(self) -> int:
        return self.slot.address

    @property
    def via(self) -> int:
        """The branch to the probed address."""
        return self.slot.address + HALF

    def code(self, behind: int, probed: int, isa: Isa) -> bytes:
        """What it is to hold. behind: the program. Raises OutOfReach."""
        ways = (isa.branch(self.address, behind), isa.branch(self.via, probed))
        return b"".join(way + isa.breakpoint * ((HALF - len(way)) // len(isa.breakpoint)) for way in ways)
