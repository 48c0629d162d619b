"""Check values of a journal, which is untrusted: each must have its type and its range.

Numbers in JSON may be of any size, or fractions; true and false are no numbers here. All functions raise ValueError.
"""

from __future__ import annotations

from typing import Any

WORD = 1 << 64
"""Greater than every number of the guest."""


def number(value: Any, below: int = WORD, least: int = 0) -> int:
    """Return a whole number in [least, below)."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < below:
        raise ValueError(f"{_shown(value)} is no number there")
    return value


def numbers(value: Any, most: int, below: int = WORD, least: int = 0) -> tuple[int, ...]:
    """Return at most `most` whole numbers in [least, below), from a list."""
    return tuple(number(each, below, least) for each in items(value, most))


def flag(value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def text(value: Any) -> str:
    """Return text with any characters."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    return value


def items(value: Any, most: int) -> list[Any]:
    """Return a list of at most `most` values."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{_shown(value)} is no list of {most} at most")
    return value


def row(value: Any, *sizes: int) -> list[Any]:
    """Return a list; one of `sizes` must be its length."""
    if len(items(value, max(sizes))) not in sizes:
        raise ValueError(f"{len(value)} values in a list of {' or '.join(map(str, sizes))}")
    return list(value)


def data(value: Any, longest: int, least: int = 1) -> bytes:
    """Return bytes, from hexadecimal digits and nothing else."""
    if not isinstance(value, str) or not 2 * least <= len(value) <= 2 * longest or not value.isalnum():
        raise ValueError(f"{_shown(value)} are no {least} to {longest} bytes")
    return bytes.fromhex(value)


def _shown(value: Any) -> str:
    return ascii(value)[:40] if isinstance(value, int | str | float) else type(value).__name__
