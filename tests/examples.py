"""How many random examples a test tries that says so itself."""

from __future__ import annotations

import os

QUICK = bool(os.environ.get("OPTPROBE_QUICK"))
FEWER = 20


def examples(suite: int) -> int:
    """Return how many to try where the suite tries `suite`."""
    return -(-suite // FEWER) if QUICK else suite
