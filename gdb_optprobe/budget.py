"""Limits on reading a guest: the guest decides how long its tables, chains and names are, and may lie.

Each reader defines its limits, and names what the largest kernel or program that was measured needs. Data beyond a
limit is refused with one line that says so; all other data is still read.
"""

from __future__ import annotations

from gdb_optprobe.errors import OptprobeError

__all__ = ["Budget", "OverBudget"]

HINT = "more than is read of any guest"


class OverBudget(OptprobeError):
    """The guest has more of something than its limit."""

    def __init__(self, what: str, limit: int, of: str) -> None:
        super().__init__(f"{what} has over {limit:,} {of}", HINT)


class Budget:
    """Counts the steps of one reading. what: the object that is read. of: the unit that is counted, in the plural."""

    __slots__ = ("left", "limit", "of", "what")

    def __init__(self, limit: int, what: str, of: str) -> None:
        self.limit = self.left = limit
        self.what = what
        self.of = of

    def spend(self, amount: int = 1) -> None:
        """Count `amount`. Raises OverBudget."""
        self.left -= amount
        if self.left < 0:
            raise OverBudget(self.what, self.limit, self.of)
