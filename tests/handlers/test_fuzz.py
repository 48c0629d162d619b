"""Whatever is typed is a program or one line with a caret: nothing else is raised, and nothing takes long."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.compile import compile_handler
from gdb_optprobe.handlers.interpret import run
from gdb_optprobe.handlers.program import Program
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
