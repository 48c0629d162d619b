"""Values and types of the guest, written as C does."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.linux.current import unknown
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.scope import KernelScope, Site
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.isa import x86_64
from gdb_optprobe.probes.evaluate import MOST_ELEMENTS, type_lines, value_lines
from gdb_optprobe.probes.stops import Hit
from tests.guest.blobs import BtfWriter

PROBED, FILE, PAIR, GONE = 0xFFFFFFFF81000000, 0x1000, 0x2000, 0x9000
MEMORY = bytearray(0x4000)
struct.pack_into("<qQ8sIiQ", MEMORY, FILE, -5, PAIR, b"ze\x1b[o\0x", 7, -2, GONE)
struct.pack_into("<20i", MEMORY, FILE + 40, *range(20))
struct.pack_into("<qq", MEMORY, PAIR, 1, 2)


def types() -> BtfTypes:
    writer = BtfWriter()
    long_, int_ = writer.integer("long int", 8, signed=True), writer.integer("int", 4, signed=True)
    char, unsigned = writer.integer("char", 1, signed=True), writer.integer("unsigned int", 4)
    pair = writer.struct("pair", 16, ("left", long_, 0), ("right", long_, 64))
    to_pair = writer.add("", 2, pair)
    name = writer.add("", 3, 0, char, int_, 8)
    numbers = writer.add("", 3, 0, int_, int_, 20)
    level = writer.add("level", 6, 4, writer.string("HIGH"), 7, writer.string("LOW"), -2, vlen=2)
    members: list[tuple[str, int, int]] = [("pos", long_, 0), ("pair", to_pair, 64), ("name", name, 128)]
    members += [("flags", unsigned, 192), ("level", level, 224), ("gone", to_pair, 256), ("numbers", numbers, 320)]
    file = writer.struct("file", 120, *members)
    to_file = writer.add("", 2, file)
    unnamed = writer.struct("", 8, ("counter", long_, 0))
    writer.struct("holder", 16, ("count", unnamed, 0), ("next", writer.add("", 2, unnamed), 64))
    words = [writer.string("file"), to_file]
    writer.add("probed", 12, writer.add("", 13, int_, *words, vlen=1))
    return BtfTypes(Btf(writer.blob()))


def read(address: int, size: int) -> bytes:
    if address + size > len(MEMORY):
        raise Unreadable(address, size)
    return bytes(MEMORY[address : address + size])


class NoSymbols:
    def lookup(self, name: str) -> tuple[int, ...]:
        return ()

    def function_bounds(self, address: int) -> None:
        return None


REGISTERS: Mapping[str, int] = {"rdi": FILE, "rax": 2**64 - 1, "gs_base": 0}
SCOPE = KernelScope(
    Site(PROBED, "probed", entry=True), NoSymbols(), types(), abi.of(x86_64.X86_64), unknown("no threads here")
)
GUEST: Any = SimpleNamespace(
    names_at=lambda address: NamesAt(SCOPE),
    names_stopped_at=lambda address: NamesAt(SCOPE),
    symbol=lambda address: "pairs" if address == PAIR else "",
    isa=x86_64.X86_64,
)
HIT = Hit(PROBED, 0, REGISTERS, read, lambda values: None)


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("file", f"(struct file *) {FILE:#x}"),
        ("file->pos", "-5"),
        ("file->pair", f"(struct pair *) {PAIR:#x} <pairs>"),
        ("file->pair->right + 1", "3"),
        ("file->name", r'"ze\033[o"'),
        ("str(file->name)", r'"ze\033[o"'),
        ("&file->name[1]", rf'(char *) {FILE + 17:#x} "e\033[o"'),
        ("(char *)0x9000", "(char *) 0x9000"),
        ("file->level", "LOW"),
        ("(enum level)7", "HIGH"),
        ("(enum level)8", "8"),
        ("$rax", "-1"),
        ("(_Bool)2", "true"),
        ("file->numbers", f"{{{', '.join(map(str, range(MOST_ELEMENTS)))}, …}}"),
    ],
)
def test_a_value_is_written_as_c_does(typed: str, value: str) -> None:
    assert value_lines(typed, HIT, GUEST) == [value]


def test_a_struct_is_written_with_its_members() -> None:
    assert value_lines("*file->pair", HIT, GUEST) == ["{", "    left = 1", "    right = 2", "}"]
    whole = value_lines("*file", HIT, GUEST)
    assert whole[:4] == ["{", "    pos = -5", f"    pair = {PAIR:#x} <pairs>", r'    name = "ze\033[o"']
    assert f"    gone = {GONE:#x}" in whole
    assert value_lines("*(struct pair *)0x3ff8", HIT, GUEST)[1:3] == [
        "    left = 0",
        "    right = <cannot access 8 bytes of guest memory at 0x4000>",
    ]


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("file->gone->left", "'file->gone->left' has no value: cannot access 8 bytes"),
        ("*file->gone", "'*file->gone' has no value: cannot access 8 bytes of guest memory at 0x9000"),
        ("((struct file *)0x9000)->numbers", "has no value: cannot access 4 bytes of guest memory at 0x9028"),
        ("file->nosuch", "has no member 'nosuch'"),
        ("1 / (file->pos + 5)", "'1 / (file->pos + 5)' has no value: division by zero"),
        ("file pos", "not expected"),
    ],
)
def test_what_has_no_value_is_one_error(typed: str, error: str) -> None:
    with pytest.raises(OptprobeError, match=re.escape(error)):
        value_lines(typed, HIT, GUEST)


def test_a_type_has_offsets_and_sizes() -> None:
    pair = ["struct pair {", "    long left;   /*     0     8 */", "    long right;  /*     8     8 */"]
    assert type_lines("struct pair", PROBED, GUEST) == [*pair, "};  /* size 16 */"]
    assert type_lines("file->pair", PROBED, GUEST) == [*pair, "} *;  /* size 16 */"]
    assert "    char name[8];        /*    16     8 */" in type_lines("struct file", PROBED, GUEST)
    assert "    int numbers[20];     /*    40    80 */" in type_lines("file", PROBED, GUEST)
    assert type_lines("enum level", PROBED, GUEST) == [
        "enum level {", "    LOW = -2,", "    HIGH = 7,", "}  /* size 4 */"
    ]
    held = ["struct holder {", "    struct {…} count;  /*     0     8 */", "    struct {…} *next;  /*     8     8 */"]
    assert type_lines("struct holder", PROBED, GUEST) == [*held, "};  /* size 16 */"]
    assert type_lines("u32", PROBED, GUEST) == ["unsigned int  /* size 4 */"]
    with pytest.raises(OptprobeError, match="no type named 'struct nosuch'"):
        type_lines("struct nosuch", PROBED, GUEST)
