"""Page tables laid out in a made-up physical memory, walked back; and tables that lead nowhere."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.guest.linux.arch.aarch64 import paging
from gdb_optprobe.guest.linux.arch.aarch64.paging import TABLE, VALID, Regime, pages, translate, walk
from tests.guest.linux.arch.aarch64.tables import CODE, DATA, ROOT, TCR, WIDE_TCR, Tables, regime

KERNEL = 0xFFFF_A819_7CE0_0000


@pytest.mark.parametrize(
    "tcr, shifts, root_entries",
    [(TCR, (39, 30, 21, 12), 512), (WIDE_TCR, (48, 39, 30, 21, 12), 16)],
)
def test_levels(tcr: int, shifts: tuple[int, ...], root_entries: int) -> None:
    found = regime(tcr)
    assert found.shifts == shifts and found.entries(0) == root_entries
    assert found.start == -(1 << found.bits) % 2**64


def test_what_says_nothing_that_can_be_walked() -> None:
    assert Regime.of(TCR & ~(3 << 30)) is None  # a reserved granule
    assert Regime.of(TCR & ~0x3F_0000 | 60 << 16) is None
    assert Regime.of(TCR & ~0x3F_0000) is None


@pytest.mark.parametrize("tcr", [TCR, WIDE_TCR])
@pytest.mark.parametrize("level, size", [(None, 1 << 12), (-2, 1 << 21), (-3, 1 << 30)])
def test_a_page_of_each_size(tcr: int, level: int | None, size: int) -> None:
    made = Tables(regime(tcr))
    physical = (3 << 50 if made.regime.wide else 0) | 0x8000_0000
    made.map(KERNEL & -size, physical, CODE, None if level is None else len(made.regime.shifts) + level)
    page = translate(made.read_physical, made.regime, ROOT, KERNEL + 0x10)
    assert page is not None and (page.address, page.physical, page.size) == (KERNEL & -size, physical, size)
    assert page.executable and not page.writable
    assert translate(made.read_physical, made.regime, ROOT, (KERNEL & -size) + size) is None
    assert [found.address for found in pages(made.read_physical, made.regime, ROOT, 1 << 63, 1 << 64)] == [page.address]


@pytest.mark.parametrize("tcr", [TCR, WIDE_TCR])
def test_a_walk_goes_on_through_the_pages_of_one_table(tcr: int) -> None:
    made, physical = Tables(regime(tcr)), 0x8000_0000
    base = KERNEL & -(1 << 21)
    for number in range(512 + 4):
        if number not in (6, 9):  # one is not there, and one is elsewhere
            made.map(base + (number << 12), physical + (number << 12), CODE)
    made.map(base + (9 << 12), physical + (99 << 12), CODE)

    def walked(number: int) -> tuple[int, int] | None:
        made.reads = 0
        found = walk(made.read_physical, made.regime, ROOT, base + (number << 12) + 0x10)
        assert made.reads <= len(made.regime.shifts) + 1
        return found and (found[0] - physical - 0x10 >> 12, found[1] + 0x10 >> 12)

    assert [walked(number) for number in (0, 5, 6, 7, 8, 9)] == [(0, 6), (5, 1), None, (7, 2), (8, 1), (99, 1)]
    assert [walked(number) for number in (10, 511, 512, 515)] == [(10, 502), (511, 1), (512, 4), (515, 1)]


@pytest.mark.parametrize("level, size", [(2, 1 << 21), (1, 1 << 30)])
def test_a_walk_ends_with_its_block(level: int, size: int) -> None:
    made = Tables(regime())
    for number in range(2):
        made.map((KERNEL & -size) + number * size, 0x8000_0000 + number * size, CODE, level)
    found = walk(made.read_physical, made.regime, ROOT, (KERNEL & -size) + size - 0x1000)
    assert found == (0x8000_0000 + size - 0x1000, 0x1000)


def test_rights_that_a_table_takes_away() -> None:
    made = Tables(regime())
    made.map(KERNEL, 0x8000_0000, 0)
    (at,) = (at for at, word in made.words.items() if at < ROOT + 0x1000)
    made.words[at] |= paging.TABLE_READ_ONLY | paging.TABLE_NO_EXECUTE
    page = translate(made.read_physical, made.regime, ROOT, KERNEL)
    assert page is not None and not page.writable and not page.executable


def test_addresses_outside_of_the_half() -> None:
    made = Tables(regime())
    made.map(KERNEL, 0x8000_0000, DATA)
    assert translate(made.read_physical, made.regime, ROOT, KERNEL & (1 << 48) - 1) is None
    user = Regime.of_user(TCR)
    assert user is not None and translate(made.read_physical, user, ROOT, KERNEL) is None


def test_the_last_level_has_no_blocks() -> None:
    made = Tables(regime())
    made.map(KERNEL, 0x8000_0000, DATA)
    at = next(at for at, word in made.words.items() if word & ~0xFFF == 0x8000_0000 | DATA)
    made.words[at] &= ~TABLE
    assert translate(made.read_physical, made.regime, ROOT, KERNEL) is None


def test_tables_that_lead_to_themselves_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MOST_TABLES", 64)
    made = Tables(regime())
    made.words.update({ROOT + 8 * number: ROOT | TABLE | VALID for number in range(512)})
    with pytest.raises(OverBudget):
        list(pages(made.read_physical, made.regime, ROOT, 1 << 63, 1 << 64))
    assert made.reads < 2 * paging.MOST_TABLES
    assert translate(made.read_physical, made.regime, ROOT, KERNEL) is not None


def test_any_words_are_walked_within_bounds() -> None:
    source = random.Random(7)
    for _ in range(200):
        found = Regime.of(source.getrandbits(64))
        if found is None:
            continue
        reads = 0

        def read(address: int, size: int) -> bytes:
            nonlocal reads
            reads += 1
            return source.randbytes(size)

        page = translate(read, found, found.root(source.getrandbits(64)), source.getrandbits(64) | 1 << 63)
        assert reads <= len(found.shifts) <= 6
        assert page is None or page.size in {1 << shift for shift in found.shifts}
