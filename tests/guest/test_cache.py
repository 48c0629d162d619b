"""What the cache gives back is what was put in, or nothing."""

from __future__ import annotations

import json
import os
import random
from array import array
from pathlib import Path
from struct import pack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest import cache as caching
from gdb_optprobe.guest.cache import Cache, Shelf, default_cache
from gdb_optprobe.guest.symbols import Symbols, SymbolTable
from tests.guest.blobs import TEXT, FakeMemory, kernel_symbols, note
from tests.steps import calls_in

SLIDE = 0x1280_0000
BUILD = bytes(range(20))
OTHER = bytes(20)
KEY, KEY_2 = "5" * 64, "6" * 64
NOTE_OFFSET = 0x40_0000


def columns(count: int) -> Symbols:
    addresses, types, names = zip(*sorted(kernel_symbols(count, percpu=50)), strict=True)
    return Symbols(array("Q", addresses), list(names), "".join(types))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "symbols")


@pytest.fixture
def shelf(cache: Cache) -> Shelf:
    return cache.shelf(BUILD.hex(), KEY)


def test_symbols_under_another_slide(cache: Cache, shelf: Shelf) -> None:
    shelf.store_symbols(columns(1000), TEXT)
    assert shelf.symbols(TEXT) == columns(1000)
    assert shelf.symbols(TEXT + SLIDE) == columns(1000).moved(SLIDE)
    assert cache.shelf(BUILD.hex(), KEY_2).symbols(TEXT) is None


def claimed(cache: Cache, memory: FakeMemory, text: int) -> list[tuple[str, str]]:
    return [(claim.build, claim.shelf.key) for claim in cache.claims(text, memory.read)]


def test_a_kernel_that_has_a_build_id_may_be_any_that_said_so(cache: Cache) -> None:
    memory = FakeMemory()
    memory.place(TEXT + SLIDE + NOTE_OFFSET, note(b"GNU\0", 3, BUILD) + bytes(64))
    assert claimed(cache, memory, TEXT + SLIDE) == [], "there is no cache yet"
    cache.shelf(OTHER.hex(), KEY).remember({"note": NOTE_OFFSET})
    assert claimed(cache, memory, TEXT + SLIDE) == []
    for key in (KEY, KEY_2):
        cache.shelf(BUILD.hex(), key).remember({"note": NOTE_OFFSET})
    assert {*claimed(cache, memory, TEXT + SLIDE)} == {(BUILD.hex(), KEY), (BUILD.hex(), KEY_2)}
    assert claimed(cache, memory, TEXT) == []


@pytest.mark.parametrize("offset", [None, "1", -1, 1 << 62, [1], True])
def test_a_note_that_cannot_be_is_passed_over(cache: Cache, shelf: Shelf, offset: object) -> None:
    shelf.remember({"note": offset})
    memory = FakeMemory()
    memory.place(TEXT, bytes(256))
    assert claimed(cache, memory, TEXT) == []


def test_an_unreadable_guest_is_not_recognised(cache: Cache, shelf: Shelf) -> None:
    shelf.remember({"note": NOTE_OFFSET})

    def unreadable(address: int, size: int) -> bytes:
        raise Unreadable(address, size)

    assert not list(cache.claims(TEXT, unreadable))


def test_facts_add_up(shelf: Shelf) -> None:
    assert shelf.facts() == {}
    shelf.remember({"note": 2976})
    shelf.remember({"tables": [40, 2]})
    assert shelf.facts() == {"note": 2976, "tables": [40, 2]}


def test_a_file_for_gdb_has_one_content_for_ever(cache: Cache) -> None:
    path = cache.store_file(b"\x7fELF and more")
    assert path is not None and path.read_bytes() == b"\x7fELF and more"
    assert cache.store_file(b"\x7fELF and more") == path == cache.file(path.stem)
    assert cache.store_file(b"\x7fELF and other") != path
    path.write_bytes(b"\x7fELF")
    assert cache.file(path.stem) is None
    assert cache.store_file(b"\x7fELF and more") == path and path.read_bytes() == b"\x7fELF and more"
    assert cache.file("../" + path.stem) is None


