"""Text of the guest's as characters: every byte can be told, and none does anything to a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gdb_optprobe.guest_text import is_plain, lines, name, one_line, printable, raw, until_zero

SHOWN = {
    b"dd": "dd",
    b"\x1b]0;owned\x07": r"\033]0;owned\007",
    b"dd]: 9\n  [init": r"dd]: 9\n  [init",
    b"a\tb\rc\0d\x7f": r"a\tb\rc\000d\177",
    rb"C:\n": r"C:\\n",
    "käse €".encode(): "käse €",
    "\x9b2J".encode(): r"\302\2332J",  # CSI in one character
    "\u202egnp.exe".encode(): r"\342\200\256gnp.exe",  # right to left from here on
    "a\u200bb\u2028c\xa0d".encode(): r"a\342\200\213b\342\200\250c\302\240d",
    b"\xff\xc3": r"\377\303",
    b"\xed\xa0\x80": r"\355\240\200",  # a lone surrogate
}


@pytest.mark.parametrize("data", SHOWN)
def test_terminal_escapes_and_line_ends_are_shown(data: bytes) -> None:
    assert printable(data) == SHOWN[data]
    assert raw(SHOWN[data]) == data


@given(some.binary())
def test_any_bytes_are_one_printable_line_and_can_be_told(data: bytes) -> None:
    text = printable(data)
    assert text.isprintable() and raw(text) == data
    assert one_line(text) == text == lines(text)
    assert is_plain(text) == all(32 < each < 127 and each != 92 for each in data) == (name(data) == text)


@given(some.text(some.characters()))
def test_any_text_is_printable_lines(text: str) -> None:
    assert one_line(text).isprintable()
    assert all(line.isprintable() for line in lines(text).split("\n"))
    assert lines(text).count("\n") == text.count("\n")


def test_lone_surrogates() -> None:
    assert one_line("\ud800\udcff\udfff") == r"\355\240\200\377\355\277\277" or one_line("\udcff") == r"\377"
    assert raw("/tmp/\udcff") == b"/tmp/\xff"


def test_names() -> None:
    assert name(b"vfs_read.cold") == "vfs_read.cold"
    assert [name(bad) for bad in (b"", b"a b", b"a\nb", b"a\\b", b"\x1b[2J", b"caf\xc3\xa9")] == [""] * 6
    assert until_zero(b"dd\0\x1b\0") == "dd"
