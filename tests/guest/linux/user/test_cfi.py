"""How a file says callers are found: as readelf reads it; and damaged ones are refused in words."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.user.cfi import CallFrames, Expression, InRegister, Rules, Saved, Undefined, evaluate
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.isa.x86_64.abi import FRAMES
from tests.examples import examples
from tests.steps import calls_in

MOST_CALLS = 1000
"""Of functions, that a program may take which never ends its row."""

_ROW = re.compile(r"(?P<at>[0-9a-f]{16}) (?P<cfa>exp|\w+[+-]\d+) +(?P<rules>.*)")
_NAMES = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)), "ra")


def host_library() -> Path:
    """One with frames of all sorts: this interpreter's C library."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return next(Path(path) for path in paths if re.search(r"/libc[.-]", path))


@cache
def elf() -> Elf:
    data = host_library().read_bytes()
    return Elf.of("libc", lambda offset, size: data[offset : offset + size], len(data), KIND)


@cache
def by_readelf() -> list[tuple[int, str, dict[int, str]]]:
    return list(_read())


def _read() -> Iterator[tuple[int, str, dict[int, str]]]:
    """Of each row: where it begins to hold, the CFA, and the registers' rules by number."""
    command = ["readelf", "--wide", "--debug-dump=frames-interp", str(host_library())]
    listing = subprocess.run(command, capture_output=True, text=True).stdout
    names: list[str] = []
    described = False
    for line in listing.splitlines():
        if " FDE " in line or " CIE " in line:
            described = " FDE " in line
        elif line.split()[:1] == ["LOC"]:
            names = line.split()[2:]
        elif described and (row := _ROW.fullmatch(line.rstrip())):
            rules = dict(zip(names, re.sub(r" \(\w+\)", "", row["rules"]).split(), strict=True))
            yield int(row["at"], 16), row["cfa"], {_NAMES.index(name): rule for name, rule in rules.items()}


def spelled(found: Rules, number: int) -> str:
    """As readelf has it."""
    match found.registers.get(number):
        case Saved(offset, whole):
            return f"{'v' if whole else 'c'}{offset:+}"
        case Expression(_, whole):
            return "vexp" if whole else "exp"
        case InRegister(other):
            return f"r{other}"
        case None | Undefined():
            return "u"


def test_what_readelf_says() -> None:
    rows = by_readelf()
    assert len(rows) > 10_000
    chosen = random.Random(1).sample(rows, 4000) + [row for row in rows if "exp" in (row[1], *row[2].values())]
    for at, cfa, rules in chosen:
        found = elf().call_frames.rules(at)
        assert found is not None and found.back == 16
        own = "exp" if isinstance(found.cfa, bytes) else f"{_NAMES[found.cfa[0]]}{found.cfa[1]:+}"
        assert own == cfa, hex(at)
        assert {number: spelled(found, number) for number in rules} == rules, hex(at)


def test_registers_are_called_what_dwarf_calls_them() -> None:
    called = {number: name for number, name in enumerate(_NAMES[:16]) if name in FRAMES[64].registers}
    assert {16: "rip", **called} == FRAMES[64].numbers


def test_the_file_on_the_host_serves_where_the_guest_has_not_all_of_its_own() -> None:
    def read(offset: int, size: int) -> bytes:
        raise OptprobeError("not in the guest's memory")

    guests, at = replace(elf(), read=read), by_readelf()[0][0]
    with pytest.raises(OptprobeError):
        guests.call_frames.rules(at)
    assert replace(guests, named_by=elf()).call_frames.rules(at) == elf().call_frames.rules(at)
    assert replace(elf(), sections=(0, 0, 0), named_by=elf()).call_frames.data == elf().call_frames.data


def test_frames_of_a_section_that_the_processor_s_abi_gives_a_type_of_its_own() -> None:
    """As lld has it: libLLVM's, say."""
    data, (headers, _, _) = bytearray(host_library().read_bytes()), elf().sections
    count, known = int.from_bytes(data[0x3C:0x3E], "little"), elf().call_frames
    types = [headers + 64 * number + 4 for number in range(count)]
    of_frames = [at for at in types if int.from_bytes(data[at + 12 : at + 20], "little") == known.address]
    for at in of_frames:
        data[at : at + 4] = (0x7000_0001).to_bytes(4, "little")
    found = Elf.of("libc", lambda offset, size: bytes(data[offset : offset + size]), len(data), KIND)
    assert len(of_frames) == 1 and found.call_frames.data == known.data


