"""BTF as pahole writes it: by name, by number, by path of members."""

from __future__ import annotations

import random
import struct

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import btf
from gdb_optprobe.guest.btf import Array, Btf, Enum, Field, Float, Function, Int, Member, Parameter, Pointer, Qualified

from .blobs import BtfWriter


def written() -> tuple[Btf, dict[str, int]]:
    writer = BtfWriter()
    number: dict[str, int] = {}
    number["char"] = writer.integer("char", 1, signed=True)
    number["unsigned int"] = writer.integer("unsigned int", 4)
    number["long"] = writer.integer("long int", 8, signed=True)
    number["const char"] = writer.add("", 10, number["char"])
    number["const char *"] = writer.add("", 2, number["const char"])
    number["char[16]"] = writer.add("", 3, 0, number["char"], number["unsigned int"], 16)
    number["size_t"] = writer.add("size_t", 8, number["long"])
    number["tagged"] = writer.add("rcu", 18, number["size_t"])
    number["anonymous"] = writer.struct("", 16, ("left", number["long"], 0), ("right", number["long"], 64))
    number["pair"] = writer.struct("pair", 16, ("first", number["long"], 0), ("second", number["size_t"], 64))
    number["pair[4]"] = writer.add("", 3, 0, number["pair"], number["unsigned int"], 4)
    number["union"] = writer.struct("", 16, ("", number["anonymous"], 0), ("whole", number["char[16]"], 0), union=True)
    number["task_struct"] = writer.struct(
        "task_struct",
        160,
        ("state", number["unsigned int"], 0),
        ("comm", number["char[16]"], 64),
        ("", number["union"], 192),
        ("pairs", number["pair[4]"], 320),
        ("self", number["long"] + 100, 832),
    )
    number["orc_entry"] = writer.bitfields(
        "orc_entry",
        6,
        ("sp_offset", number["unsigned int"], 0, 0),
        ("type", number["unsigned int"], 40, 3),
        ("signal", number["unsigned int"], 43, 1),
        ("wide", number["unsigned int"], 45, 9),
    )
    narrow = writer.integer("unsigned int", 4, bits=3)
    writer.struct("old_bitfield", 4, ("plain", number["unsigned int"], 0), ("narrow", narrow, 21))
    flag = [writer.string(name) for name in ("LOW", "HIGH")]
    number["enum"] = writer.add("level", 6, 4, flag[0], -1, flag[1], 7, vlen=2)
    number["enum64"] = writer.add("wide", 19, 8, writer.string("HUGE"), 5, 1, vlen=1)
    number["unsigned enum"] = writer.add("uns", 19, 8, writer.string("MAX"), -1, -1, vlen=1)
    number["signed enum"] = writer.add("sig", 19, 8, writer.string("MIN"), -1, -1, vlen=1, flag=True)
    number["float"] = writer.add("double", 16, 8)
    number["forward"] = writer.add("hidden", 7, flag=True)
    parameters = [writer.string("file"), number["const char *"], writer.string("count"), number["size_t"]]
    number["prototype"] = writer.add("", 13, number["long"], *parameters, vlen=2)
    number["vfs_read"] = writer.add("vfs_read", 12, number["prototype"])
    number["variadic"] = writer.add("", 13, 0, *parameters[:2], 0, 0, vlen=2)
    writer.add("printk", 12, number["variadic"])
    writer.add("namesake", 12, number["prototype"])
    writer.add("namesake", 12, number["variadic"])
    writer.add("vfs_reader", 12, number["prototype"])
    number["var"] = writer.add("jiffies", 14, number["long"], 1)
    writer.add(".data", 15, 8, number["var"], 0, 8, vlen=1)
    writer.add("tag", 17, number["var"], 0xFFFF_FFFF)
    writer.add("pair_t", 8, number["pair"])
    return Btf(writer.blob()), number


@pytest.fixture(scope="module")
def kernel() -> tuple[Btf, dict[str, int]]:
    return written()


