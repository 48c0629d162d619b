"""Show records as they come: read the rings, while the guest runs where that is possible, and empty them at stops.

    the guest runs   ring half full?  no ──► show what is new; the ring fills further
                                      yes ─► stop ──► show what is new, empty the ring
The pause is chosen so that the fullest ring is half full at the next look. Where each look is a stop, a hit that it
interrupts is shown after the next one, behind later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gdb_optprobe.probes.new_records import WANTED, Drained

SHORTEST, FIRST, LONGEST = 0.02, 0.1, 0.5
"""Seconds between two looks: while the guest runs at most those of FIRST, at stops of LONGEST."""


@dataclass
class Pause:
    """The pause between two looks at rings. seconds: of the next one."""

    seconds: float = FIRST
    _before: float = 0.0

    def look(self, fullness: float, runs: bool = False) -> None:
        """Choose the next pause by how full the fullest ring was. runs: the guest runs, so it is not emptied."""
        grown, left = fullness - self._before, WANTED - fullness if runs else WANTED
        growth = left / grown if grown > 0 else 2
        self.seconds = min(max(self.seconds * min(growth, 2), SHORTEST), FIRST if runs else LONGEST)
        self._before = fullness if runs else 0.0


@dataclass
class Follower:
    """Takes what the rings have at each call. records, lost: all that it has taken.

    drain: show what is new, and take it away. clock: seconds.
    """

    drain: Callable[[], Drained]
    clock: Callable[[], float] = time.monotonic
    records: int = 0
    lost: int = 0
    _pause: Pause = field(default_factory=Pause)

    @property
    def pause(self) -> float:
        """Return the seconds until the next call."""
        return self._pause.seconds

    def __call__(self, runs: bool = False) -> float:
        """Return the seconds until the next call: as long as this one took at least, so that the guest gets on.

        runs: whether the guest does.
        """
        begun = self.clock()
        found = self.drain()
        self.records += found.records
        self.lost += found.lost
        self._pause.look(found.fullness, runs)
        self._pause.seconds = max(self.pause, self.clock() - begun)
        return self.pause
