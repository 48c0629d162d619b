"""The tiers of a probe, worst first: the order of the members is the order of the tiers."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


@total_ordering
class Tier(Enum):
    """How a hit is served. A tier is greater than those that stop the guest more, or cost more."""

    BREAKPOINT = "breakpoint"
    BOOSTED = "boosted"
    EMULATED = "emulated"
    TRAPPED = "trapped"
    OPTIMIZED = "optimized"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Tier):
            return NotImplemented
        return _ORDER[self] < _ORDER[other]

    @property
    def stops(self) -> int:
        """Return how often one hit stops the guest."""
        return {Tier.BREAKPOINT: 2, Tier.BOOSTED: 1, Tier.EMULATED: 1}.get(self, 0)


_ORDER = {tier: place for place, tier in enumerate(Tier)}
BEST_FIRST = tuple(reversed(Tier))
