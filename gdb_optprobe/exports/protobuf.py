"""Protocol buffers on the wire, as far as exports need them: varints, and bytes with their length before them."""

from __future__ import annotations

from collections.abc import Iterable

VARINT, BYTES = 0, 2
_MASK = (1 << 64) - 1


def integer(field: int, value: int) -> bytes:
    """Return a field of any type of integer but the sint and fixed ones. Negative ones are 64 bits."""
    return _varint(field << 3 | VARINT) + _varint(value & _MASK)


def data(field: int, value: bytes) -> bytes:
    """Return a field that is a message or bytes."""
    return _varint(field << 3 | BYTES) + _varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode())


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a repeated integer field, packed."""
    return data(field, b"".join(_varint(value & _MASK) for value in values))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
