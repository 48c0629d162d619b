from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, fault, outside, split


def test_outside_skips_quotes_and_brackets() -> None:
    line = 'a(b\'c)\')d"\\"("e[f]'
    assert "".join(line[at] for at in outside(line)) == "ade"


@pytest.mark.parametrize("line", ["(", "[(])", ")", "'", '"\\"'])
def test_outside_refuses_what_is_not_closed(line: str) -> None:
    with pytest.raises(OptprobeError):
        list(outside(line))


def test_split_on_commas_outside_brackets() -> None:
    pieces = split(Fragment.whole('count by (a, b) , print("x, y", z),hist(c)'))
    assert [piece.text for piece in pieces] == ["count by (a, b)", 'print("x, y", z)', "hist(c)"]


def test_a_fault_points() -> None:
    error = fault("no such name", Fragment("f do conut", 5, 10), "try count")
    assert error.message == "no such name\n    f do conut\n         ^~~~~"
    assert error.hint == "try count"


def test_a_fault_at_the_end_has_one_caret() -> None:
    assert fault("x", Fragment("f", 1, 1)).message.endswith("\n     ^")
