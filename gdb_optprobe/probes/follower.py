"""Show records as they come: read the rings at short stops, and empty them.

The pause between stops is chosen so that the fullest ring is half full at the next one. A hit that a stop interrupts
is shown after that stop, behind later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SHORTEST, FIRST, LONGEST = 0.02, 0.1, 0.5
"""Seconds between two looks."""
WANTED = 0.5


@dataclass(frozen=True, slots=True)
class Drained:
    """What the rings had. lost: hits that found one full. fullness: of the fullest one; 1 is full, more has lost."""

    records: int = 0
    lost: int = 0
    fullness: float = 0.0


@dataclass
class Follower:
    """Takes what the rings have at each call. records, lost: all that it has taken.

    drain: show what is new, and empty the rings. clock: seconds.
    """

    drain: Callable[[], Drained]
    clock: Callable[[], float] = time.monotonic
    pause: float = FIRST
    records: int = 0
    lost: int = 0

    def __call__(self) -> float:
        """Return the seconds until the next call: as long as this one took at least, so that the guest gets on."""
        begun = self.clock()
        found = self.drain()
        self.records += found.records
        self.lost += found.lost
        self.pause = max(next_pause(self.pause, found.fullness), self.clock() - begun)
        return self.pause


def next_pause(pause: float, fullness: float) -> float:
    """Return the seconds until the next look, of a ring that was so full after `pause`."""
    growth = WANTED / fullness if fullness else 2
    return min(max(pause * min(growth, 2), SHORTEST), LONGEST)
