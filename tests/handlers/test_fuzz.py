"""Whatever is typed is a program or one line with a caret: nothing else is raised, and nothing takes long."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.compile import compile_handler
from gdb_optprobe.handlers.interpreter import run
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.source import Fragment

from .world import World, hit

NAMES = (
    "file", "buf", "count", "fd", "any", "secret", "jiffies", "vfs_read", "runqueues", "$task", "$comm", "$pid", "pos",
    "$nosuch", "nosuch", "1", "0", "2u", "'a'", '"dd"', '"%d %s"', "O_APPEND", "file->counts", "file->low", "file->tag",
)  # fmt: skip
MEMBERS = ("f_flags", "f_path", "low", "wide", "tag", "name", "load", "big", "rest", "pid", "dentry", "nosuch")
TYPES = (
    "int",
    "u64",
    "struct file *",
    "struct file",
    "void *",
    "char",
    "_Bool",
    "nosuch_t",
    "nosuch *",
    "double",
    "void",
)
SIGNS = (
    "->", ".", "[", "]", "(", ")", "*", "&", "-", "+", "/", "%", "<<", ">>", "<", ">", "==", "!=", "&&", "||", "?", ":",
    "!", "~", ",", "=", "sizeof", "str", "$percpu", "struct", "by", "hist", "sum", "record", "print", "lhist", "stop",
    "stack", "@", "{", "}", "0x", "1.5", "'", '"', "\\", "const",
)  # fmt: skip
PREFIXES = ("-", "!", "~", "*", "&", "sizeof ", "str", "$percpu")
BINARY = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", ">=", "&&", "||")


def made(text: str, condition: bool) -> Program | None:
    """None where it is refused, in one line, with a caret below the text."""
    part = Fragment(f"probed if {text}", 10, 10 + len(text))
    try:
        return compile_handler(part, [], World()) if condition else compile_handler(None, [part], World())
    except OptprobeError as error:
        message, line, carets = error.message.split("\n")
        assert message and line.strip() and set(carets) <= set(" ^~") and carets.count("^") == 1
        assert 4 + 10 <= carets.index("^") <= 4 + 10 + len(text)
        assert "\n" not in error.hint
        return None


def check(text: str, condition: bool) -> None:
    program = made(text, condition)
    if program is not None:
        run(program, hit())


def grown(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, below, st.sampled_from(BINARY), below),
        st.builds("{}({})".format, st.sampled_from(PREFIXES), below),
        st.builds("({})({})".format, st.sampled_from(TYPES), below),
        st.builds("({}){}{}".format, below, st.sampled_from(("->", ".")), st.sampled_from(MEMBERS)),
        st.builds("({})[{}]".format, below, below),
        st.builds("({} ? {} : {})".format, below, below, below),
    )


EXPRESSIONS = st.recursive(st.sampled_from(NAMES), grown, max_leaves=6)
NAMED = st.sampled_from(("sum", "min", "hist", "avg"))
ACTIONS = st.one_of(
    st.builds("{}({}) by ({}, {})".format, NAMED, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS),
    st.builds("record({}, {})".format, EXPRESSIONS, EXPRESSIONS),
    st.builds('print("%d %s %lx", {}, {}, {})'.format, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS),
    st.builds("lhist({}, 0, {}, 1)".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("count by {}".format, EXPRESSIONS),
)
PIECES = st.lists(st.sampled_from((*NAMES, *MEMBERS, *TYPES, *SIGNS)), max_size=14).map(" ".join)
LINES = st.text(st.characters(exclude_categories=["Cc", "Zl", "Zp", "Cs"]), max_size=30)


@given(EXPRESSIONS)
def test_any_expression(text: str) -> None:
    check(text, condition=True)


@given(ACTIONS)
def test_any_action(text: str) -> None:
    check(text, condition=False)


@given(PIECES, st.booleans())
@example("*&*&*&file->f_path.dentry", True)
@example("((((", True)
@example("sizeof sizeof sizeof 1", True)
def test_words_in_any_order(text: str, condition: bool) -> None:
    check(text, condition)


@given(LINES, st.booleans())
def test_any_text(text: str, condition: bool) -> None:
    check(text, condition)


MUCH = ("(" * 5000, "!" * 5000, "a?" * 5000, "file->" * 5000, "1+" * 2000 + "1", "sizeof " * 2000)


@pytest.mark.parametrize("text", MUCH)
def test_much_text(text: str) -> None:
    assert made(text, condition=True) is None


DIGITS = "9" * 5000
DEEP = "(1||1&&1|1^1&1==1<1<<1+1*"
LIMITS = (
    DIGITS, f"0{'7' * 5000}", f"0x{'f' * 5000}", f"0b{'1' * 5000}", f"$arg{DIGITS}", f"file->counts[{DIGITS}]",
    f"(int{'*' * 1000})1", f"(struct file {'* const ' * 500})1", f"sizeof(void {'*' * 900})",
    f"(nosuch_t{'*' * 1000})1",
    DEEP * 49 + "1" + ")" * 49, "file->counts[" * 90 + "1" + "]" * 90, "-(int)" * 90 + "fd",
    "'\ud800'", '"\udfff"', "\ud800", '$comm == "dd\udbff"', f"'\\x{'f' * 9000}'",
)  # fmt: skip
ACTION_LIMITS = (
    f'print("%{DIGITS}d", 1)', f'print("%.{DIGITS}s", $comm)', 'print("\ud800")', f"lhist(1, 0, {DIGITS}, 1)",
    f"hist(1) by {DIGITS}", f"count by (char{'*' * 999})fd",
)  # fmt: skip


@pytest.mark.parametrize("text", LIMITS)
def test_numbers_nesting_and_characters_beyond_every_limit_are_told_with_a_caret(text: str) -> None:
    """Python converts 4,300 digits and no more, recurses 1,000 deep and no more, and encodes no half of a pair."""
    assert made(text, condition=True) is None


@pytest.mark.parametrize("text", ACTION_LIMITS)
def test_actions_beyond_every_limit_are_told_with_a_caret(text: str) -> None:
    assert made(text, condition=False) is None


def test_a_long_line_is_shown_around_what_is_wrong() -> None:
    with pytest.raises(OptprobeError) as refused:
        compile_handler(Fragment.whole(f"{'1 + ' * 90}{'9' * 5000} + {'2 + ' * 900}2"), [], World())
    _, line, carets = refused.value.message.split("\n")
    assert len(line) < 1000 and line.strip().startswith("…") and line.endswith("…")
    assert line[carets.index("^")] == "9" and line[carets.index("^") - 1] == " "


def test_zeros_before_a_number_are_none_of_its_digits() -> None:
    assert made(f"{'0' * 6000}", condition=True) is not None
    assert made(f"0x{'0' * 6000}1 == fd", condition=True) is not None


ANY = st.text(max_size=40) | st.lists(st.sampled_from((*NAMES, *SIGNS, "\ud800", "\0", "\n", DIGITS))).map("".join)


@given(ANY, st.booleans())
def test_any_characters_at_all(text: str, condition: bool) -> None:
    part = Fragment.whole(text)
    try:
        compile_handler(part, [], World()) if condition else compile_handler(None, [part], World())
    except OptprobeError as error:
        message = f"{error.message}{error.hint}"
        assert message.encode() and len(message) < 4000
