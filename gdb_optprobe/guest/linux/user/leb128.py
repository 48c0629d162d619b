"""Numbers of variable length, as DWARF has them (DWARF 5, 7.6): seven bits in each byte, the lowest ones first."""

from __future__ import annotations

LONGEST = 10
"""Bytes: no number has more than 64 bits."""


def number(data: bytes, at: int, end: int, signed: bool = False) -> tuple[int, int] | None:
    """Return the number at an offset and where the next byte is; None where it does not end before `end`."""
    value = shift = 0
    for place in range(at, min(at + LONGEST, end, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value - (1 << shift) if signed and byte & 0x40 else value, place + 1
    return None
