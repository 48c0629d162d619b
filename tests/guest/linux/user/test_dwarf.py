"""Parameters of a program's functions, as a compiler describes them; what is damaged is refused in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.user import dwarf
from gdb_optprobe.guest.linux.user.dwarf import SECTIONS, DebugInfo
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.handlers.ctype import CType, Enum, Pointer, Struct, describe, size_of
from tests.handlers.oracle import needs_gcc

SOURCE = r"""
enum colour { RED = -1, BLUE = 7 };
struct inner { short a; };
struct thing {
    char name[16];
    int grid[2][3];
    const struct thing *next;
    union { long number; struct { int low, high; }; };
    unsigned int three : 3, nine : 9;
    struct inner inner;
};
typedef struct thing thing_t;
struct pair { long a, b, c; };
static int shared(int first, const thing_t *second) { return first + second->grid[0][1]; }
__attribute__((noinline)) long plain(int number, thing_t *thing, enum colour colour, _Bool yes, unsigned char byte)
{ return number + thing->inner.a + colour + yes + byte + shared(number, thing); }
__attribute__((noinline)) int after(int first, double middle, int last) { return first + middle + last; }
__attribute__((noinline)) int by_value(struct pair pair, int last) { return pair.a + last; }
__attribute__((noinline)) void nothing(void) { __asm__ volatile(""); }
__attribute__((noinline)) int called(int (*call)(int), void *any, struct nowhere *hidden)
{ return call(1) + !any + !hidden; }
int main(int argc, char **argv)
{ struct pair pair = { argc, 2, 3 }; nothing();
  return plain(argc, (void *)argv, RED, 1, 2) + after(1, 2, 3) + by_value(pair, 4) + called(0, argv, 0); }
