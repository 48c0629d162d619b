"""Look-ups by name, by address and by glob."""

from __future__ import annotations

from array import array

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.symbols import Located, Symbols, SymbolTable

TEXT = 0xFFFF_FFFF_8100_0000
ROWS = [
    (0x0, "A", "fixed_percpu_data"),
    (0x1FB80, "A", "current_task"),
    (TEXT, "D", "_stext_data"),
    (TEXT, "T", "_text"),
    (TEXT, "T", "_stext"),
    (TEXT + 0x100, "t", "cleanup"),
    (TEXT + 0x180, "T", "vfs_read"),
    (TEXT + 0x280, "t", "cleanup"),
    (TEXT + 0x2C0, "W", "weak_one"),
    (TEXT + 0x300, "T", "_etext"),
    (TEXT + 0x1000, "R", "linux_banner"),
    (TEXT + 0x2000, "T", "start_kernel"),
    (TEXT + 0x3000, "B", "_end"),
]


def symbols() -> Symbols:
    addresses, types, names = zip(*ROWS, strict=True)
    return Symbols(array("Q", addresses), list(names), "".join(types))


@pytest.fixture
def table() -> SymbolTable:
    return SymbolTable(symbols(), [(TEXT, TEXT + 0x300)])


def test_by_name(table: SymbolTable) -> None:
    assert table.lookup("vfs_read") == [TEXT + 0x180]
    assert table.lookup("cleanup") == [TEXT + 0x100, TEXT + 0x280]
    assert table.lookup("nosuch") == []
    assert table.address("cleanup") == TEXT + 0x100
    assert table.address("nosuch") is None
    assert table.require("current_task") == 0x1FB80


def test_a_name_that_must_be_there_once(table: SymbolTable) -> None:
    with pytest.raises(OptprobeError, match="no symbol named 'nosuch'"):
        table.require("nosuch")
    with pytest.raises(OptprobeError, match=r"2 symbols are named 'cleanup'.*\*0xffffffff81000280"):
        table.require("cleanup")


def test_by_address(table: SymbolTable) -> None:
    assert table.at(TEXT + 0x185) == Located("vfs_read", 5, 0x100)
    assert str(table.at(TEXT + 0x185)) == "vfs_read+0x5"
    assert str(table.at(TEXT + 0x180)) == "vfs_read"
    # The first function of an address goes before data that starts there too.
    assert table.at(TEXT + 1) == Located("_text", 1, 0x100)
    assert table.at(TEXT + 0x1008) == Located("linux_banner", 8, 0x1000)
    assert table.at(TEXT + 0x3000) == Located("_end", 0, 0)


@pytest.mark.parametrize("address", [0, 0x1FB80, 0x5555_5555_0000, TEXT - 1, TEXT + 0x3001, 2**64 - 1])
def test_addresses_of_no_symbol(table: SymbolTable, address: int) -> None:
    assert table.at(address) is None


def test_function_bounds(table: SymbolTable) -> None:
    assert table.function_bounds(TEXT + 0x185) == (TEXT + 0x180, TEXT + 0x280)
    assert table.function_bounds(TEXT + 0x1000) is None
    assert table.function_bounds(TEXT + 0x2000) is None, "outside the text"
    assert SymbolTable(symbols()).function_bounds(TEXT + 0x2000) == (TEXT + 0x2000, TEXT + 0x3000)


def test_globs(table: SymbolTable) -> None:
    assert table.functions_matching("c*p") == {TEXT + 0x100, TEXT + 0x280}
    assert table.functions_matching("vfs_[pr]ead") == {TEXT + 0x180}
    assert table.functions_matching("*") == {found.address for found in table.functions()}
    assert table.functions_matching("VFS*") == set()


def test_functions_each_address_once(table: SymbolTable) -> None:
    assert [found.name for found in table.functions()] == ["_text", "cleanup", "vfs_read", "cleanup", "weak_one"]


def test_completions(table: SymbolTable) -> None:
    assert table.completions("cl") == ["cleanup"]
    assert table.completions("cur") == []


def test_moved_by_kaslr() -> None:
    moved = symbols().moved(0x1000_0000)
    assert moved.address("current_task") == 0x1FB80
    assert moved.address("vfs_read") == TEXT + 0x1000_0180
    assert moved.moved(-0x1000_0000) == symbols()


def test_no_symbols() -> None:
    table = SymbolTable(Symbols(array("Q"), [], ""))
    assert table.at(TEXT) is None
    assert table.lookup("vfs_read") == []


def test_names_of_many_addresses_are_those_of_each(table: SymbolTable) -> None:
    addresses = sorted({at + by for at, _, _ in ROWS for by in (0, 5)})
    located = [table.at(address) for address in addresses]
    assert table.names_at(addresses) == [found.name if found is not None else "" for found in located]
