"""Text that address randomization has moved is known again, and no other text is taken for it."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack_into

import pytest

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.linux.arch.x86_64 import moved_text
from gdb_optprobe.guest.linux.arch.x86_64.moved_text import EarlierText, in_earlier_boot
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.fake_kernel import Pages, kernel

BASE, MOVED, AGAIN = 0xFFFF_FFFF_9340_0000, 0xFFFF_FFFF_B4C0_0000, 0xFFFF_FFFF_A120_0000
SIZE, IMAGE, PER_CPU = 0x8000, 0x0280_0000, 0x3_5000
ADDRESSES, PHYSICAL, OFFSETS = (0x11, 0x1002, 0x7FF0), (0x2003,), (0x300, 0x4001)
FIELDS = {*ADDRESSES, *PHYSICAL, *OFFSETS}
SOURCE = random.Random(7).randbytes(SIZE)


def text_at(base: int, changed: dict[int, int] | None = None) -> bytes:
    """A text with addresses of the image, a physical one, and per-CPU offsets. changed: fields that move by themselves.
    """
    text = bytearray(SOURCE)
    for number, at in enumerate((*ADDRESSES, *PHYSICAL)):
        address = base + 0x12_3456 * (number + 1)
        pack_into("<I", text, at, address & (0x7FFF_FFFF if at in PHYSICAL else 0xFFFF_FFFF))
    for at in OFFSETS:
        pack_into("<I", text, at, 0x1_F0C0 - (base + at + 4) & 0xFFFF_FFFF)
    for at, value in (changed or {}).items():
        pack_into("<I", text, at, value & 0xFFFF_FFFF)
    return bytes(text)


def earlier(base: int, text: bytes | None = None) -> EarlierText:
    return EarlierText.of(text or text_at(base), base, (base, base + IMAGE), PER_CPU)


@pytest.mark.parametrize("base", [MOVED, AGAIN, BASE])
def test_text_that_was_moved_is_moved_back(base: int) -> None:
    found = earlier(BASE).moved_back(text_at(base), base)
    assert found is not None and found[0] == text_at(BASE)


def test_from_then_on_it_is_known_what_moves() -> None:
    first = earlier(BASE)
    found = first.moved_back(text_at(MOVED), MOVED)
    assert found is not None
    surely = found[1]
    assert {*surely.rising.offsets, *surely.falling.offsets} == FIELDS
    assert len(first.rising) > len(surely.rising), "others look like addresses"
    unpacked = EarlierText.unpack(surely.pack(), SIZE)
    assert unpacked == surely
    assert surely.moved_back(text_at(AGAIN), AGAIN) == (text_at(BASE), surely)
    assert surely.moved_back(text_at(BASE), BASE) == (text_at(BASE), surely)


@pytest.mark.parametrize("at", [0, 0x12, 0x301, 0x2000, SIZE - 1])
def test_another_text_is_not_taken_for_it(at: int) -> None:
    other = bytearray(text_at(MOVED))
    other[at] ^= 1
    assert earlier(BASE).moved_back(bytes(other), MOVED) is None


def test_what_has_moved_by_something_else_is_no_address() -> None:
    other = text_at(MOVED, {ADDRESSES[1]: MOVED + 0x24_68AC + 16})
    assert earlier(BASE).moved_back(other, MOVED) is None


def test_a_displacement_into_the_text_is_never_moved_back() -> None:
    """A hostile guest has a branch elsewhere, where this one has one into a function."""
    low, other = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_1000
    hostile = text_at(low, {0x500: 0x100_0000})
    known = EarlierText.of(hostile, low, (low, low + IMAGE), PER_CPU)
    assert 0x500 in known.rising.offsets, "a physical address, for all that is known"
    assert known.moved_back(text_at(other, {0x500: 0x100_1000}), other) is not None
    down = low - 0xFF_F000
    inside = text_at(down, {0x500: 0x1000})
    assert known.moved_back(inside, down) is None


def test_a_damaged_file_counts_as_missing() -> None:
    packed = earlier(BASE).pack()
    for damaged in (b"", packed[:8], packed[:-1], packed + b"\0", b"\xff" * len(packed)):
        assert EarlierText.unpack(damaged, SIZE) is None


def test_a_field_behind_the_text_is_none_of_it() -> None:
    known = EarlierText.unpack(earlier(BASE).pack(), SIZE)
    assert known is not None and known.moved_back(bytes(SIZE // 2), MOVED) is None


def test_a_text_full_of_addresses_is_not_kept() -> None:
    with pytest.raises(OverBudget):
        EarlierText.of((BASE & 0xFFFF_FFFF).to_bytes(4, "little") * 0x8000, BASE, (BASE, BASE + IMAGE), PER_CPU)


# --- on a shelf ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Cache(tmp_path).shelf("ab" * 20, "7" * 64)


def booted(base: int) -> Kernel:
    return kernel(Pages(), {"_text": base, "_end": base + IMAGE, "__per_cpu_start": 0, "__per_cpu_end": PER_CPU}, {})


def files(shelf: Shelf) -> list[bytes]:
    return [data for _, data in shelf.latest(moved_text.KIND, 99)]


def test_one_file_serves_all_boots_of_a_text(shelf: Shelf) -> None:
    assert in_earlier_boot(text_at(BASE), BASE, booted(BASE), shelf) == (text_at(BASE), BASE)
    (first,) = files(shelf)
    for base in (MOVED, AGAIN, BASE):
        assert in_earlier_boot(text_at(base), base, booted(base), shelf) == (text_at(BASE), BASE)
    (last,) = files(shelf)
    assert len(last) < len(first)


def test_another_text_gets_a_file_of_its_own(shelf: Shelf) -> None:
    in_earlier_boot(text_at(BASE), BASE, booted(BASE), shelf)
    other = text_at(MOVED, {0x700: 1})
    assert in_earlier_boot(other, MOVED, booted(MOVED), shelf) == (other, MOVED)
    assert len(files(shelf)) == 2
    assert in_earlier_boot(text_at(AGAIN), AGAIN, booted(AGAIN), shelf) == (text_at(BASE), BASE)


def test_a_file_with_something_else_in_it_is_passed_by(shelf: Shelf) -> None:
    in_earlier_boot(text_at(BASE), BASE, booted(BASE), shelf)
    shelf.store(f"{moved_text.KIND}-{'0' * 64}", b"nothing of the kind")
    assert in_earlier_boot(text_at(MOVED), MOVED, booted(MOVED), shelf) == (text_at(BASE), BASE)
