"""What a handler has in guest memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.compile import compile_handler
from gdb_optprobe.handlers.ir import Cell, Column, Constant, Expr, Form, HashMap, Load, Program, Register, Update
from gdb_optprobe.handlers.lower_expressions import UNMAPPED, NotLowered
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.handlers.scope import UNREAD
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.maps.aggregate import Count, Sum
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.spec import Kind, Spec
from tests.handlers.world import World

KEYED = Update(HashMap("count by 1", (Column("1", Form.UNSIGNED),), Count()), None, (Constant(1),))
SUM = Update(Cell("sum(1)", Sum(False)), Constant(1))
CONDITION = Constant(0)


def test_where_it_ends_is_seen_before_anything_was_counted() -> None:
    for actions in ((KEYED,), (SUM,), (SUM, KEYED), ()):
        handler = Handler.of(Program(CONDITION, actions), None, 4)
        data = handler.initial()
        assert len(data) == handler.size
        assert data[-8:] != bytes(8) and not any(data[:-8])


def test_a_count_is_a_word() -> None:
    assert Handler().initial() == bytes(8)


def test_what_cannot_be_lowered_is_pointed_at() -> None:
    """In the condition, in an action, in what is done or kept at the entry; a count has no code of its own."""
    condition, at_return, at_entry, kept = (Load(Register(name), 8, False, mapped=False) for name in "abcd")
    entry = EntryProgram(words=(kept,), actions=(_sum(at_entry),))
    handler = replace(Handler.of(Program(condition, (_sum(at_return),)), None, None), entry=entry)
    parts = tuple(map(Fragment.whole, ("save n = *d", "sum(*c)")))
    spec = Spec("f", Kind.KRETPROBE, "*a", ("count", "sum(*b)"), entry_actions=parts)
    for node, line in ((condition, "*a"), (at_return, "sum(*b)"), (at_entry, "sum(*c)"), (kept, "save n = *d")):
        with pytest.raises(OptprobeError) as error, handler.errors_at_source(spec):
            raise NotLowered(node, "this is never done")
        assert error.value.message.split("\n    ")[:2] == ["this is never done", line], error.value.message
    with pytest.raises(OptprobeError) as error, handler.errors_at_source(spec):
        raise NotLowered(condition, UNMAPPED)
    assert error.value.message.startswith(UNREAD.message)


def _sum(value: Expr) -> Update:
    return Update(Cell("sum", Sum(False)), value)


@pytest.mark.parametrize(
    ("actions", "labels"),
    [
        (("count by buf", "count by (buf, fd)"), ("buf",)),
        (("record(fd, buf)",), ("buf",)),
        (("count by str(buf)", 'print("%p %s", buf, buf)', "count by $comm", "count by pos", "sum(count)"), ()),
    ],
)
def test_a_pointer_to_characters_is_told_where_an_address_is_kept(
    actions: Sequence[str], labels: Sequence[str]
) -> None:
    program = compile_handler(None, [Fragment.whole(action) for action in actions], World())
    note = "; ".join(f"{label} is an address, and str({label}) the text there" for label in labels)
    assert Handler.of(program, None, None).note == note
