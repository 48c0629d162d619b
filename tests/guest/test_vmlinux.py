"""Symbols of the file that GDB has, in the order and with the types that the kernel's own would have."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import vmlinux
from gdb_optprobe.guest.symbols import Symbols, SymbolTable
from tests.guest import elf_blobs
from tests.guest.elf_blobs import ABSOLUTE, BSS, DATA, NOTES, RODATA
from tests.guest.elf_blobs import TEXT as CODE

START = 0xFFFF_FFFF_8100_0000
SLIDE = 0x1280_0000
ROWS = (
    ("", 0, CODE, 0, 0),
    ("a.c", 0, ABSOLUTE, 0, 4),
    ("init_task", START + 0x3000, DATA, 1, 1),
    ("__do_sys_read", START + 0x10, CODE, 0, 2),
    ("do_sys_read", START + 0x10, CODE, 1, 2),
    ("_text", START, CODE, 1, 0),
    ("weak_read", START + 0x10, CODE, 2, 2),
    (".Lagain", START + 0x18, CODE, 0, 0),
    ("__crc_read", 0x1234, ABSOLUTE, 1, 0),
    ("table", START + 0x2000, RODATA, 0, 1),
    ("jiffies", START + 0x4000, BSS, 1, 1),
    ("note", 0, NOTES, 0, 1),
    ("current_task", 0x40, DATA, 1, 1),
)
WANTED = (
    (0x40, "current_task", "D"),
    (START, "_text", "T"),
    (START + 0x10, "do_sys_read", "T"),
    (START + 0x10, "__do_sys_read", "t"),
    (START + 0x10, "weak_read", "W"),
    (START + 0x2000, "table", "r"),
    (START + 0x3000, "init_task", "D"),
    (START + 0x4000, "jiffies", "B"),
)


def columns(*rows: tuple[int, str, str]) -> Symbols:
    addresses, names, types = zip(*rows, strict=True)
    return Symbols(array("Q", addresses), list(names), "".join(types))


def test_types_and_order_are_those_of_kallsyms() -> None:
    found = vmlinux.read(elf_blobs.vmlinux(ROWS))
    assert found.start == START
    assert found.symbols == columns(*WANTED)


def test_at_another_address_per_cpu_variables_stay() -> None:
    table = SymbolTable(vmlinux.read(elf_blobs.vmlinux(ROWS)).at(START + SLIDE))
    assert table.address("init_task") == START + SLIDE + 0x3000
    assert table.address("current_task") == 0x40


def test_a_kernel_without_data_symbols_gets_those_of_its_file() -> None:
    own = columns((START, "_text", "T"), (START + 0x10, "do_sys_read", "T"), (START + 0x2100, "__stop_notes", "D"))
    assert not vmlinux.has_data(own)
    found = vmlinux.completed(own, vmlinux.read(elf_blobs.vmlinux(ROWS)).symbols)
    assert vmlinux.has_data(columns(*WANTED, (START + 0x5000, "static", "b")))
    assert found.names == ["current_task", "_text", "do_sys_read", "table", "__stop_notes", "init_task", "jiffies"]


def test_what_is_no_vmlinux_is_refused() -> None:
    whole = elf_blobs.vmlinux(ROWS)
    for data in (b"", b"MZ", whole[:200], elf_blobs.vmlinux(ROWS[2:4])):
        with pytest.raises(OptprobeError):
            vmlinux.read(data)


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptprobeError):
        vmlinux.load(tmp_path / "gone")
