from __future__ import annotations

import pytest

from gdb_optprobe.commands.options import (
    LIST_OPTIONS,
    REPORT_OPTIONS,
    Commit,
    Run,
    Selection,
    parse_commit,
    parse_nothing,
    parse_run,
    parse_selection,
    sides,
)
from gdb_optprobe.errors import OptprobeError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Selection()),
        ("1 2", Selection((1, 2))),
        ("1-3 2", Selection((1, 2, 3))),
        ("-json 4", Selection((4,), json=True)),
        ("reads -json", Selection(("reads",), json=True)),
        ("$optprobe", Selection(("$optprobe",))),
    ],
)
def test_selection(text: str, expected: Selection) -> None:
    assert parse_selection(text, LIST_OPTIONS) == expected


def test_report_clears() -> None:
    assert parse_selection("1 -clear", REPORT_OPTIONS) == Selection((1,), clear=True)


@pytest.mark.parametrize("text", ["-guest ''", '-guest " "', "-for 1 -guest ''"])
def test_an_empty_value_is_refused(text: str) -> None:
    """`-guest ''` let the guest run without an end, as no command did."""
    with pytest.raises(OptprobeError, match="-guest needs a value"):
        parse_run(text)


@pytest.mark.parametrize("text", ["3-1", "0x", "1-", "-clear", "1,2", "1-99999999", "(1"])
def test_selection_refuses(text: str) -> None:
    with pytest.raises(OptprobeError):
        parse_selection(text, LIST_OPTIONS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Run()),
        ("-for 2", Run(seconds=2.0)),
        ("-until-hits 1:1000 -timeout 0.5", Run(until_hits=(1, 1000), timeout=0.5)),
        ("-every 2 -clear", Run(every=2.0, clear=True)),
        ("-follow", Run(follow=True)),
        ("1 -follow -for 2 3-4 reads -json", Run(2.0, follow=True, wanted=(1, 3, 4, "reads"), json=True)),
        ("-guest 'dd bs=1' -timeout 3", Run(timeout=3.0, guest="dd bs=1")),
        ("-until-hits reads:10", Run(until_hits=("reads", 10))),
        ("-until-hits $optprobe:10", Run(until_hits=("$optprobe", 10))),
    ],
)
def test_run(text: str, expected: Run) -> None:
    assert parse_run(text) == expected


@pytest.mark.parametrize(
    "text", ["2", "-for", "-for x", "-for 0", "-for -1", "-for inf", "-for nan", "-until-hits 1", "-x"]
)
def test_run_refuses(text: str) -> None:
    with pytest.raises(OptprobeError):
        parse_run(text)


def test_commit() -> None:
    assert parse_commit("-timeout 3") == Commit(3.0)
    assert parse_commit("") == Commit()


def test_nothing_takes_nothing() -> None:
    parse_nothing(" ")
    with pytest.raises(OptprobeError, match="takes no arguments"):
        parse_nothing("1")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("$optprobe_hits(1) == 1000", ("$optprobe_hits(1)", "1000")),
        ("a >= b", ("a", "b")),
        ("p->x < 3", ("p->x", "3")),
        ("f(a == b)", None),
        ("a == b && c == d", None),
        ("a == 1 || b", None),
        ("1 << 3", None),
        ("x", None),
    ],
)
def test_sides(expression: str, expected: tuple[str, str] | None) -> None:
    assert sides(expression) == expected


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("5s", "-for 5"), ("500ms", "-for 0.5"), ("1.5m", "-for 90"), ("2h", "-for 7200"),
        ("soon", "-for 2 is two seconds"), ("5parsecs", "-for 2 is two seconds"), ("0s", "-for 2 is two seconds"),
    ],
)  # fmt: skip
def test_a_time_with_a_unit_is_answered_with_seconds(typed: str, hint: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        parse_run(f"-for {typed}")
    assert "is not a number of seconds" in caught.value.message and caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "sort", "top"),
    [("", "", None), ("-top 3", "hits", 3), ("1-9 -sort missed -top 2", "missed", 2), ("-sort symbol", "symbol", None)],
)
def test_a_report_is_sorted_and_cut(text: str, sort: str, top: int | None) -> None:
    found = parse_selection(text, REPORT_OPTIONS)
    assert (found.sort, found.top) == (sort, top)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("-sort hit", "a report has no field 'hit' to sort by", "did you mean hits? the fields are hits, missed,"),
        ("-top 0", "-top takes a number from 1 on", ""),
        ("-top few", "-top takes a number from 1 on", ""),
    ],
)
def test_no_such_order_or_number(text: str, message: str, hint: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        parse_selection(text, REPORT_OPTIONS)
    assert caught.value.message.startswith(message) and caught.value.hint.startswith(hint)