def test_nothing_is_said_of_other_code() -> None:
    first = min(at for at, _, _ in by_readelf())
    assert elf().call_frames.rules(first - 1) is None
    assert elf().call_frames.rules(1 << 40) is None
    assert CallFrames().rules(first) is None


def test_expressions() -> None:
    """Of a lazily bound call (x86-64's PLT): 8 more behind its push."""
    plt = bytes.fromhex("770880003f1a3b2a332422")
    for pc, cfa in ((0x1000, 0x108), (0x100A, 0x108), (0x100B, 0x110), (0x100F, 0x110)):
        assert evaluate(plt, [], {7: 0x100, 16: pc}.__getitem__, {}.__getitem__) == cfa
    assert evaluate(bytes.fromhex("0806230906"), [], {}.__getitem__, {15: 7}.__getitem__) == 7


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=40), st.integers(0, 4))
def test_damaged_ones_are_refused_in_words(damage: list[tuple[int, int]], cut: int) -> None:
    whole = elf().call_frames
    data = bytearray(whole.data[: 1 << 12])
    for at, value in damage:
        data[at % len(data)] = value
    found = CallFrames(bytes(data[: len(data) - cut]), whole.address)
    for at, _, _ in by_readelf()[:20]:
        try:
            found.rules(at)
        except OptprobeError as error:
            assert "\n" not in str(error)


def entry(body: bytes) -> bytes:
    """With its size before it."""
    return struct.pack("<I", len(body)) + body


def described(at: int, common: int, start: int, program: bytes = b"") -> bytes:
    """An FDE that is at `at` in the section and refers to the CIE at `common`."""
    return entry(struct.pack("<IQQ", at + 4 - common, start, 16) + program)


def overlapping(size: int, claimed: int) -> bytes:
    """A section of `size` bytes: every FDE has a CIE of its own, which says that so many bytes are its own."""
    commons = b"".join(
        struct.pack("<II", min(claimed, size - at - 4), 0) + b"\1\0\1\1" + bytes(4) for at in range(8, size // 2, 16)
    )
    data = entry(bytes(4) + commons)  # walked over
    count = (size - len(data)) // 24
    own = [8 + 16 * (number % (len(commons) // 16)) for number in range(count)]
    return data + b"".join(
        described(len(data) + 24 * number, at, 0x1000 + 16 * number) for number, at in enumerate(own)
    )


@pytest.mark.parametrize("claimed", [1 << 12, 1 << 30])
def test_commons_that_overlap_take_no_more_than_the_file(claimed: int) -> None:
    found = CallFrames(overlapping(1 << 19, claimed), 0x400000)
    tracemalloc.start()
    try:
        rules, peak = found.rules(0x1008), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    assert (rules is not None) == (claimed == 1 << 12), "a larger one is damaged"


def one_function(name: bytes, program: bytes) -> CallFrames:
    """At 0x1000, with a CIE of that augmentation."""
    common = entry(bytes(4) + b"\1" + name + b"\0\1\x78\x10" + b"\x0c\x07\x08")
    return CallFrames(common + described(len(common), 0, 0x1000, program), 0x400000)


def test_names_and_numbers_without_end_are_damaged() -> None:
    assert one_function(b"", b"").rules(0x1008) == Rules((7, 8), {}, 16)
    assert one_function(b"z" * (1 << 20), b"").rules(0x1008) is None
    assert one_function(b"z" * 64, b"").rules(0x1008) is None
    for program in (bytes(1 << 20), b"\x08\x05" * (1 << 19), b"\x07\xff\x7f"):
        described = one_function(b"", program)
        _, calls = calls_in(partial(refused, described))
        assert calls < MOST_CALLS


def refused(described: CallFrames) -> None:
    with pytest.raises(OptprobeError):
        described.rules(0x1008)


@pytest.mark.parametrize("expression", ["", "06", "22", "0601", "ff", "31320d00", "9207"])
def test_expressions_that_are_none(expression: str) -> None:
    with pytest.raises((OptprobeError, KeyError)):
        evaluate(bytes.fromhex(expression), [], {}.__getitem__, {}.__getitem__)
