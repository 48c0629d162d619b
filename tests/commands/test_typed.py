"""Whatever is typed behind a command is understood or refused in clear words: nothing else is raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.commands.options import (
    LIST_OPTIONS,
    REPORT_OPTIONS,
    parse_commit,
    parse_doctor,
    parse_nothing,
    parse_recover,
    parse_run,
    parse_selection,
    sides,
)
from gdb_optprobe.commands.parse import parse_add, parse_break, parse_dprintf
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import legible
from gdb_optprobe.probes.settings import parse_arena
from tests.commands.in_gdb import gdb

DIGITS = "9" * 5000


def add(text: str) -> object:
    return parse_add(text).specs()


def lists(text: str) -> object:
    return parse_selection(text, LIST_OPTIONS)


def reports(text: str) -> object:
    return parse_selection(text, REPORT_OPTIONS)


PARSERS: tuple[Callable[[str], object], ...] = (
    add, lists, reports, parse_break, parse_dprintf, parse_run, parse_commit, parse_recover, parse_nothing,
    parse_doctor, parse_arena, sides,
)  # fmt: skip
WORDS = (
    "vfs_read", "if", "do", "entry", "count", "-name", "-tier", "-return", "-maxactive", "-user", "-file", "-pid",
    "-json", "-glob", "-pending", "--", "-for", "-until-hits", "-timeout", "-remove", "-clear", "1", "1-3", "1:2",
    "$x", ",", "(", ")", "[", "]", "{", "}", "'", '"', "\\", "*", "+0x10", "code=", "data=", "-", ":", "==", "<",
    "\ud800", "\0", "\n", "\u00b2", "\u0663", "1e400", "nan", "-1", DIGITS,
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=60)


def understood(parse: Callable[[str], object], text: str) -> object:
    try:
        return parse(text)
    except OptprobeError as error:
        assert error.message.encode() and len(error.message) < 4000
        return error


@given(st.sampled_from(PARSERS), TEXTS)
def test_any_text_behind_any_command(parse: Callable[[str], object], text: str) -> None:
    understood(parse, text)
    understood(legible, text)


TOO_LARGE = [
    (add, f"f -return -maxactive {DIGITS}"),
    (add, f"-user /bin/a:b -pid {DIGITS}"),
    (add, f"f -return -maxactive '{DIGITS}'"),
    (lists, DIGITS),
    (lists, f"1-{DIGITS}"),
    (lists, f"{DIGITS}-{DIGITS}"),
    (parse_run, f"-until-hits 1:{DIGITS}"),
    (parse_run, f"-until-hits {DIGITS}:1"),
    (parse_run, "-for 1e300"),
    (parse_commit, "-timeout 99999999999"),
]


@pytest.mark.parametrize(("parse", "text"), TOO_LARGE)
def test_a_number_beyond_its_limit_is_told_with_a_caret(parse: Callable[[str], object], text: str) -> None:
    error = understood(parse, text)
    assert isinstance(error, OptprobeError)
    message, line, carets = error.message.split("\n")
    assert message in ("the number is too large", "the time is too long") and "at most" in error.hint
    assert line[carets.index("^")] in "19"


@pytest.mark.parametrize("text", ["vfs\ud800read", "f if comm == '\udc80'", "f\0g"])
def test_half_a_character_and_a_0_byte_are_told_with_a_caret(text: str) -> None:
    error = understood(legible, text)
    assert isinstance(error, OptprobeError) and "this is no character" in error.message


def test_in_gdb_no_text_ends_in_an_internal_error() -> None:
    commands = (
        f"optprobe delete {DIGITS}", f"optprobe run -until-hits 1:{DIGITS}",
        f"optprobe add f -return -maxactive {DIGITS}",
        f"optprobe {'x' * 5000}", "print $optprobe_hits()", "print $optprobe_missed(1, 2)", 'print $optprobe_hits("a")',
        f"optprobe list {'(' * 5000}", f"optprobe save /nosuch/{'x' * 5000}", "optprobe run -for 1e300",
    )  # fmt: skip
    ended = gdb("set optprobe exit-on-error off", "optprobe add vfs_read", *commands, "echo reached\\n")
    assert ended.out.endswith("reached\n") and ended.err.count("optprobe: ") == len(commands), ended.err
    assert "internal error" not in ended.err and "Python Exception" not in ended.err and "Traceback" not in ended.err
    assert max(map(len, ended.err.splitlines())) < 6000
