"""The cache: names of its files, their keys, and what is in them. What is not known by these is found out anew."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

from gdb_optprobe.guest.cache import Cache, default_cache
from gdb_optprobe.guest.kallsyms_tables import KallsymsTables
from gdb_optprobe.guest.linux.arch.x86_64 import mid_function_entries
from gdb_optprobe.guest.linux.arch.x86_64.mid_function_entries import MidFunctionEntries
from gdb_optprobe.guest.linux.arch.x86_64.moved_text import EarlierText, Fields
from gdb_optprobe.guest.symbols import Symbols
from tests.golden import golden

TEXT = 0xFFFF_FFFF_8100_0000
BUILD, KEY = bytes(range(20)).hex(), "5" * 64
SYMBOLS = Symbols(array("Q", [0x1000, TEXT, TEXT + 0x100]), ["fixed_percpu_data", "_text", "vfs_read"], "ATt")
ENTRIES = MidFunctionEntries(array("Q", [TEXT + 9, TEXT + 0x120]), array("Q", [TEXT + 4, TEXT + 0x3000]), bytes([1, 3]))
EARLIER = EarlierText(
    TEXT,
    bytes(range(32)),
    Fields(array("I", [3]), array("I", [0x8100_0040])),
    Fields(array("I", [9]), array("I", [7])),
    proven=True,
)
TABLES = KallsymsTables((0x100, 0x200), (0x300, 0x400))


def test_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "symbols")
    shelf = cache.shelf(BUILD, KEY)
    shelf.store_symbols(SYMBOLS, TEXT)
    shelf.remember({"note": 0x40_0000, "tables": TABLES.fact(), "elf_1": ["i386:x86-64 0x1000 frames", "0" * 64, TEXT]})
    shelf.store(f"landings-{KEY}", ENTRIES.pack(TEXT))
    shelf.store(f"text-{KEY}", EARLIER.pack())
    assert cache.store_file(b"\x7fELF") is not None
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    listed = "".join(f"{path.relative_to(tmp_path)}\n    {path.read_bytes().hex()}\n" for path in files)
    assert listed == golden("cache.txt")


def test_what_is_there_is_read(tmp_path: Path) -> None:
    lines = golden("cache.txt").splitlines()
    for path, data in zip(lines[::2], lines[1::2], strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes.fromhex(data.strip()))
    cache = default_cache({"OPTPROBE_CACHE": str(tmp_path)})
    shelf = cache.shelf(BUILD, KEY)
    assert shelf.symbols(TEXT) == SYMBOLS
    assert shelf.facts()["note"] == 0x40_0000 and KallsymsTables.of(shelf.facts()["tables"]) == TABLES
    entries = shelf.load(f"landings-{KEY}")
    assert entries is not None and MidFunctionEntries.unpack(entries, TEXT) == ENTRIES
    ((name, earlier),) = shelf.latest("text", 4)
    assert name == f"text-{KEY}" and EarlierText.unpack(earlier, 64) == EARLIER
    (file,) = (path for path in lines if path.endswith(".elf"))
    assert cache.file(Path(file).stem) == tmp_path / file


def held(spans: Sequence[tuple[int, int]]) -> list[bytes]:
    return [bytes(at % 251 for at in range(start - TEXT, end - TEXT)) for start, end in spans]


def test_keys() -> None:
    """Of all that symbols and branch targets were derived from."""
    tables = TABLES.key(TEXT, held)
    entries = mid_function_entries._key(KEY, TEXT, b"\x90" * 64)
    assert f"{tables}\n{entries}\n" == golden("cache_keys.txt")
