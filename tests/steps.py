"""Count what a computation does, where seconds would tell more of the machine than of the code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

__all__ = ["calls_in"]

T = TypeVar("T")


def calls_in(work: Callable[[], T]) -> tuple[T, int]:
    """Return what `work` returns, and how many functions of Python's and of C's it has called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = work()
    finally:
        sys.setprofile(None)
    return found, calls
