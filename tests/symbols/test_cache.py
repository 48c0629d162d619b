"""What the cache gives back is what was put in, or nothing."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.cache import Cache, default_cache
from gdb_optprobe.guest.symbols import Symbols, SymbolTable
from tests.steps import calls_in

from .blobs import TEXT, FakeMemory, kernel_symbols, note

SLIDE = 0x1280_0000
BUILD = bytes(range(20))
NOTE_OFFSET = 0x40_0000


def columns(count: int) -> Symbols:
    addresses, types, names = zip(*sorted(kernel_symbols(count, percpu=50)), strict=True)
    return Symbols(array("Q", addresses), list(names), "".join(types))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "symbols")


def test_symbols_under_another_slide(cache: Cache) -> None:
    cache.store_symbols("b1", columns(1000), TEXT, TEXT + NOTE_OFFSET)
    assert cache.symbols("b1", TEXT) == columns(1000)
    assert cache.symbols("b1", TEXT + SLIDE) == columns(1000).moved(SLIDE)
    assert cache.symbols("b2", TEXT) is None


def test_a_kernel_is_recognised_by_its_note(cache: Cache) -> None:
    memory = FakeMemory()
    memory.place(TEXT + SLIDE + NOTE_OFFSET, note(b"GNU\0", 3, BUILD) + bytes(64))
    assert cache.recognise(TEXT + SLIDE, memory.read) is None, "there is no cache yet"
    cache.store_symbols(bytes(20).hex(), columns(100), TEXT, TEXT + NOTE_OFFSET)
    assert cache.recognise(TEXT + SLIDE, memory.read) is None
    cache.store_symbols("another", columns(100), TEXT, TEXT + 16)
    cache.store_symbols(BUILD.hex(), columns(100), TEXT, TEXT + NOTE_OFFSET)
    assert cache.recognise(TEXT + SLIDE, memory.read) == BUILD.hex()
    assert cache.recognise(TEXT, memory.read) is None


def test_an_unreadable_guest_is_not_recognised(cache: Cache) -> None:
    cache.store_symbols("b1", columns(100), TEXT, TEXT + NOTE_OFFSET)

    def unreadable(address: int, size: int) -> bytes:
        raise Unreadable(address, size)

    assert cache.recognise(TEXT, unreadable) is None


def test_facts_add_up(cache: Cache) -> None:
    assert cache.facts("b1") == {}
    cache.remember("b1", {"task_struct.comm": 2976})
    cache.remember("b1", {"orc": {"type": [40, 2]}})
    assert cache.facts("b1") == {"task_struct.comm": 2976, "orc": {"type": [40, 2]}}


def test_the_file_for_gdb(cache: Cache) -> None:
    assert cache.symbol_file("b1") is None
    path = cache.store_symbol_file("b1", b"\x7fELF and more")
    assert path is not None
    assert path == cache.symbol_file("b1")
    path.write_bytes(b"\x7fELF")
    assert cache.symbol_file("b1") is None


@pytest.mark.parametrize("name", ["symbols.bin", "facts.json"])
def test_a_damaged_file_is_as_good_as_none(cache: Cache, name: str) -> None:
    cache.store_symbols("b1", columns(300), TEXT, TEXT + NOTE_OFFSET)
    path = cache.folder / "b1" / name
    whole = path.read_bytes()
    noise = random.Random(3)
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[noise.randrange(len(whole))] ^= 1 << noise.randrange(8)
        path.write_bytes(damaged)
        assert cache.symbols("b1", TEXT) in (None, columns(300))
        assert cache.facts("b1") in ({}, {"note_offset": NOTE_OFFSET})
    for size in range(0, len(whole), 1 + len(whole) // 50):
        path.write_bytes(whole[:size])
        assert (cache.symbols("b1", TEXT) if name == "symbols.bin" else cache.facts("b1")) in (None, {})
    path.write_bytes(b"[1, 2]")
    assert (cache.symbols("b1", TEXT) if name == "symbols.bin" else cache.facts("b1")) in (None, {})


def test_a_shelf_gives_back_what_it_was_given_or_nothing(cache: Cache) -> None:
    shelf = cache.shelf("b1")
    assert shelf.load("landings.bin") is None
    shelf.store("landings.bin", b"rows")
    assert shelf.load("landings.bin") == b"rows" and cache.shelf("b2").load("landings.bin") is None
    path = cache.folder / "b1" / "landings.bin"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:2], b"", bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + b"x"):
        path.write_bytes(damaged)
        assert shelf.load("landings.bin") is None


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = Cache(tmp_path / "file" / "symbols")
    cache.store_symbols("b1", columns(100), TEXT, TEXT)
    assert cache.store_symbol_file("b1", b"ELF") is None
    assert cache.symbols("b1", TEXT) is None
    assert cache.recognise(TEXT, lambda _, size: bytes(size)) is None


def test_nothing_is_left_aside(cache: Cache) -> None:
    cache.store_symbols("b1", columns(100), TEXT, TEXT)
    cache.store_symbol_file("b1", b"ELF")
    assert {path.name for path in (cache.folder / "b1").iterdir()} == {"symbols.bin", "symbols.elf", "facts.json"}


def test_where_it_is() -> None:
    assert default_cache({"OPTPROBE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}).folder == Path("/c/symbols")
    assert default_cache({"XDG_CACHE_HOME": "/x"}).folder == Path("/x/optprobe/symbols")
    assert default_cache({}).folder == Path.home() / ".cache/optprobe/symbols"


def test_150_000_symbols_are_not_looked_at_one_by_one(cache: Cache) -> None:
    cache.store_symbols("b1", columns(150_000), TEXT, TEXT)

    def found() -> int | None:
        symbols = cache.symbols("b1", TEXT + SLIDE)
        assert symbols is not None
        return SymbolTable(symbols).address("Function_1_read_lock")

    address, calls = calls_in(found)
    assert address is not None
    assert calls < 15_000
