"""The object file for GDB, as binutils' and GDB's readers see it."""

from __future__ import annotations

import struct
import subprocess
from array import array
from pathlib import Path

import pytest

from gdb_optprobe.guest.symbolfile import ASIDE, load_command, outermost_file, symbol_file
from gdb_optprobe.guest.symbols import Symbols
from gdb_optprobe.isa.abi import ElfMachine
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from qemu.debugger import DebuggerError, gdb_program

TEXT = 0xFFFF_FFFF_8100_0000
SLIDE = 0x1280_0000
CODE = (TEXT, TEXT + 0x300)
ROWS = [
    (0x0, "A", "fixed_percpu_data"),
    (0x1FB80, "A", "current_task"),
    (TEXT, "T", "_text"),
    (TEXT, "T", "_stext"),
    (TEXT + 0x180, "T", "vfs_read"),
    (TEXT + 0x280, "t", "vfs_read.cold"),
    (TEXT + 0x300, "T", "_etext"),
    (TEXT + 0x1000, "D", "jiffies"),
    (TEXT + 0x2000, "t", "start_kernel"),
    (TEXT + 0x3000, "B", "_end"),
]


def symbols() -> Symbols:
    addresses, types, names = zip(*ROWS, strict=True)
    return Symbols(array("Q", addresses), list(names), "".join(types))


def entries(data: bytes) -> dict[str, tuple[int, int, int, int, int]]:
    """Symbols by name: binding, type, section, value, size."""
    (headers,) = struct.unpack_from("<Q", data, 0x28)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, headers + 64 * number) for number in range(7)]
    table, strings = sections[4], sections[5]
    assert (table[1], table[6], strings[1]) == (2, 5, 3)
    found = {}
    for at in range(table[4] + 24, table[4] + table[5], 24):
        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, at)
        start = strings[4] + name
        found[data[start : data.index(b"\0", start)].decode()] = (info >> 4, info & 15, section, value, size)
    return found


def test_symbols_are_in_their_sections() -> None:
    found = entries(symbol_file(symbols(), CODE, X86_64.elf))
    assert found == {
        "fixed_percpu_data": (1, 1, 3, 0, 0),
        "current_task": (1, 1, 3, 0x1FB80, 0),
        "_text": (1, 2, 1, TEXT, 0x180),
        "_stext": (1, 2, 1, TEXT, 0x180),
        "vfs_read": (1, 2, 1, TEXT + 0x180, 0x100),
        "vfs_read.cold": (0, 2, 1, TEXT + 0x280, 0x80),
        "_etext": (1, 2, 2, TEXT + 0x300, 0xD00),
        "jiffies": (1, 1, 2, TEXT + 0x1000, 0x1000),
        "start_kernel": (0, 2, 2, TEXT + 0x2000, 0x1000),
        "_end": (1, 1, 2, TEXT + 0x3000, 0),
    }


def test_local_symbols_come_first() -> None:
    data = symbol_file(symbols(), CODE, X86_64.elf)
    (headers,) = struct.unpack_from("<Q", data, 0x28)
    (first_global,) = struct.unpack_from("<I", data, headers + 64 * 4 + 44)
    assert list(entries(data))[: first_global - 1] == ["vfs_read.cold", "start_kernel"]


@pytest.mark.parametrize(("machine", "number", "flags"), [(X86_64.elf, 62, 0), (PPC64LE.elf, 21, 2)])
def test_machines(machine: ElfMachine, number: int, flags: int) -> None:
    data = symbol_file(symbols(), CODE, machine)
    assert struct.unpack_from("<16sHH", data)[2] == number
    assert struct.unpack_from("<I", data, 0x30)[0] == flags


def test_no_symbols() -> None:
    assert entries(symbol_file(Symbols(array("Q"), [], ""), CODE, X86_64.elf)) == {}


@pytest.mark.parametrize("slide", [0, SLIDE])
def test_gdb_finds_everything_where_kaslr_put_it(tmp_path: Path, slide: int) -> None:
    folder = tmp_path / 'a user"s \\ $cache'
    folder.mkdir()
    path = folder / "symbols.elf"
    path.write_bytes(symbol_file(symbols(), CODE, X86_64.elf))
    script = [
        "set confirm off",
        "set architecture i386:x86-64",
        load_command(str(path), CODE, slide),
        "info address vfs_read",
        f"info symbol {TEXT + slide + 0x185:#x}",
        f"info symbol {TEXT + slide + 0x290:#x}",
        f"info symbol {TEXT + slide + 0x1008:#x}",
        "info address current_task",
        "info address fixed_percpu_data",
        "break *vfs_read",
        "output/a &jiffies",
    ]
    try:
        program = gdb_program()
    except DebuggerError as missing:
        pytest.skip(str(missing))
    command = [program, "-nx", "-batch", *(word for line in script for word in ("-ex", line))]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert f'"vfs_read" is at {TEXT + slide + 0x180:#x} ' in printed
    assert "vfs_read + 5 in section .text" in printed
    # As GDB's demangler prints "vfs_read.cold".
    assert "vfs_read[cold] + 16 in section .text" in printed
    assert "jiffies + 8 in section .data" in printed
    assert '"current_task" is at 0x1fb80 ' in printed
    assert '"fixed_percpu_data" is at 0x0 ' in printed
    assert f"Breakpoint 1 at {TEXT + slide + 0x180:#x}" in printed
    assert f"{TEXT + slide + 0x1000:#x} <jiffies>" in printed


def test_where_stacks_end_no_symbol_of_the_vmlinux_s_is_hidden(tmp_path: Path) -> None:
    kernel, ends = tmp_path / "vmlinux", tmp_path / "ends.elf"
    kernel.write_bytes(symbol_file(symbols(), CODE, X86_64.elf))
    ends.write_bytes(outermost_file((TEXT + 0x180, TEXT + 0x280), X86_64.elf))
    try:
        program = gdb_program()
    except DebuggerError as missing:
        pytest.skip(str(missing))
    lines = [
        "set confirm off",
        "set architecture i386:x86-64",
        load_command(str(kernel), CODE, 0),
        f"add-symbol-file {ends} -s .text {ASIDE:#x}",
        f"info symbol {TEXT + 0x185:#x}",
    ]
    command = [program, "-nx", "-batch", *(word for line in lines for word in ("-ex", line))]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert f"vfs_read + 5 in section .text of {kernel}" in printed
    told = subprocess.run(["readelf", "--debug-dump=frames", str(ends)], capture_output=True, text=True).stdout
    assert f"pc={TEXT + 0x180:016x}..{TEXT + 0x280:016x}" in told and "undefined: r16" in told


def test_names_with_line_ends_and_terminal_escapes_do_not_reach_gdb() -> None:
    """GDB prints a symbol's name as it is."""
    addresses, types, names = zip(*ROWS, strict=True)
    hostile = [r"vfs_read\nshell touch x", "\x1b]0;owned\x07", "a b", "", "caf\xe9"]
    places = array("Q", [*addresses, *[addresses[-1]] * len(hostile)])
    more = Symbols(places, [*names, *hostile], "".join(types) + "T" * len(hostile))
    assert entries(symbol_file(more, CODE, X86_64.elf)) == entries(symbol_file(symbols(), CODE, X86_64.elf))
