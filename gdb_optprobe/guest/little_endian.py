"""Arrays of numbers that are little-endian in the guest and in the cache, whatever the host is."""

from __future__ import annotations

import sys
from array import array

__all__ = ["little_endian"]


def little_endian(values: array[int]) -> array[int]:
    """Swap the bytes of each number where the host is big-endian; return the array."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