def test_members_of_anonymous_ones_are_members(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    assert types.struct("task_struct").size == 160
    assert [(member.name, member.offset) for member in types.struct("task_struct").members] == [
        ("state", 0),
        ("comm", 8),
        ("left", 24),
        ("right", 32),
        ("whole", 24),
        ("pairs", 40),
        ("self", 104),
    ]
    assert types.struct("task_struct").member("comm") == Member("comm", 8, number["char[16]"])
    assert types.struct("task_struct").member("nosuch") is None


def test_paths(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    assert types.offset("task_struct", "right") == 32
    assert types.offset("task_struct", "pairs[2].second") == 80
    assert types.field("task_struct", "pairs") == Field(40, 64, number["pair[4]"])
    assert types.field("task_struct", "comm[3]") == Field(11, 1, number["char"])
    assert types.field("pair_t", "second") == Field(8, 8, number["size_t"])
    assert types.has("task_struct", "state")
    assert not types.has("task_struct", "state.more")
    assert not types.has("nosuch", "state")
    assert types.has_struct("pair")
    assert not types.has_struct("pair_t")
    for path in ("nosuch", "comm.x", "pairs.first", "state[0]", ""):
        with pytest.raises(OptprobeError, match="member"):
            types.offset("task_struct", path)
    with pytest.raises(OptprobeError, match="no struct 'nosuch'"):
        types.struct("nosuch")


def test_bitfields(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    unsigned = number["unsigned int"]
    assert types.struct("orc_entry").members == (
        Member("sp_offset", 0, unsigned),
        Member("type", 5, unsigned, 0, 3),
        Member("signal", 5, unsigned, 3, 1),
        Member("wide", 5, unsigned, 5, 9),
    )
    assert types.field("orc_entry", "wide") == Field(5, 2, unsigned, 5, 9)
    narrow = types.field("old_bitfield", "narrow")
    assert (narrow.offset, narrow.bit_offset, narrow.bit_size) == (2, 5, 3)


def test_types_by_number(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    assert types.type(0) == btf.Void()
    assert types.type(number["char"]) == Int("char", 1, signed=True, boolean=False)
    assert types.type(number["const char *"]) == Pointer(number["const char"])
    assert types.type(number["const char"]) == Qualified("const", number["char"])
    assert types.type(number["char[16]"]) == Array(number["char"], 16)
    assert types.type(number["size_t"]) == btf.Typedef("size_t", number["long"])
    assert types.resolve(number["tagged"]) == Int("long int", 8, signed=True, boolean=False)
    assert types.type(number["float"]) == Float("double", 8)
    assert types.type(number["forward"]) == btf.Forward("hidden", union=True)
    assert [types.size(number[name]) for name in ("pair[4]", "const char *", "tagged", "enum64", "prototype")] == [
        *(64, 8, 8, 8, 0)
    ]


def test_enums(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    assert types.type(number["enum"]) == Enum("level", 4, True, {"LOW": -1, "HIGH": 7})
    assert types.type(number["enum64"]) == Enum("wide", 8, False, {"HUGE": (1 << 32) + 5})
    assert types.type(number["unsigned enum"]) == Enum("uns", 8, False, {"MAX": 2**64 - 1})
    assert types.type(number["signed enum"]) == Enum("sig", 8, True, {"MIN": -1})
    assert (types.constant("HIGH"), types.constant("HUGE"), types.constant("nosuch")) == (7, (1 << 32) + 5, None)


def test_functions(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    file, count = Parameter("file", number["const char *"]), Parameter("count", number["size_t"])
    assert types.function("vfs_read") == Function("vfs_read", (file, count), number["long"], variadic=False)
    assert types.function("printk") == Function("printk", (file,), 0, variadic=True)
    assert types.function("namesake") is None, "two that differ"
    assert types.function("vfs_rea") is None


def test_by_keyword(kernel: tuple[Btf, dict[str, int]]) -> None:
    types, number = kernel
    assert types.find("struct", "pair") == number["pair"]
    assert types.find("typedef", "size_t") == number["size_t"]
    assert types.find("enum", "level") == number["enum"]
    assert types.find("int", "char") == number["char"]
    assert types.find("union", "pair") is None


def test_variables_of_a_section() -> None:
    writer = BtfWriter()
    long = writer.integer("long int", 8)
    first, second, twin = (writer.add(name, 14, long, 1) for name in ("first", "second", "second"))
    writer.add(".data..percpu", 15, 0x100, first, 0x40, 8, second, 0x48, 8, vlen=2)
    writer.add(".bss", 15, 0x100, twin, 0x10, 8, vlen=1)
    types = Btf(writer.blob())
    assert types.placed(".data..percpu", "first") == 0x40 and types.placed(".bss", "second") == 0x10
    assert types.placed(".data..percpu", "second") == 0x48
    assert types.placed(".bss", "first") is None and types.placed(".text", "first") is None
    writer.add(".data..percpu", 15, 0x100, twin, 0x50, 8, vlen=1)
    assert Btf(writer.blob()).placed(".data..percpu", "second") is None, "of two files"


def test_the_kind_of_a_newer_format_is_named() -> None:
    writer = BtfWriter()
    writer.add("future", 20)
    with pytest.raises(OptprobeError, match="unknown kind 20"):
        Btf(writer.blob())


def test_types_that_contain_themselves() -> None:
    writer = BtfWriter()
    writer.add("a", 8, 1)
    writer.struct("outer", 8, ("", 3, 0))
    writer.struct("", 8, ("", 3, 0))
    writer.add("", 3, 0, 4, 4, 2)
    writer.add("f", 12, 5)
    types = Btf(writer.blob())
    for attempt in (lambda: types.resolve(1), lambda: types.struct("outer"), lambda: types.function("f")):
        with pytest.raises(OptprobeError, match="cannot be read"):
            attempt()
    assert types.size(4) == 0


def test_damage_is_an_error_of_ours() -> None:
    writer = BtfWriter()
    long = writer.integer("long int", 8)
    writer.struct("task_struct", 16, ("a", long, 0), ("b", long, 64))
    writer.add("f", 12, writer.add("", 13, long, writer.string("x"), long, vlen=1))
    blob = writer.blob()
    for size in range(len(blob)):
        with pytest.raises(OptprobeError):
            Btf(blob[:size]).offset("task_struct", "b")
    noise = random.Random(4)
    for _ in range(3000):
        damaged = bytearray(blob)
        struct.pack_into("<I", damaged, noise.randrange(0, len(blob) - 4), noise.getrandbits(noise.choice((3, 8, 32))))
        try:
            types = Btf(bytes(damaged))
            types.has("task_struct", "b")
            types.function("f")
            types.constant("x")
            for number in range(len(types)):
                types.size(number)
        except OptprobeError:
            continue


def test_names_with_line_ends_and_terminal_escapes_are_printable() -> None:
    writer = BtfWriter()
    long = writer.integer("long", 8, signed=True)
    number = writer.struct("evil", 16, ("a\n[init]: 9", long, 0), ("\x1b]0;x\x07", long, 64))
    found = Btf(writer.blob()).resolve(number)
    assert isinstance(found, btf.Struct)
    assert [member.name for member in found.members] == [r"a\n[init]: 9", r"\033]0;x\007"]


def test_halves_of_two_numbers_are_no_name() -> None:
    """Names are searched for as bytes: the end of one number with the beginning of the next may look like another."""
    writer = BtfWriter()
    first, _ = writer.string("a"), writer.string("x" * 0xFD)
    second, _ = writer.string("b"), writer.string("y" * 0xFC)
    third = writer.string("c")
    assert (first, second, third) == (1, 0x101, 0x200)
    assert struct.pack("<I", first) == struct.pack("<II", second, third)[1:5]
    number = {name: writer.integer(name, 4) for name in ("b", "c", "a")}
    found = Btf(writer.blob())
    assert all([*found._named(name)] == [number[name]] for name in number)
