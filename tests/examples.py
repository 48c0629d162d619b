"""How many random examples a test tries that says so itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

_Case = TypeVar("_Case")
QUICK = bool(os.environ.get("OPTPROBE_QUICK"))
FEWER = 20


def examples(suite: int) -> int:
    """Return how many to try where the suite tries `suite`."""
    return -(-suite // FEWER) if QUICK else suite


def some(cases: Sequence[_Case]) -> Sequence[_Case]:
    """Return all of the suite's cases, of which `scripts/test quick` tries each seventh."""
    return cases[::7] if QUICK else cases
