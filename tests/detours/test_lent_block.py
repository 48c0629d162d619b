"""Blocks of data that the kernel lends, in a journal that may hold anything."""

from __future__ import annotations

from typing import Any

import pytest

from gdb_optprobe.detours.lent_block import LentBlock, decode_all, encode, joined

DATA = 0x1000, 0x2000
ONE, OTHER = LentBlock(0x1008, 9, 0x7000_0000), LentBlock(0x1FF8, 5, 0x7020_0000)


def test_blocks_are_read_as_they_were_written() -> None:
    state = {f"more {block.cell:x}": encode(block) for block in (OTHER, ONE)}
    assert decode_all({**state, "data 1008": 8}, DATA) == (ONE, OTHER)
    assert decode_all({"data 1008": 8}, DATA) == ()


@pytest.mark.parametrize(
    "state",
    [
        {"more 1004": [9, 0]},
        {"more ff8": [9, 0]},
        {"more 2000": [9, 0]},
        {"more x": [9, 0]},
        {"more 1008": [32, 0]},
        {"more 1008": [True, 0]},
        {"more 1008": [9, -1]},
        {"more 1008": [9]},
        {"more 1008": 9},
        {"more 1008": [9, 0x7000], "more 1010": [9, 0x7000]},
    ],
)
def test_what_cannot_be(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        decode_all(state, DATA)


def test_ranges_that_touch_are_one() -> None:
    assert joined([]) == []
    assert joined([(8, 9), (2, 4), (4, 8), (10, 11)]) == [(2, 9), (10, 11)]