@pytest.mark.parametrize("name", ["symbols", "facts", "landings-1"])
def test_a_damaged_file_is_as_good_as_none(shelf: Shelf, name: str) -> None:
    shelf.store_symbols(columns(300), TEXT)
    shelf.remember({"note": 5})
    shelf.store("landings-1", bytes(500))
    truth = (columns(300), {"note": 5}, bytes(500))

    def known() -> tuple[object, object, object]:
        return shelf.symbols(TEXT) or truth[0], shelf.facts() or truth[1], shelf.load("landings-1") or truth[2]

    path = shelf.folder / name
    whole = path.read_bytes()
    noise = random.Random(3)
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[noise.randrange(len(whole))] ^= 1 << noise.randrange(8)
        path.write_bytes(damaged)
        assert known() == truth
    for size in range(0, len(whole), 1 + len(whole) // 50):
        path.write_bytes(whole[:size])
        assert known() == truth
    for other in (b"[1, 2]", b"[" * 60_000, (shelf.folder / "facts").read_bytes()):
        path.write_bytes(other)
        assert known() == truth


def test_a_file_under_another_name_is_as_good_as_none(cache: Cache, shelf: Shelf) -> None:
    shelf.store("landings-1", b"rows")
    other = cache.shelf(BUILD.hex(), KEY_2)
    other.store("landings-1", b"others")
    (shelf.folder / "landings-2").write_bytes((shelf.folder / "landings-1").read_bytes())
    (shelf.folder / "landings-1").write_bytes((other.folder / "landings-1").read_bytes())
    assert shelf.load("landings-1") is None and shelf.load("landings-2") is None
    assert other.load("landings-1") == b"others"


NAMES = st.lists(st.one_of(st.text(max_size=20), st.integers(), st.none()), max_size=6)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    numbers=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6),
    words=st.one_of(
        st.fixed_dictionaries({"types": st.text(max_size=6), "names": NAMES}).map(json.dumps).map(str.encode),
        st.binary(max_size=40),
        st.just(b"[" * 100_000),
    ),
)
def test_whatever_symbols_are_read_they_are_symbols_or_none(
    shelf: Shelf, numbers: tuple[int, int], values: list[int], words: bytes
) -> None:
    shelf.store("symbols", pack("<II", *numbers) + pack(f"<{len(values)}q", *values) + words)
    found = shelf.symbols(TEXT)
    if found is not None:
        assert list(found.addresses) == sorted(found.addresses)
        assert len(found) == len(found.names) == len(found.types) and all(isinstance(name, str) for name in found.names)


@pytest.mark.parametrize(
    "names", [["a\nb", "c\0", "\ud800", "\x1b]0;\x07"], ["", "é", "\u2028", '"'], ["x" * 512, "{}", "\\n", "\r\n"]]
)
def test_names_of_any_characters(shelf: Shelf, names: list[str]) -> None:
    symbols = Symbols(array("Q", [TEXT, TEXT, TEXT + 1, TEXT + 2]), names, "tTt\n")
    shelf.store_symbols(symbols, TEXT)
    assert shelf.symbols(TEXT) == symbols


def test_what_is_beyond_the_bounds_is_not_kept(shelf: Shelf) -> None:
    shelf.store_symbols(Symbols(array("Q", [TEXT]), ["x" * 10_000], "t"), TEXT)
    assert shelf.symbols(TEXT) is None
    shelf.store_symbols(Symbols(array("Q", [TEXT + 1, TEXT]), ["one", "two"], "tt"), TEXT)
    assert shelf.symbols(TEXT) is None


