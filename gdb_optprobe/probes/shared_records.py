"""One ring for the records of several probes. It is not one of the probes' own objects, and has memory of its own.

What programs find beside it in the same memory is their own affair (graph/gate.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.maps.ring import RingLayout


@dataclass(frozen=True, slots=True)
class SharedRecords:
    """memory: with the ring at `offset` in it."""

    layout: RingLayout
    memory: Slot
    offset: int

    @property
    def address(self) -> int:
        """Return where the ring is."""
        return self.memory.address + self.offset
