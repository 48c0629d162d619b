"""Words in code and in other data."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["places_of"]


def places_of(word: bytes, data: bytes, start: int = 0) -> Iterator[int]:
    """Yield where `word` is in `data`, from `start` on: at multiples of its size."""
    at = data.find(word, start)
    while at >= 0:
        if not at % len(word):
            yield at
        at = data.find(word, at + 1)
