"""What is printed is what C prints."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.guest_text import printable
from gdb_optprobe.handlers.format import conversions, render
from gdb_optprobe.handlers.ir import MASK
from gdb_optprobe.handlers.source import Fragment

LIBC = ctypes.CDLL(None)


def printed(format: str, *values: int | bytes) -> str:
    """By the C library."""
    buffer = ctypes.create_string_buffer(4096)
    arguments = [value if isinstance(value, bytes) else ctypes.c_uint64(value) for value in values]
    length = LIBC.snprintf(buffer, ctypes.c_size_t(4096), format.encode(), *arguments)
    return buffer.raw[:length].decode("latin-1")


def formats() -> st.SearchStrategy[str]:
    flags = st.lists(st.sampled_from("-+ #0"), max_size=3, unique=True).map("".join)
    return st.builds(
        "%{}{}{}{}{}".format,
        flags,
        st.sampled_from(("", "1", "5", "20")),
        st.sampled_from(("", ".", ".0", ".3", ".12")),
        st.sampled_from(("", "hh", "h", "l", "ll", "z", "j", "t")),
        st.sampled_from("diuxXo"),
    )


@given(formats(), st.one_of(st.sampled_from((0, 1, 7, 255, 1 << 31, MASK, 1 << 63)), st.integers(0, MASK)))
def test_numbers(format: str, value: int) -> None:
    assert render(f"<{format}>", [value]) == printed(f"<{format}>", value)


@pytest.mark.parametrize(
    ("format", "values"),
    [
        ("plain, 100%%\n", ()),
        ("%s|%10s|%-10s|%.2s|", (b"abc",) * 4),
        ("%c%c%5c%-3c|", (97, 98, 99, 100)),
        ("%p %20p", (0x1234, 0xFFFF_FFFF_8100_0000)),
        ("%d %s %lx", (5, b"x", 0xFFFF_FFFF_8100_0000)),
    ],
)
def test_the_rest(format: str, values: tuple[int | bytes, ...]) -> None:
    assert render(format, values) == printed(format, *values)


def test_a_precision_counts_bytes_and_no_characters() -> None:
    assert render("%.3s|%5s|%-5s|", ["éé".encode()] * 3) == "é\\303| éé|éé |"


TEXT = st.text(st.characters(exclude_characters="\0"), max_size=12).map(lambda text: text.encode("utf-8", "replace"))


PRECISIONS = st.sampled_from(("", ".", ".1", ".3", ".12"))


@given(st.sampled_from(("", "-")), st.sampled_from(("", "1", "5", "20")), PRECISIONS, TEXT)
def test_texts(flags: str, width: str, precision: str, value: bytes) -> None:
    """Of any characters: the bytes are those that C prints."""
    format = f"<%{flags}{width}{precision}s>"
    assert render(format, [value]) == printable(printed(format, value).encode("latin-1"))


def test_what_a_format_asks_for() -> None:
    literal = Fragment.whole('"%d %% %-5lx %s %hhu %c"')
    found = conversions(literal.text[1:-1], literal)
    assert [(each.kind, each.bits, each.text) for each in found] == [
        ("d", 32, False),
        ("x", 64, False),
        ("s", 64, True),
        ("u", 8, False),
        ("c", 8, False),
    ]
