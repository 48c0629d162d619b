"""Page tables laid out in a made-up physical memory, walked back."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.arch.x86_64.paging import (
    GLOBAL,
    LARGE,
    NO_EXECUTE,
    PRESENT,
    USER,
    WRITABLE,
    mappings,
    translate,
    walk,
)

KERNEL = 0xFFFF_FFFF_8100_0000
CR3 = 0x1000
ROOT = CR3


class Memory:
    """Physical memory made of tables; every read is kept."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.reads: list[tuple[int, int]] = []
        self.next = 0x2000

    def __call__(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        return b"".join(self.words.get(at, 0).to_bytes(8, "little") for at in range(address, address + size, 8))

    def map(
        self, address: int, entry: int, level: int = 1, through: int = PRESENT | WRITABLE | USER, top: int = 4
    ) -> None:
        """An entry for `address` in a table of `level`, and the tables above it."""
        table = ROOT
        for above in range(top, level, -1):
            at = table + (address >> (3 + 9 * above) & 511) * 8
            if at not in self.words:
                self.words[at] = self.next | through
                self.next += 0x1000
            table = self.words[at] & paging.ADDRESS
        self.words[table + (address >> (3 + 9 * level) & 511) * 8] = entry


@pytest.mark.parametrize("level, size", [(1, 1 << 12), (2, 1 << 21), (3, 1 << 30)])
@pytest.mark.parametrize("la57", [False, True])
def test_a_page_of_each_size(level: int, size: int, la57: bool) -> None:
    memory = Memory()
    frame = 0x40_0000_0000
    large = LARGE | 0x1000 if level > 1 else 0  # with PAT set, which is no address
    memory.map(KERNEL, frame | PRESENT | large, level, top=5 if la57 else 4)
    page = translate(memory, CR3, KERNEL + 0x123, la57=la57)
    assert page is not None
    base = KERNEL & ~(size - 1)
    assert (page.address, page.physical, page.size, page.level) == (base, frame, size, level)
    assert page.frame_of(KERNEL + 0x123) == frame + KERNEL + 0x123 - base
    assert memory.words[page.entry_address] == page.entry
    assert not page.writable and page.executable and not page.user


def test_rights_are_those_of_all_levels_together() -> None:
    every = PRESENT | WRITABLE | USER
    for through, entry, expected in (
        (every, every | GLOBAL, (True, True, True, True)),
        (PRESENT | WRITABLE, every, (True, True, False, False)),
        (PRESENT | USER, every, (False, True, True, False)),
        (every | NO_EXECUTE, every, (True, False, True, False)),
        (every, every | NO_EXECUTE, (True, False, True, False)),
    ):
        memory = Memory()
        memory.map(KERNEL, entry, through=through)
        page = translate(memory, CR3, KERNEL)
        assert page is not None
        assert (page.writable, page.executable, page.user, page.is_global) == expected
        (run,) = mappings(memory, CR3, KERNEL, KERNEL + 1)
        assert run == page


def test_not_mapped_and_not_canonical() -> None:
    memory = Memory()
    memory.map(KERNEL, 0x5000 | PRESENT)
    memory.map(KERNEL + 0x2000, 0x5000)  # not present: a swapped page's entry
    assert translate(memory, CR3, KERNEL + 0x1000) is None
    assert translate(memory, CR3, KERNEL + 0x2000) is None
    assert translate(memory, CR3, 0) is None
    assert translate(memory, CR3, 0x0001_0000_0000_0000) is None
    assert translate(memory, CR3, 0x8000_FFFF_8100_0000) is None


def test_what_else_is_in_cr3_is_no_address() -> None:
    memory = Memory()
    memory.map(KERNEL, 0x5000 | PRESENT)
    assert translate(memory, CR3 | 0x006 | 1 << 63, KERNEL) is not None
    assert paging.kernel_cr3(0x8000_0000_1234_5806) == 0x1234_4000


def test_runs() -> None:
    memory = Memory()
    for n in range(4):
        memory.map(KERNEL + n * 0x1000, 0x10_0000 + n * 0x1000 | PRESENT)
    memory.map(KERNEL + 0x4000, 0x10_4000 | PRESENT | WRITABLE)  # another right
    memory.map(KERNEL + 0x5000, 0x20_0000 | PRESENT | WRITABLE)  # another frame
    memory.map(KERNEL + 0x7000, 0x20_2000 | PRESENT | WRITABLE)  # behind a hole
    memory.map(KERNEL + 0x20_0000, 0x60_0000 | PRESENT | LARGE, level=2)
    memory.map(KERNEL + 0x40_0000, 0x80_0000 | PRESENT)  # adjacent, in another size
    found = [(run.address - KERNEL, run.size, run.physical) for run in mappings(memory, CR3, KERNEL, (1 << 64) - 1)]
    assert found == [
        (0, 0x4000, 0x10_0000),
        (0x4000, 0x1000, 0x10_4000),
        (0x5000, 0x1000, 0x20_0000),
        (0x7000, 0x1000, 0x20_2000),
        (0x20_0000, 0x20_1000, 0x60_0000),
    ]


def test_runs_read_whole_tables_once_and_only_those_needed() -> None:
    memory = Memory()
    for n in range(512):
        memory.map(KERNEL + n * 0x1000, n << 12 | PRESENT)
        memory.map(KERNEL + (n << 21) + (1 << 30), n << 12 | PRESENT)
    memory.reads.clear()
    assert len(list(mappings(memory, CR3, KERNEL, KERNEL + 0x20_0000))) == 1
    assert len(memory.reads) == 4 and {size for _, size in memory.reads} == {4096}


def test_runs_are_ascending_through_both_halves() -> None:
    memory = Memory()
    for address in (0x40_0000, 0x7FFF_FFFF_F000, 0xFFFF_8880_0000_0000, 0xFFFF_FFFF_FFFF_F000):
        memory.map(address, 0x5000 | PRESENT)
    found = [run.address for run in mappings(memory, CR3, 0, 1 << 64)]
    assert found == [0x40_0000, 0x7FFF_FFFF_F000, 0xFFFF_8880_0000_0000, 0xFFFF_FFFF_FFFF_F000]


def test_entries_of_ours() -> None:
    memory = Memory()
    for writable, executable in ((True, False), (False, True)):
        memory.map(KERNEL, paging.page_entry(0x1234_5000, writable, executable), through=paging.table_entry(0))
        page = translate(memory, CR3, KERNEL)
        assert page is not None
        assert (page.physical, page.writable, page.executable, page.user) == (0x1234_5000, writable, executable, False)


@pytest.mark.parametrize("level, size", [(1, 1 << 12), (2, 1 << 21)])
def test_a_walk_goes_as_far_as_one_table_maps_on(level: int, size: int) -> None:
    """Up to a page that is elsewhere, is not there, or is of another size."""
    frame, large = 0x40_0000_0000, LARGE if level > 1 else 0
    for last in (1 << 40 | PRESENT | large, large, 0x5000 | PRESENT if level > 1 else 0):
        memory = Memory()
        start = KERNEL & -(1 << 30)
        for number in range(3):
            pat = 0x1000 if level > 1 and number == 1 else 0
            memory.map(start + number * size, frame + number * size | PRESENT | large | pat, level)
        memory.map(start + 3 * size, last, level)
        assert walk(memory, CR3, start + 0x123) == (frame + 0x123, 3 * size - 0x123)
        assert walk(memory, CR3, start + 2 * size + 5) == (frame + 2 * size + 5, size - 5)
