"""Python's collector of cycles, at rest during work on thousands of probes.

It looks through all objects again and again while they become more: of a `delete` of 43,000 probes that was a fifth.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no cycles within the block. Objects in none are freed as ever."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
