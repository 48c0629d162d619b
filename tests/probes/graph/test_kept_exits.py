"""What leads out of a function is taken from the cache only where its code is the same, wherever the image lies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.lasting_text import ShelvedText
from gdb_optprobe.guest.text import Place
from gdb_optprobe.isa.base import Pointer
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.graph.callees import Exits, exits_of
from gdb_optprobe.probes.graph.kept_exits import FORMAT, KeptExits, KnownExits
from gdb_optprobe.probes.lone_plans import Lone

BASE, SIZE, OFFSET = 0xFFFFFFFF81000000, 1 << 20, 0x400
SLIDE = 0x1E00000
CALL, JUMP = b"\xe8\x00\x01\x00\x00", b"\xe9\x00\x02\x00\x00"
THROUGH = b"\xff\x50\x10"  # call *16(%rax)


def code(base: int) -> bytes:
    """Return a function that has an address of the image and one of per-CPU data in it."""
    address = b"\x48\xc7\xc7" + (base + 0x5000 & 0xFFFFFFFF).to_bytes(4, "little")
    per_cpu = b"\x65\x48\x8b\x05" + (0x2_1000 - base & 0xFFFFFFFF).to_bytes(4, "little")
    return address + per_cpu + CALL + THROUGH + JUMP


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Cache(tmp_path).shelf("ab" * 20, "7" * 64)


def place(base: int, size: int) -> Place:
    return Place("f", base + OFFSET, base + OFFSET + size)


def made(base: int, data: bytes) -> Exits:
    return exits_of(X86_64.decode(data, base + OFFSET), place(base, len(data)), X86_64.pointer)


def kept(shelf: Shelf, base: int = BASE) -> KeptExits:
    return KeptExits(ShelvedText(base, SIZE, shelf), X86_64)


def keep(shelf: Shelf, base: int = BASE) -> None:
    rows, data = kept(shelf, base), code(base)
    rows.add(place(base, len(data)), data, X86_64.decode(data, base + OFFSET), made(base, data))
    rows.store()


def found(shelf: Shelf, base: int, data: bytes) -> Exits | None:
    known = kept(shelf, base).find(place(base, len(data)), data)
    return known.exits if known is not None else None


@pytest.mark.parametrize("base", [BASE, BASE + SLIDE])
def test_it_is_what_decoding_finds_wherever_the_image_lies(shelf: Shelf, base: int) -> None:
    keep(shelf)
    data = code(base)
    assert found(shelf, base, data) == made(base, data)
    assert [each[1] for each in made(base, data).pointers] == [Pointer("rax", 16)]
    assert len(made(base, data).calls) == 2


@pytest.mark.parametrize("at", range(len(code(BASE))))
def test_another_byte_that_is_no_address_makes_it_unknown(shelf: Shelf, at: int) -> None:
    keep(shelf)
    data = bytearray(code(BASE))
    data[at] ^= 0x01
    other = found(shelf, BASE, bytes(data))
    assert other in (None, made(BASE, bytes(data)))
    assert (other is None) == (at not in {*range(3, 7), *range(11, 15)})


def test_another_size_or_place_makes_it_unknown(shelf: Shelf) -> None:
    keep(shelf)
    assert found(shelf, BASE, code(BASE)[:-1]) is None
    elsewhere = Place("f", BASE + SIZE - 4, BASE + SIZE + 4)
    assert kept(shelf).find(elsewhere, bytes(8)) is None


def test_what_is_found_later_is_kept_beside_the_rest(shelf: Shelf) -> None:
    keep(shelf)
    rows, other = kept(shelf), Place("g", BASE, BASE + 1)
    rows.add(other, b"\xc3", X86_64.decode(b"\xc3", BASE), Exits())
    rows.store()
    known = kept(shelf).find(other, b"\xc3")
    assert known is not None and known.exits == Exits()
    assert found(shelf, BASE, code(BASE)) is not None


@pytest.mark.parametrize("base", [BASE, BASE + SLIDE])
@pytest.mark.parametrize("behind", [None, 0x4000])
def test_which_calls_are_displaced_alone_is_kept_beside_them(shelf: Shelf, base: int, behind: int | None) -> None:
    keep(shelf)
    data, rows = code(BASE), kept(shelf)
    known = rows.find(place(BASE, len(data)), data)
    assert known is not None and not known.lone
    ((at, _),) = known.exits.pointers
    rows.add_lone(place(BASE, len(data)), {at: Lone(6, BASE + behind if behind is not None else None)})
    rows.store()
    data = code(base)
    known = kept(shelf, base).find(place(base, len(data)), data)
    assert known is not None and known.exits == made(base, data)
    assert known.lone == {at - BASE + base: Lone(6, base + behind if behind is not None else None)}


def test_of_code_that_is_another_one_nothing_is_displaced_alone() -> None:
    known, guest = KnownExits(), SimpleNamespace(isa=X86_64, pointer=X86_64.pointer, shelved_text=lambda: None)
    data = code(BASE)
    ((at, _),) = known.of(place(BASE, len(data)), data, cast(Guest, guest)).pointers
    known.add_lone({at: Lone(5), at + 1: Lone(5)})
    assert known.lone([at, at + 1]) == {at: Lone(5)} and not known.lone([])
    assert known.of(place(BASE, len(data)), data, cast(Guest, guest)) and known.lone([at])
    known.of(place(BASE, len(data)), data[:-1] + b"\x01", cast(Guest, guest))
    assert not known.lone([at])


@pytest.mark.parametrize(
    ("column", "value"),
    [(1, None), (2, "zz"), (2, "ffff08"), (2, "0000"), (3, 5), (4, [[1 << 40, 1]]), (4, [5]),
     (5, [[-1, "rax", None, 0, None]]), (5, [[0, "no register", None, 0, None]]), (5, [[0, "rax", "x", 0, None]]),
     (5, [[0]]), (5, [[0, "rax", None]]), (5, [[0, "rax", None, "x", None]]), (5, [[0, "rax", None, 17, None]]),
     (5, [[0, "rax", None, 5, "x"]]),
     (5, [[0, "rax", None, 5, 1 << 40]])],
)  # fmt: skip
def test_a_row_that_is_damaged_is_missing(shelf: Shelf, column: int, value: object) -> None:
    keep(shelf)
    name = kept(shelf).name
    rows = json.loads(shelf.load(name) or b"")
    rows[1][0][column] = value
    shelf.store(name, json.dumps(rows).encode())
    assert found(shelf, BASE, code(BASE)) is None


@pytest.mark.parametrize("data", [b"", b"[", b"{}", b"[1]", b"[0, []]", f"[{FORMAT}, [[1]]]".encode(), b"[1, [5]]"])
def test_a_file_that_is_damaged_is_missing(shelf: Shelf, data: bytes) -> None:
    shelf.store(kept(shelf).name, data)
    assert found(shelf, BASE, code(BASE)) is None


def test_a_switch_is_no_call_through_a_pointer() -> None:
    words = [0x4E800420, 12, 16, 0x60000000, 0x4E800421, 0x4E800020]
    data = b"".join(word.to_bytes(4, "little") for word in words)
    guest = SimpleNamespace(isa=PPC64LE, pointer=PPC64LE.pointer, shelved_text=lambda: None)
    found = KnownExits().of(place(BASE, len(data)), data, cast(Guest, guest))
    assert [at - BASE - OFFSET for at, _ in found.pointers] == [16]
