"""Text that address randomization has moved is known again, and no other text is taken for it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from struct import pack_into

import pytest

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.linux.arch.x86_64 import moved_text
from gdb_optprobe.guest.linux.arch.x86_64.moved_text import EarlierText, in_earlier_boot
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import code
from tests.guest.linux.fake_kernel import Pages, kernel

F = 0x600
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


def proven(base: int) -> EarlierText:
    """Return what is kept of a text once it is proven."""
    found = earlier(base).moved_back(text_at(MOVED), MOVED)
    assert found is not None
    return replace(found[1], proven=True)


@pytest.mark.parametrize("base", [MOVED, AGAIN, BASE])
def test_text_that_is_proven_is_moved_back_whole(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = proven(BASE)
    monkeypatch.setattr(moved_text, "_may_move", None)  # of a field by itself: none is asked
    assert known.moved_back(text_at(base), base) == (text_at(BASE), known)


@pytest.mark.parametrize("at", [0, 0x12, 0x301, 0x2000, SIZE - 1, *FIELDS])
def test_another_text_is_not_taken_for_a_proven_one(at: int) -> None:
    other = bytearray(text_at(MOVED))
    other[at] ^= 1
    assert proven(BASE).moved_back(bytes(other), MOVED) is None
    assert proven(BASE).moved_back(bytes(other)[: SIZE // 2], MOVED) is None


def test_a_displacement_into_the_text_is_not_moved_back_once_it_is_proven() -> None:
    low = 0xFFFF_FFFF_8100_0000
    down = low - 0xFF_F000
    known = EarlierText.of(hostile := text_at(low, {0x500: 0x100_0000}), low, (low, low + IMAGE), PER_CPU)
    other = known.moved_back(text_at(low + 0x1000, {0x500: 0x100_1000}), low + 0x1000)
    assert other is not None and other[0] == hostile and 0x500 in other[1].rising.offsets
    assert replace(other[1], proven=True).moved_back(text_at(down, {0x500: 0x1000}), down) is None


@pytest.mark.parametrize(("first", "later"), [(0x9AA0_0000, 0x8100_0000), (0x8120_0000, 0xBE00_0000)])
def test_the_kernels_own_offset_moves_where_it_is_less_than_the_text_is_long(first: int, later: int) -> None:
    """By 2 MiB a kernel of 14 MiB was moved: the number, as a displacement, would lead into it."""
    bases = [0xFFFF_FFFF_0000_0000 | low for low in (first, later)]
    texts = [text_at(base, {0x500: (base & 0x7FFF_FFFF) - 0x100_0000}) for base in bases]
    longer = [text + b"\xcc" * 0x40_0000 for text in texts]
    found = earlier(bases[0], longer[0]).moved_back(longer[1], bases[1])
    assert found is not None and found[0] == longer[0]


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
    names = {"_text": base, "f": base + F, "g": base + F + 16, "_end": base + IMAGE}
    return kernel(Pages(), {**names, "__per_cpu_start": 0, "__per_cpu_end": PER_CPU}, {})


def known(text: bytes, base: int, shelf: Shelf) -> tuple[bytes, int]:
    return in_earlier_boot(text, base, booted(base), shelf, X86_64.decode, lambda _: None)


def files(shelf: Shelf) -> list[bytes]:
    return [data for _, data in shelf.latest(moved_text.KIND, 99)]


def test_one_file_serves_all_boots_of_a_text(shelf: Shelf) -> None:
    assert known(text_at(BASE), BASE, shelf) == (text_at(BASE), BASE)
    (first,) = files(shelf)
    for base in (MOVED, AGAIN, BASE):
        assert known(text_at(base), base, shelf) == (text_at(BASE), BASE)
    (last,) = files(shelf)
    assert len(last) < len(first)


def test_another_text_gets_a_file_of_its_own(shelf: Shelf) -> None:
    known(text_at(BASE), BASE, shelf)
    other = text_at(MOVED, {0x700: 1})
    assert known(other, MOVED, shelf) == (other, MOVED)
    assert len(files(shelf)) == 2
    assert known(text_at(AGAIN), AGAIN, shelf) == (text_at(BASE), BASE)


def test_data_of_cpus_may_be_linked_where_other_data_are(shelf: Shelf) -> None:
    """Since Linux 6.15 their offsets do not begin at 0; what refers to them moves as the image does."""
    start = BASE + IMAGE - 2 * PER_CPU
    names = {"_text": BASE, "_end": BASE + IMAGE, "__per_cpu_start": start, "__per_cpu_end": start + PER_CPU}
    in_earlier_boot(text_at(BASE), BASE, kernel(Pages(), names, {}), shelf, X86_64.decode, lambda _: None)
    ((_, data),) = shelf.latest(moved_text.KIND, 99)
    found = EarlierText.unpack(data, len(text_at(BASE)))
    assert found is not None and len(found.rising) > 0 and len(found.falling) == 0


@pytest.mark.parametrize(
    ("listing", "is_operand"),
    [
        ("48 c7 c0 10 00 00 b5  mov $address, %rax\nc3  ret", True),
        ("48 8b 04 c5 10 00 00 b5  mov address(,%rax,8), %rax\nc3  ret", True),
        ("48 b8 10 00 00 b5 ff ff ff ff  movabs $address, %rax\nc3  ret", True),
        ("e8 00 10 00 00  call inside\nb5 01  mov $1, %ch\nc3  ret", False),
        ("b0 01  mov $1, %al\n a8 10  test $16, %al\n00 00  add %al, (%rax)\nb5 01  mov $1, %ch\nc3  ret", False),
        ("48 8b 05 10 00 00 b5  mov beyond(%rip), %rax\nc3  ret", True),
    ],
)
def test_a_hostile_guest_hides_no_branch_where_another_has_an_address(
    listing: str, is_operand: bool, shelf: Shelf
) -> None:
    """It has the bytes there that address randomization would make of them: the hash is that of its text."""
    body = code(listing).ljust(16, b"\x90")
    at = body.index(bytes.fromhex("100000"))
    honest = bytearray(text_at(MOVED))
    honest[F : F + 16] = body
    hostile = bytearray(text_at(BASE))
    hostile[F : F + 16] = body
    pack_into("<I", hostile, F + at, int.from_bytes(body[at : at + 4], "little") - (MOVED - BASE))
    known(bytes(hostile), BASE, shelf)
    assert earlier(BASE, bytes(hostile)).moved_back(bytes(honest), MOVED) is not None
    expected = (bytes(hostile), BASE) if is_operand else (bytes(honest), MOVED)
    assert known(bytes(honest), MOVED, shelf) == expected
    assert len(files(shelf)) == (1 if is_operand else 2)


def test_a_file_with_something_else_in_it_is_passed_by(shelf: Shelf) -> None:
    known(text_at(BASE), BASE, shelf)
    shelf.store(f"{moved_text.KIND}-{'0' * 64}", b"nothing of the kind")
    assert known(text_at(MOVED), MOVED, shelf) == (text_at(BASE), BASE)
