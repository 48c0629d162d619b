"""How a probe is done, worst first: the order of the members is the order of the tiers."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


@total_ordering
class Tier(Enum):
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
        """Stops of the guest for one hit."""
        return {Tier.BREAKPOINT: 2, Tier.BOOSTED: 1, Tier.EMULATED: 1}.get(self, 0)


_ORDER = {tier: place for place, tier in enumerate(Tier)}
BEST_FIRST = tuple(reversed(Tier))
