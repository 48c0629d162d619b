"""What a kernel rewrites, and what it puts into its text at each boot, is no part of the text at rest."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from gdb_optprobe.guest.linux.arch.aarch64.text_at_rest import NOP, at_rest
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.writer import branch

BASE, SIZE = 0xFFFF_A3C5_FDA1_0000, 1 << 20
MOVZ, MOVK, ADD, ADD_HIGH = 0xD280_0000, 0xF2A0_0000, 0x9100_0000, 0x9140_0000


def word(data: bytes) -> int:
    return int.from_bytes(data, "little")


def rest(words: Sequence[int], base: int = BASE, **known: object) -> bytes:
    given = {"traced": (), "labels": (), "elsewhere": ()} | known
    return at_rest(to_bytes(*words), (base, base + SIZE), **given)  # type: ignore[arg-type]


def test_what_the_kernel_rewrites() -> None:
    traced, label = branch(BASE + 4, BASE + 0x4000, link=True), branch(BASE + 8, BASE + 0x40)
    known = {"traced": [BASE + 4], "labels": [(BASE + 8, BASE + 0x40)]}
    assert rest([1, word(traced), word(label), 2], **known) == to_bytes(1, NOP, NOP, 2)


def test_another_patch_stays() -> None:
    jump, other = branch(BASE + 4, BASE + 0x4000), branch(BASE + 8, BASE + 0x44)
    words = [1, word(jump), word(other), 2]
    known = {"traced": [BASE + 4, BASE - 4, BASE + 0x1000], "labels": [(BASE + 8, BASE + 0x40), (BASE + 2, BASE)]}
    assert rest(words, **known) == to_bytes(*words)


def test_what_each_boot_puts_in() -> None:
    """Addresses of the image, a constant's parts, and the random bits of addresses at EL2."""
    texts = []
    for base, tag in ((BASE, 0x123), (BASE + 0x7_1234 * 0x20_0000, 0xABC)):
        address = base + 0x8000
        constant = [MOVZ | 7 << 5 | 3, MOVK | (address >> 16 & 0xFFFF) << 5 | 3]
        tagged = [ADD | tag << 10 | 5 << 5 | 5, ADD_HIGH | (tag ^ 0x55) << 10 | 5 << 5 | 5]
        texts.append(rest([address & 0xFFFF_FFFF, address >> 32, *constant, *tagged], base))
    assert texts[0] == texts[1]
    assert texts[0][:8] == (0x8000).to_bytes(8, "little") and word(texts[0][8:12]) == MOVZ | 7 << 5 | 3


@pytest.mark.parametrize("second", [ADD_HIGH | 9 << 10 | 6 << 5 | 6, ADD | 9 << 10 | 5 << 5 | 5])
def test_sums_that_are_none_of_these_stay(second: int) -> None:
    words = [ADD | 9 << 10 | 5 << 5 | 5, second, ADD | 4 << 10 | 31 << 5 | 31]
    assert rest(words) == to_bytes(*words)


def test_text_that_runs_elsewhere_is_left_out() -> None:
    assert rest([1, 2, 3, 4], elsewhere=[(BASE + 4, BASE + 12)]) == to_bytes(1, 0, 0, 4)


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes(seed: int) -> None:
    source = random.Random(seed)
    text = source.randbytes(4 * source.randrange(200))
    places = [BASE + source.randrange(-8, 900) for _ in range(20)]
    found = at_rest(text, (BASE, BASE + SIZE), places, zip(places, places[::-1], strict=True), [(BASE - 8, BASE + 8)])
    assert len(found) == len(text) and found[:8] == bytes(min(8, len(text)))
