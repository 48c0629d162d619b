"""The cost of one event, from two runs of a workload that differ only in their number of events.

    long run    ├─ start ─┼─ event ─ event ─ event ─ … ─ event ─┼─ end ─┤
    short run   ├─ start ─┼─ event ─┼─ end ─┤

The difference holds events and nothing else: neither the start of a program nor GDB's `continue` and interrupt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Reading:
    """The measured cost of a whole run, or of one event of it.

    instructions: of the guest.
    seconds:      of processor time on the host.
    wall:         seconds that passed on the host.
    """

    instructions: float
    stops: float
    packets: float
    seconds: float
    wall: float

    def values(self) -> tuple[float, ...]:
        return (self.instructions, self.stops, self.packets, self.seconds, self.wall)


def each(short: Reading, long: Reading, events: int) -> Reading:
    """Return the cost of one event, where `long` has so many more events than `short`."""
    if events <= 0:
        raise ValueError("the long run must hold more events than the short one")
    return Reading(*((many - few) / events for few, many in zip(short.values(), long.values(), strict=True)))


def middle(readings: Sequence[Reading]) -> Reading:
    """Return the median of repeated readings, column by column: one disturbed run changes nothing."""
    return Reading(*(median(column) for column in zip(*(one.values() for one in readings), strict=True)))


def least(readings: Sequence[Reading]) -> Reading:
    """Return the least of repeated runs, column by column.

    Other programs of the host make a run longer, never shorter, and so does what the guest does beside it.
    """
    return Reading(*(min(column) for column in zip(*(one.values() for one in readings), strict=True)))


def spread(values: Sequence[float]) -> float:
    """Return the distance between the smallest and the largest value."""
    return max(values) - min(values)
