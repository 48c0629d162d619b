"""Limits on what is read of a guest: it chooses how long its tables, chains and names are, and may lie.

A reader's limits stand beside it, each with what the largest kernel or program that was measured takes. What is beyond
a limit is refused in one line that says so; what else the guest has is read as before.
"""

from __future__ import annotations

from gdb_optprobe.errors import OptprobeError

__all__ = ["Budget", "OverBudget"]

HINT = "more than is read of any guest"


class OverBudget(OptprobeError):
    """A guest has more of something than is read of it."""

    def __init__(self, what: str, limit: int, of: str) -> None:
        super().__init__(f"{what} has over {limit:,} {of}", HINT)


class Budget:
    """Counts what one reading takes. what: the thing that is read. of: what is counted, in the plural."""

    __slots__ = ("left", "limit", "of", "what")

    def __init__(self, limit: int, what: str, of: str) -> None:
        self.limit = self.left = limit
        self.what = what
        self.of = of

    def spend(self, amount: int = 1) -> None:
        """Raises OverBudget."""
        self.left -= amount
        if self.left < 0:
            raise OverBudget(self.what, self.limit, self.of)
