"""The kernel's types as DWARF: what GDB says of them is what BTF has; what GDB could not follow is refused."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.btf_dwarf import DEEPEST, dwarf_of
from gdb_optprobe.guest.symbolfile import ASIDE, types_file
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.registry import ISAS
from qemu.debugger import gdb_program

from .blobs import BtfWriter

POINTER, ARRAY, TYPEDEF, CONST, TAG = 2, 3, 8, 10, 18


def said(folder: Path, btf: Btf, *commands: str, isa: Isa = ISAS[0]) -> str:
    """Return what GDB prints of these types."""
    file = folder / "types.elf"
    file.write_bytes(types_file(dwarf_of(btf), isa.elf))
    lines = [f"set architecture {isa.name}", f"add-symbol-file {file} -s .text {ASIDE}", *commands]
    words = [word for line in lines for word in ("-ex", line)]
    run = [gdb_program(), "-nx", "-batch", "-iex", "set confirm off", *words]
    done = subprocess.run(run, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert not done.stderr, done.stderr
    return " ".join(done.stdout.partition(f".text_addr = {ASIDE:#x}")[2].split())


@pytest.fixture(scope="module")
def kernel() -> Btf:
    writer = BtfWriter()
    char = writer.integer("char", 1, signed=True)
    byte = writer.integer("unsigned char", 1)
    word = writer.integer("unsigned int", 4)
    long = writer.integer("long int", 8, signed=True)
    size = writer.add("size_t", TYPEDEF, long)
    tagged = writer.add("rcu", TAG, size)
    text = writer.add("", ARRAY, 0, char, word, 16)
    parameters = [0, writer.add("", POINTER, writer.add("", CONST, char)), 0, size]
    called = writer.add("", POINTER, writer.add("", 13, long, *parameters, 0, 0, vlen=3))
    writer.add("level", 6, 4, writer.string("LOW"), -1, writer.string("HIGH"), 7, vlen=2)
    writer.add("wide", 19, 8, writer.string("HUGE"), 5, 1, vlen=1)
    inner = writer.struct("", 16, ("left", long, 0), ("", writer.struct("", 8, ("right", tagged, 0)), 64))
    hidden = writer.add("", POINTER, writer.add("hidden", 7))
    void = writer.add("", POINTER, 0)
    members = (("comm", text, 0), ("", inner, 128), ("call", called, 256), ("hidden", hidden, 320), ("any", void, 384))
    writer.struct("thing", 56, *members)
    writer.bitfields("packed", 4, ("low", word, 0, 3), ("high", word, 3, 9), ("byte", byte, 16, 0))
    writer.struct("old", 4, ("narrow", writer.integer("unsigned int", 4, bits=3), 21))
    writer.add("double", 16, 8)
    return Btf(writer.blob())


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_gdb_has_the_types_of_btf(kernel: Btf, tmp_path: Path, isa: Isa) -> None:
    thing = said(tmp_path, kernel, "ptype struct thing", isa=isa)
    # Of anonymous structs GDB shows the members only where it is asked for offsets.
    assert "char comm[16];" in thing and "long (*call)(const char *, size_t, ...);" in thing.replace("long int", "long")
    assert "struct hidden *hidden;" in thing and "void *any;" in thing
    places = said(tmp_path, kernel, *(f"print (int)&((struct thing *)0)->{name}" for name in ("left", "right", "any")))
    assert re.findall(r"= (\d+)", places) == ["16", "24", "48"]
    sizes = said(tmp_path, kernel, *(f"print (int)sizeof({name})" for name in ("struct thing", "size_t", "enum wide")))
    assert re.findall(r"= (\d+)", sizes) == ["56", "8", "8"]


def test_bitfields_and_enumerators(kernel: Btf, tmp_path: Path) -> None:
    places = said(tmp_path, kernel, "ptype/o struct packed", "ptype/o struct old")
    assert all(f"unsigned int {each}" in places for each in ("low : 3", "high : 9", "narrow : 3"))
    assert "/* 2: 5 | 4 */ unsigned int narrow" in places
    values = said(tmp_path, kernel, "print (int)LOW", "print (int)HIGH", "print/x HUGE")
    assert re.findall(r"= (\S+)", values) == ["-1", "7", "0x100000005"]


def test_a_name_is_printable(tmp_path: Path) -> None:
    writer = BtfWriter()
    writer.struct("un\x1b[31msafe", 8, ("a\nb", writer.integer("long\x07", 8), 0))
    types = said(tmp_path, Btf(writer.blob()), "info types un")
    assert "struct un?[31msafe" in types and "\x1b" not in types


def looped(first: int, second: int) -> Btf:
    """Return two types that lead to each other, of kinds without a member."""
    writer = BtfWriter()
    writer.add("one" if first == TYPEDEF else "", first, 2)
    writer.add("two" if second == TYPEDEF else "", second, 1)
    return Btf(writer.blob())


@pytest.mark.parametrize("first", [POINTER, TYPEDEF, CONST])
@pytest.mark.parametrize("second", [POINTER, TYPEDEF, CONST])
def test_types_that_lead_back_to_themselves_are_refused(first: int, second: int) -> None:
    with pytest.raises(OptprobeError, match="part of itself"):
        dwarf_of(looped(first, second))


def test_a_struct_within_itself_is_refused_and_behind_a_pointer_is_not(tmp_path: Path) -> None:
    writer = BtfWriter()
    writer.struct("list", 8, ("next", 2, 0))
    writer.add("", POINTER, 1)
    assert "struct list *next;" in said(tmp_path, Btf(writer.blob()), "ptype struct list")
    writer = BtfWriter()
    writer.struct("list", 8, ("next", 2, 0))
    writer.struct("other", 8, ("back", 1, 0))
    with pytest.raises(OptprobeError, match="part of itself"):
        dwarf_of(Btf(writer.blob()))


@pytest.mark.parametrize("deep", [DEEPEST - 2, DEEPEST])
def test_the_depth_is_bounded(deep: int) -> None:
    writer = BtfWriter()
    writer.integer("long", 8)
    for number in range(1, deep + 1):
        writer.add("", POINTER, number)
    if deep < DEEPEST:
        dwarf_of(Btf(writer.blob()))
        return
    with pytest.raises(OptprobeError, match="too deeply"):
        dwarf_of(Btf(writer.blob()))


def test_damaged_types_are_read_or_refused(kernel: Btf) -> None:
    """What is written refers to nothing beyond itself, whatever the guest says."""
    rng = random.Random(1)
    seen = set()
    for _ in range(300):
        words = kernel.raw.words[:]
        for _ in range(rng.randrange(1, 4)):
            word = rng.choice([0, 1, 3, 0xFFFF_FFFF, rng.getrandbits(32), rng.getrandbits(5)])
            words[rng.randrange(len(words))] = word
        header = bytes.fromhex("9feb0100") + b"".join(
            each.to_bytes(4, "little") for each in (24, 0, 4 * len(words), 4 * len(words), len(kernel.raw.strings))
        )
        try:
            dwarf = dwarf_of(Btf(header + words.tobytes() + kernel.raw.strings))
        except OptprobeError:
            seen.add("refused")
        else:
            assert int.from_bytes(dwarf.info[:4], sys.byteorder) == len(dwarf.info) - 4
            seen.add("read")
    assert seen == {"refused", "read"}
