"""A counter: 8 bytes in guest memory, little endian, unsigned, aligned, added to atomically."""

from __future__ import annotations

import struct
from collections.abc import Sequence

SIZE = ALIGNMENT = 8


class Counter:
    """The layout alone; the counters themselves are in the guest."""

    size = SIZE
    alignment = ALIGNMENT

    @staticmethod
    def encode(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}Q", *values)

    @staticmethod
    def decode(data: bytes) -> int:
        return int.from_bytes(data[:SIZE], "little")

    @staticmethod
    def decode_all(data: bytes) -> Sequence[int]:
        """Of counters that stand side by side, in one read."""
        return struct.unpack(f"<{len(data) // SIZE}Q", data[: len(data) // SIZE * SIZE])