def test_golden(cache: Cache) -> None:
    """The format: it may not change without another number."""
    shelf = cache.shelf("ab" * 20, KEY)
    shelf.store_symbols(Symbols(array("Q", [8, TEXT, TEXT + 0x10]), ["cpu", "_text", "new\nline"], "ATt"), TEXT)
    shelf.remember({"note": 64})
    words = b'{"types": "ATt", "names": ["cpu", "_text", "new\\nline"]}'
    body = pack("<II3q", 3, 1, 8, 0, 0x10) + words
    seal = "a8b9bae15790fdf9876d4da0a4c2689bae455cdfb8d4a9c72b04a512ca668a4e"
    assert (shelf.folder / "symbols").read_bytes() == b"optprob2" + bytes.fromhex(seal) + body
    seal = "f1c419e5b1a92cfb9b7a166739efcc6d4568cf965807caf8ff556f41523f2a38"
    assert (shelf.folder / "facts").read_bytes() == b"optprob2" + bytes.fromhex(seal) + b'{"note": 64}'


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = Cache(tmp_path / "file" / "symbols")
    shelf = cache.shelf(BUILD.hex(), KEY)
    shelf.store_symbols(columns(100), TEXT)
    shelf.remember({"note": 1})
    assert cache.store_file(b"ELF") is None
    assert shelf.symbols(TEXT) is None and shelf.facts() == {}
    assert not list(cache.claims(TEXT, lambda _, size: bytes(size)))


def test_nothing_is_left_aside_and_nothing_is_for_others(cache: Cache, shelf: Shelf) -> None:
    shelf.store_symbols(columns(100), TEXT)
    shelf.remember({"note": 1})
    cache.store_file(b"ELF")
    assert {path.name for path in shelf.folder.iterdir()} == {"symbols", "facts"}
    assert not any(path.stat().st_mode & 0o077 for path in (cache.folder, *cache.folder.rglob("*")))


def test_a_link_a_pipe_and_a_file_for_all_to_write_are_not_followed(cache: Cache, shelf: Shelf, tmp_path: Path) -> None:
    shelf.store("landings-1", b"rows")
    path = shelf.folder / "landings-1"
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    assert shelf.load("landings-1") is None
    path.unlink()
    os.mkfifo(path)
    assert shelf.load("landings-1") is None
    made = cache.store_file(b"ELF")
    assert made is not None
    made.parent.chmod(0o777)
    assert cache.file(made.stem) is None, "another user may put another one there"
    cache.folder.chmod(0o770)
    assert cache.store_file(b"ELF") == made == cache.file(made.stem), "no longer"


def test_what_was_used_the_longest_ago_makes_room(cache: Cache) -> None:
    """A guest with another build-id at each boot fills no disk."""
    for number in range(caching.MOST_BUILDS + 5):
        shelf = cache.shelf(f"{number:040x}", KEY)
        shelf.store("landings-1", b"rows")
        os.utime(shelf.folder.parent, (number, number))
    assert {path.name for path in cache.folder.iterdir()} == {f"{number:040x}" for number in range(5, number + 1)}
    for number in range(caching.MOST_OF_A_KIND + 5):
        shelf.store(f"landings-{number}", b"rows")
        os.utime(shelf.folder / f"landings-{number}", (number, number))
    assert len(list(shelf.folder.iterdir())) == caching.MOST_OF_A_KIND
    for number in range(caching.MOST_KERNELS + 3):
        cache.shelf(BUILD.hex(), f"{number:064x}").store("landings-1", b"rows")
    assert len(list((cache.folder / BUILD.hex()).iterdir())) == caching.MOST_KERNELS
    for number in range(caching.MOST_FILES + 3):
        cache.store_file(b"%d" % number)
    assert len(list((cache.folder / "files").iterdir())) == caching.MOST_FILES


def test_where_it_is() -> None:
    assert default_cache({"OPTPROBE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}).folder == Path("/c/symbols")
    assert default_cache({"XDG_CACHE_HOME": "/x"}).folder == Path("/x/optprobe/symbols")
    assert default_cache({}).folder == Path.home() / ".cache/optprobe/symbols"


@pytest.mark.thorough
def test_150_000_symbols_are_not_looked_at_one_by_one(shelf: Shelf) -> None:
    shelf.store_symbols(columns(150_000), TEXT)

    def found() -> int | None:
        symbols = shelf.symbols(TEXT + SLIDE)
        assert symbols is not None
        return SymbolTable(symbols).address("Function_1_read_lock")

    address, calls = calls_in(found)
    assert address is not None
    assert calls < 15_000
