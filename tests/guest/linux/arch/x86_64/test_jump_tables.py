"""Jump tables of switches, absolute and relative ones."""

from __future__ import annotations

from struct import pack

from gdb_optprobe.guest.linux.arch.x86_64.jump_tables import targets
from tests.guest.linux.fake_kernel import Pages

TEXT = 0xFFFFFFFF81000000
TABLE = 0xFFFFFFFF82000000


def test_absolute_jump_table() -> None:
    memory = Pages()
    memory.put_words(TABLE + 0x40, TEXT + 8, TEXT + 12, 0)
    code = bytes.fromhex("ff24c5") + ((TABLE + 0x40) & 0xFFFFFFFF).to_bytes(4, "little") + b"\x90" * 16
    assert targets(TEXT, code, (TABLE, TABLE + 0x100), memory.read) == {TEXT + 8, TEXT + 12}


def test_relative_jump_table() -> None:
    memory = Pages()
    table = TABLE + 0x40
    memory.put(table, pack("<iii", TEXT + 8 - table, TEXT + 9 - table, 0))
    lea = bytes.fromhex("488d05") + (table - (TEXT + 7)).to_bytes(4, "little", signed=True)
    assert targets(TEXT, lea + b"\x90" * 16, (TABLE, TABLE + 0x100), memory.read) == {TEXT + 8, TEXT + 9}


def test_constants_that_are_no_table() -> None:
    memory = Pages()
    memory.put_words(TABLE + 0x40, 1, 2, 3)
    code = bytes.fromhex("8b0425") + ((TABLE + 0x40) & 0xFFFFFFFF).to_bytes(4, "little") + b"\x90" * 16
    assert targets(TEXT, code, (TABLE, TABLE + 0x100), memory.read) == frozenset()
