from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.clauses import check_action, parse_action
from gdb_optprobe.handlers.source import Fragment

from .shown import shown


def parsed(text: str) -> tuple[str, list[str], list[str]]:
    found = parse_action(Fragment.whole(text), lambda name: name == "u64")
    return found.name.text, list(map(shown, found.arguments)), list(map(shown, found.keys))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count", ("count", [], [])),
        (" stop ", ("stop", [], [])),
        ("stack", ("stack", [], [])),
        ("count by $pid", ("count", [], ["$pid"])),
        ("count by ($comm, $cpu)", ("count", [], ["$comm", "$cpu"])),
        ("count by ($comm)", ("count", [], ["$comm"])),
        ("count by (a) + b", ("count", [], ["[a+b]"])),
        ("count by (a + b) * (c)", ("count", [], ["[[a+b]*c]"])),
        ("count by (u64)a", ("count", [], ["[<u64>a]"])),
        ("count by ((u64)a)", ("count", [], ["[<u64>a]"])),
        ("count by str(filename)", ("count", [], ["str[filename]"])),
        ("count by file->f_flags & 3", ("count", [], ["[[file->f_flags]&3]"])),
        ("sum(count) by a[b]", ("sum", ["count"], ["[a@b]"])),
        ("hist(count - 1) by ($comm, a ? b : c)", ("hist", ["[count-1]"], ["$comm", "[a?b:c]"])),
        ("lhist(x, 0, 100, 10)", ("lhist", ["x", "0", "100", "10"], [])),
        ("lhist(x, -10, 10, 1) by y", ("lhist", ["x", "[-10]", "10", "1"], ["y"])),
        ("record(a, b, c)", ("record", ["a", "b", "c"], [])),
        ('print("%d\\n", $pid)', ("print", [r"'%d\n'", "$pid"], [])),
    ],
)
def test_actions(text: str, expected: tuple[str, list[str], list[str]]) -> None:
    assert parsed(text) == expected


@pytest.mark.parametrize(
    ("text", "message", "marked", "hint"),
    [
        ("conut", "no action named 'conut'", "conut", "did you mean 'count'?"),
        ("frobnicate(x)", "no action named 'frobnicate'", "frobnicate", "the actions are count, sum"),
        ("(x)", "no action named '(x)'", "(x)", "the actions are"),
        ("count(x)", "count takes nothing", "x", "count by KEY"),
        ("count()", "count takes no parentheses", "()", "count by KEY"),
        ("count $pid", "'$pid' is not expected here", "$pid", "count by KEY"),
        ("count by", "an expression is missing before the end", " ", ""),
        ("count by ()", "an expression is missing before ')'", ")", ""),
        ("count by (a, b) c", "'c' is not expected here", "c", "count by KEY"),
        ("count by (a, b", "'(' is never closed", "(", ""),
        ("hist", "hist needs an argument in parentheses", "hist", "hist(e)"),
        ("hist()", "hist needs more than that", "()", "hist(e)"),
        ("hist(a, b)", "hist takes 1 only", "b", "hist(e)"),
        ("hist(a", "'(' is never closed", "(", ""),
        ("lhist(x, 1, 2)", "lhist needs more than that", "(x, 1, 2)", "lhist(e, min, max, step)"),
        ("record(a) by b", "record takes no key", "by", "record(e, …)"),
        ("stop by $pid", "stop takes no key", "by", "stop"),
        ("print(a)", "a format in double quotes is missing", "a", 'print("format"'),
        ("print", "print needs", "print", 'print("format"'),
        ("sum(a) + 1", "'+' is not expected here", "+", "sum(e)"),
    ],
)
def test_what_is_no_action_is_pointed_at(text: str, message: str, marked: str, hint: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        parsed(text)
    first, line, carets = caught.value.message.split("\n")
    assert first.startswith(message)
    assert line[carets.index("^") :].ljust(1)[: len(carets.strip())] == marked
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["count", "count by $comm", "sum(x)", "lhist(x, 0, 9, 3)", "stop", "latency by $comm"])
def test_actions_that_there_are_pass_the_check(text: str) -> None:
    check_action(Fragment.whole(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conut", "no action named 'conut'"),
        ("nonsense(1)", "no action named 'nonsense'"),
        ("(x)", "no action named '(x)'"),
    ],
)
def test_other_actions_are_refused_before_anything_is_looked_up(text: str, message: str) -> None:
    with pytest.raises(OptprobeError) as refused:
        check_action(Fragment.whole(text))
    assert refused.value.message.startswith(message)
    assert refused.value.hint
