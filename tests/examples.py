"""How many cases a test tries that says so itself, in `scripts/test quick`, `scripts/test` and `scripts/stress`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

_Case = TypeVar("_Case")
QUICK, FULL = bool(os.environ.get("OPTPROBE_QUICK")), bool(os.environ.get("OPTPROBE_FULL"))
FEWER = 20


def examples(suite: int) -> int:
    """Return how many to try where the suite tries `suite`."""
    return -(-suite // FEWER) if QUICK else suite


def samples(suite: int, full: int = 0) -> int:
    """Return how much of a real kernel's code to try where the suite tries `suite`, and scripts/stress `full`."""
    return -(-suite // 5) if QUICK else full if FULL and full else suite


def some(cases: Sequence[_Case]) -> Sequence[_Case]:
    """Return all of the suite's cases, of which `scripts/test quick` tries each seventh."""
    return cases[::7] if QUICK else cases
