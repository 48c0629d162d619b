"""Where programs that stop the guest leave to, and the bell that they ring before.

    pad     │ branch behind the program │ branch to the probed address │
             ▲                           ▲
             GDB's breakpoint            where GDB sends who comes to it
    bell    │ a word that GDB watches │ … │ how often it was rung │ … nothing else of ours in this page of data
A guest without GDB runs the first branch: the hit goes on as one that does not stop.

QEMU's TCG looks through its breakpoints at each jump that it does not know beforehand, and runs what shares a page with
one by single instructions: on x86-64 one that is never hit costs a sixth of the time of a million reads. A watchpoint
costs those who touch its page. So the breakpoints at pads are there only while somebody has rung who has not come.
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
    """slot: of `SIZE` bytes. data: what it holds. bell: of the arena that it is in."""

    slot: Slot
    data: bytes
    bell: int

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
