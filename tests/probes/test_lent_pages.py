"""Which blocks of an earlier GDB's journal are data, by what the guest has in their cells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.arena import Lack
from gdb_optprobe.detours.lent_block import CELL, LentBlock
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import NOWHERE
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes.lent_pages import LentPages, mapped
from gdb_optprobe.probes.settings import Settings
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


def lender(max_memory: int, places: int, journal: object = "there") -> LentPages:
    """Of a kernel that lends blocks of up to 4 MiB, 2 MiB at first."""
    kernel = cast(Any, SimpleNamespace(
        orders=range(10, 4, -1), whole=9, size=lambda order: 0x1000 << order, table=lambda: None,
        places=lambda low, high: (NOWHERE,) * places, allocator=SimpleNamespace(allocate=lambda *_: None),
    ))  # fmt: skip
    arch = SimpleNamespace(window=lambda machine, known: kernel)
    linux = cast(Any, SimpleNamespace(arch=arch, machine=None, kernel=None))
    arena = cast(Any, SimpleNamespace(journal=SimpleNamespace(memory=journal, is_open=True)))
    return LentPages(linux, arena, lambda: Settings(max_memory=max_memory), lambda text: None, lambda table: True)


@pytest.mark.parametrize(("size", "limit"), [(1, 2), (0x200000, 2), (0x200001, 4), (0x400001, 8), (0x800001, 0)])
def test_with_which_limit_a_piece_can_be_lent(size: int, limit: int) -> None:
    """Whether something is lent by now, or nothing may be."""
    for max_memory in (0, 1, 16):
        assert lender(max_memory, 2).max_memory_for(size) == limit
    assert lender(0, 2).why_not() == "max-memory is 0" and not lender(1, 2).why_not()


def test_where_nothing_is_lent_no_limit_helps() -> None:
    assert lender(0, 2, journal=None).max_memory_for(1) == 0
    assert lender(0, 2, journal=None).why_not() == "no journal can be kept"


def test_memory_for_the_journal_is_asked_for_once() -> None:
    """Until another limit is set: each try runs the guest."""
    asked = lender(1, 2)
    window = SimpleNamespace(**vars(asked._window), range=(0, 1 << 40), inside=lambda low, high: (low, high))
    window.journal = lambda place, order: (0x3000, 0x4000)
    asked.linux.arch.code_window = lambda machine, known: window
    lack = asked.journal_lack
    assert lack == Lack(0x20_0000, 0, 1 << 40, is_code=True, is_for_journal=True)
    with pytest.raises(OptprobeError, match="more are needed") as refused:
        asked.lend(lack, 0)
    assert refused.value.hint == "set optprobe max-memory 2" and asked.journal_lack is None
    asked.settings = lambda: Settings(max_memory=2)
    assert asked.journal_lack == lack
    asked.settings = lambda: Settings(max_memory=0)
    assert asked.journal_lack is None
    window.journal = lambda place, order: (0, 0)
    asked.settings = lambda: Settings(max_memory=16)
    assert asked.journal_lack is None, "no block of this kernel has one"
