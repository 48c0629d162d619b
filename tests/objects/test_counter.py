"""Counters in guest memory."""

from __future__ import annotations

from gdb_optprobe.objects.counter import Counter


def test_there_and_back() -> None:
    values = (0, 1, 2**63, 2**64 - 1)
    data = Counter.encode(*values)
    assert len(data) == 4 * Counter.size
    assert tuple(Counter.decode_all(data)) == values
    assert Counter.decode(data[8:]) == 1
    assert Counter.encode(1) == bytes([1, 0, 0, 0, 0, 0, 0, 0])
