"""Places that lie near each other are read as one run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Changed
from gdb_optprobe.guest.memory import MUCH

HOLE = range(0x4000, 0x5000)


class Memory:
    """Each byte is of its address; HOLE cannot be read."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def read(self, address: int, size: int) -> bytes:
        self.sizes.append(size)
        if address < HOLE.stop and address + size > HOLE.start:
            raise Unreadable(address, size)
        return content(address, size)

    def write(self, address: int, data: bytes) -> None:
        raise AssertionError("nothing is written")


def content(address: int, size: int) -> bytes:
    return bytes((at * 7 ^ at >> 8) & 0xFF for at in range(address, address + size))


@given(st.lists(st.integers(0, HOLE.start - 64), unique=True).map(sorted), st.integers(1, 64))
def test_each_head_is_of_its_address(addresses: list[int], size: int) -> None:
    memory = Memory()
    assert list(runs.heads(addresses, size, memory)) == [content(address, size) for address in addresses]
    assert all(read <= runs.LONGEST for read in memory.sizes)


def test_what_lies_near_is_one_run() -> None:
    memory = Memory()
    list(runs.heads(range(0, 1600, 16), 16, memory))
    assert memory.sizes == [1600]


def test_functions_of_a_run_that_cannot_be_read_have_no_heads() -> None:
    near, far = [HOLE.start - 8, HOLE.start + 8], [0x100, HOLE.stop + 0x4000]
    found = dict(zip(addresses := sorted(near + far), runs.heads(addresses, 16, Memory()), strict=True))
    assert [found[address] for address in near] == [b"", b""]
    assert [found[address] for address in far] == [content(address, 16) for address in far]


def test_what_is_asked_for_is_read_once() -> None:
    """Where it is asked for downwards, too, or twice."""
    memory = Memory()
    ahead = runs.Ahead(memory, 0x100)
    upwards, back = ((0x1000, 16), (0x1010, 0x20), (0x2000, 8)), ((0x1F40, 8), (0x1F48, 8), (0x10F0, 8))
    for at, size in (*upwards, *back, (0x2008, 8), *upwards):
        assert ahead.read(at, size) == content(at, size)
    assert memory.sizes == [0x100, 0xD0, 0xC0]


def test_what_was_asked_for_is_not_ahead_any_more() -> None:
    memory = Memory()
    ahead = runs.Ahead(memory, 0x100)
    for at, size in ((0x1000, 0x80), (0x1080, 0x40), (0x10C0, 0x80), (0x2000, 8), (0x10C0, 0x80)):
        assert ahead.read(at, size) == content(at, size)
    assert memory.sizes == [0x100, 0x80, 8]


def test_what_was_changed_is_read_anew() -> None:
    memory = Memory()
    ahead = runs.Ahead(memory, 0x100)
    for _ in range(2):
        assert ahead.read(0x1000, 16) == content(0x1000, 16)
        ahead.forget()
    assert memory.sizes == [0x100, 0xF0]


def test_what_is_ahead_need_not_be_memory() -> None:
    memory = Memory()
    ahead = runs.Ahead(memory, 0x100)
    assert ahead.read(HOLE.start - 8, 8) == content(HOLE.start - 8, 8)
    with pytest.raises(Unreadable):
        ahead.read(HOLE.start - 8, 16)


def test_what_is_ahead_and_no_memory_is_not_asked_for_again_and_again() -> None:
    memory = Memory()
    ahead, size = runs.Ahead(memory, 0x2000), 0x20
    for at in range(HOLE.start - 0x1000, HOLE.start, size):
        assert ahead.read(at, size) == content(at, size)
    assert sum(memory.sizes) < 3 * 0x2000


class Dumped(Memory):
    """Reads many places at once, where `works` says so."""

    def __init__(self, works: bool) -> None:
        super().__init__()
        self.works = works

    def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(start, end - start) for start, end in spans]

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes] | None:
        return [content(start, end - start) for start, end in places] if self.works else None


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("count", [1, runs.MANY, 200])
def test_what_is_held_at_places_is_the_same_however_it_is_read(works: bool, count: int) -> None:
    addresses = [0x40 * number + number % 3 for number in range(count)]
    places = [(at, at + 1 + at % 9) for at in addresses]
    memory = Dumped(works)
    assert runs.held(places, memory) == [content(start, end - start) for start, end in places]
    assert list(runs.heads(addresses, 16, memory)) == [content(at, 16) for at in addresses]
    assert bool(memory.sizes) == (not works or count < runs.MANY), "runs are read where it is not possible"


class Written:
    """Memory from 0 on. images: whether it can be had at once."""

    def __init__(self, data: bytes, images: bool) -> None:
        self.data, self.images = bytearray(data), images
        self.writes: list[tuple[int, int]] = []

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.data[address : address + size])

    def write(self, address: int, data: bytes) -> None:
        self.writes.append((address, len(data)))
        self.data[address : address + len(data)] = data

    def image(self, start: int, end: int, changed: Changed | None = None) -> Written | None:
        return Written(self.data, False) if self.images else None


@pytest.mark.parametrize("images", [True, False])
def test_only_what_differs_is_filled(images: bool) -> None:
    size, wanted = 3 * MUCH // 2, content(0, 3 * MUCH // 2)
    memory = Written(wanted + b"behind", images)
    for at in (0, 5 * runs.LONGEST, 6 * runs.LONGEST - 1, 6 * runs.LONGEST, size - 1):
        memory.data[at] ^= 1
    runs.fill(0, wanted, memory)
    assert memory.data == wanted + b"behind"
    last = size // runs.LONGEST * runs.LONGEST
    differ = [(0, runs.LONGEST), (5 * runs.LONGEST, 2 * runs.LONGEST), (last, size - last)]
    assert memory.writes == (differ if images else [(0, size)])


def test_little_is_filled_without_a_look() -> None:
    memory = Written(bytes(64), images=True)
    runs.fill(8, b"data", memory)
    assert memory.writes == [(8, 4)] and memory.read(8, 4) == b"data"
