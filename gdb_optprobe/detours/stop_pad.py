"""The stop pad, to which a program that stops the guest goes, and the doorbell that it rings first.

    pad     │ branch behind the program │ branch to the probed address │
             ▲                           ▲
             GDB's breakpoint            where GDB sends a vCPU that stopped there
    doorbell│ a word that is written │ … │ rings │ tickets │ …  nothing else of optprobe in this page of data
rings and tickets count how often the doorbell was rung, and the hits that stop in user programs.

A guest without GDB runs the first branch: the hit continues as one that does not stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.handlers.lower_program import RING_COUNT
from gdb_optprobe.isa.record import Isa

PAGE = 4096
SIZE = 16
HALF = SIZE // 2
WORD = 8


@dataclass(slots=True)
class StopPad:
    """slot: its `SIZE` bytes of memory. data: its code. doorbell: address of the doorbell of its arena."""

    slot: Slot
    data: bytes
    doorbell: int

    @property
    def address(self) -> int:
        return self.slot.address

    @property
    def ring_count(self) -> int:
        """Return the address of the word that counts how often the doorbell was rung."""
        return self.doorbell + RING_COUNT

    @property
    def ticket(self) -> int:
        """Return the address of the word that counts the hits that stop in programs; all pads share it."""
        return self.ring_count + WORD

    @property
    def via(self) -> int:
        """Return the address of the branch to the probed address."""
        return self.slot.address + HALF

    def code(self, behind: int, probed: int, isa: Isa) -> bytes:
        """Encode its two branches. behind: the address behind the program. Raises OutOfReach."""
        branches = (isa.branch(self.address, behind), isa.branch(self.via, probed))
        return b"".join(one + isa.breakpoint * ((HALF - len(one)) // len(isa.breakpoint)) for one in branches)
