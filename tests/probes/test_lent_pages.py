"""Which blocks of an earlier GDB's journal are data, by what the guest has in their cells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.lent_block import CELL, LentBlock
from gdb_optprobe.guest.linux.arch.base import NOWHERE
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes.lent_pages import mapped
from tests.guest.linux.fake_kernel import Pages

CELLS = (0x1000, 0x1008, 0x1010)
PLACE, ORDER, SIZE = 0x4000_0000, 5, 0x20_0000


def window() -> Any:
    """Where the kernel's own mapping of a block serves."""
    return cast(Any, SimpleNamespace(
        orders=(ORDER, ORDER - 1), size=lambda order: SIZE >> ORDER - order,
        is_place=lambda place, order: place % 16 == 0,
        is_free=lambda place: place == NOWHERE, is_mapped=lambda place, order, block: place == block,
    ))  # fmt: skip


def data(*blocks: tuple[int, int], order: int = ORDER) -> tuple[tuple[int, int], ...]:
    """Of blocks with these places, and words in their cells."""
    memory = Pages()
    for cell, (_, held) in zip(CELLS, blocks, strict=False):
        memory.put(cell, held.to_bytes(CELL, "little"))
    made = [LentBlock(cell, order, place) for cell, (place, _) in zip(CELLS, blocks, strict=False)]
    return mapped(made, window(), memory)


def test_only_what_serves_is_data() -> None:
    """Blocks that touch are one piece; what was asked for alone, or is to be given back, is none."""
    beside, apart = PLACE + SIZE, PLACE + 4 * SIZE
    assert data((PLACE, PLACE), (beside, beside), (apart, apart)) == (
        (PLACE, beside + SIZE),
        (apart, apart + SIZE),
    )
    assert data((NOWHERE, 0), (NOWHERE, PLACE)) == ()


@pytest.mark.parametrize(
    ("blocks", "order"),
    [
        ([(PLACE, 0)], ORDER),  # was given back, and serves
        ([(PLACE + 8, PLACE + 8)], ORDER),
        ([(PLACE, PLACE)], ORDER + 1),
        ([(PLACE, PLACE), (PLACE + SIZE // 2, PLACE + SIZE // 2)], ORDER),
    ],
)
def test_what_cannot_be(blocks: list[tuple[int, int]], order: int) -> None:
    with pytest.raises(Damaged):
        data(*blocks, order=order)