"""
OPTIONS = (
    ("-gdwarf-5",), ("-gdwarf-4",), ("-gdwarf-5", "-O2"), ("-gdwarf-4", "-O2", "-gz=zlib"), ("-g", "-flto", "-O1"),
)  # fmt: skip


def build(folder: Path, *options: str, source: str = SOURCE) -> Elf:
    (folder / "some.c").write_text(source)
    words = ["gcc", "-w", *options, "-o", folder / "some", folder / "some.c"]
    subprocess.run(words, check=True)
    data = (folder / "some").read_bytes()
    return Elf.of("some", lambda offset, size: data[offset : offset + size], len(data), KIND)


def member(type_: CType, name: str) -> tuple[str, int, int, int]:
    assert isinstance(type_, Struct)
    found = type_.lookup(name)
    assert found is not None
    return describe(found.type), found.offset, found.bit_offset, found.bit_size


@needs_gcc
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_parameters_have_the_types_of_the_source(tmp_path: Path, options: tuple[str, ...]) -> None:
    elf = build(tmp_path, *options)

    def parameters(name: str) -> dict[str, str]:
        return {each: describe(type_) for each, type_ in elf.debug_info.parameters(elf.resolve(name)).items()}

    assert parameters("plain") == {
        "number": "int", "thing": "struct thing *", "colour": "enum colour", "yes": "_Bool", "byte": "unsigned char",
    }  # fmt: skip
    assert parameters("after") == {"first": "int", "middle": "double", "last": "int"}
    assert parameters("by_value") == {"pair": "struct pair", "last": "int"}
    assert parameters("called") == {"call": "a pointer to a function", "any": "void *", "hidden": "struct nowhere *"}
    assert parameters("main") == {"argc": "int", "argv": "char **"}
    assert parameters("nothing") == {} and elf.debug_info.parameters(elf.resolve("plain") + 1) == {}


@needs_gcc
@pytest.mark.parametrize("options", [("-gdwarf-5",), ("-gdwarf-4",)], ids=" ".join)
def test_members_are_where_the_compiler_puts_them(tmp_path: Path, options: tuple[str, ...]) -> None:
    elf = build(tmp_path, *options)
    found = elf.debug_info.parameters(elf.resolve("plain"))
    pointer, colour = found["thing"], found["colour"]
    assert isinstance(pointer, Pointer) and isinstance(colour, Enum)
    assert (colour.signed, colour.enumerators()) == (True, {-1: "RED", 7: "BLUE"})
    thing = pointer.target
    assert size_of(thing) == 64
    assert member(thing, "name") == ("char [16]", 0, 0, 0)
    assert member(thing, "grid") == ("int [2][3]", 16, 0, 0)
    assert member(thing, "next") == ("struct thing *", 40, 0, 0)
    assert member(thing, "number") == ("long", 48, 0, 0) and member(thing, "high") == ("int", 52, 0, 0)
    assert member(thing, "three") == ("unsigned int", 56, 0, 3) and member(thing, "nine") == ("unsigned int", 56, 3, 9)
    assert member(thing, "inner") == ("struct inner", 58, 0, 0)
    assert isinstance(thing, Struct) and thing.lookup("absent") is None
    assert thing.names() == ("name", "grid", "next", "number", "low", "high", "three", "nine", "inner")


@needs_gcc
def test_a_file_without_debug_information_has_none(tmp_path: Path) -> None:
    elf = build(tmp_path, "-O1")
    assert elf.debug_info.parameters(elf.resolve("plain")) == {}


@needs_gcc
def test_what_is_damaged_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bytes, a reading ends, and in a value or in an error."""
    monkeypatch.setattr(dwarf, "MOST_ENTRIES", 2000)
    elf, random, ends = build(tmp_path, "-gdwarf-5"), Random(5), set()
    whole = {name: elf.debug_info.section(name) for name in SECTIONS}
    address = elf.resolve("plain")
    for _ in range(400):
        data = {name: bytearray(content) for name, content in whole.items()}
        for _ in range(random.choice((1, 3, 30))):
            content = data[random.choice((".debug_info", ".debug_info", ".debug_abbrev", ".debug_str"))]
            content[random.randrange(len(content))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        if not random.randrange(4):
            cut = data[random.choice(SECTIONS[:3])]
            del cut[random.randrange(len(cut)) :]
        info = DebugInfo("some", lambda name, data=data: bytes(data[name]))  # type: ignore[misc]
        try:
            for type_ in info.parameters(address).values():
                target = type_.target if isinstance(type_, Pointer) else type_
                if isinstance(target, Struct):
                    ends.add(len([target.lookup(name) for name in target.names()]))
        except OptprobeError as error:
            assert "\n" not in str(error)
            ends.add(-1)
    assert {-1, 9} <= ends


def sections_of(abbreviations: bytes, body: bytes) -> dict[str, bytes]:
    """A unit of DWARF 5 with the entries `body`."""
    rest = b"\5\0" + b"\1" + b"\x08" + bytes(4) + body
    return {".debug_info": len(rest).to_bytes(4, "little") + rest, ".debug_abbrev": abbreviations}


def test_a_type_that_contains_itself_ends() -> None:
    """An abbreviation for each: the unit; a function; its parameter; a struct; its member without a name."""
    abbreviations = bytes((
        1, 0x11, 1, 0, 0, 2, 0x2E, 1, 0x11, 0x01, 0, 0, 3, 0x05, 0, 0x03, 0x08, 0x49, 0x13, 0, 0,
        4, 0x13, 1, 0x0B, 0x0B, 0, 0, 5, 0x0D, 0, 0x49, 0x13, 0x38, 0x0B, 0, 0, 0,
    ))  # fmt: skip
    body = b"\1" + b"\2" + (0x1000).to_bytes(8, "little") + b"\3p\0" + (30).to_bytes(4, "little") + b"\0"
    body += b"\4\x10" + (b"\5" + (30).to_bytes(4, "little") + b"\0") * 2 + b"\0" + b"\0"
    sections = sections_of(abbreviations, body)
    type_ = DebugInfo("some", lambda name: sections.get(name, b"")).parameters(0x1000)["p"]
    assert isinstance(type_, Struct) and type_.size == 16
    with pytest.raises(OptprobeError, match="over"):
        type_.names()


def test_a_constant_of_an_abbreviation_has_a_sign() -> None:
    """<7.5.6> An abbreviation for each: the unit; a function; its parameter; an enum; two enumerators of it."""
    minus_2, sixty_four = b"\x7e", b"\xc0\x00"
    abbreviations = bytes((
        1, 0x11, 1, 0, 0, 2, 0x2E, 1, 0x11, 0x01, 0, 0, 3, 0x05, 0, 0x03, 0x08, 0x49, 0x13, 0, 0,
        4, 0x04, 1, 0x0B, 0x0B, 0, 0,
        5, 0x28, 0, 0x03, 0x08, 0x1C, 0x21, *minus_2, 0, 0, 6, 0x28, 0, 0x03, 0x08, 0x1C, 0x21, *sixty_four, 0, 0, 0,
    ))  # fmt: skip
    body = b"\1" + b"\2" + (0x1000).to_bytes(8, "little") + b"\3p\0" + (30).to_bytes(4, "little") + b"\0"
    body += b"\4\x04" + b"\5low\0" + b"\6high\0" + b"\0" + b"\0"
    sections = sections_of(abbreviations, body)
    type_ = DebugInfo("some", lambda name: sections.get(name, b"")).parameters(0x1000)["p"]
    assert isinstance(type_, Enum) and type_.signed
    assert type_.enumerators() == {-2: "low", 64: "high"}
