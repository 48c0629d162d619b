"""How often something that takes time is done where it may be done at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SHARE = 0.05


@dataclass
class Throttle:
    """It takes `share` of all time at most, but for what it took last. clock: seconds."""

    share: float = SHARE
    clock: Callable[[], float] = time.monotonic
    _next: float | None = None

    @property
    def is_due(self) -> bool:
        return self._next is None or self.clock() >= self._next

    @contextmanager
    def measure(self) -> Iterator[None]:
        """While it is done."""
        start = self.clock()
        yield
        end = self.clock()
        self._next = end + (end - start) / self.share
