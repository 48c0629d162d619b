"""What a handler has in guest memory."""

from __future__ import annotations

from gdb_optprobe.handlers.ir import Cell, Column, Constant, Form, HashMap, Program, Update
from gdb_optprobe.maps.aggregate import Count, Sum
from gdb_optprobe.probes.handler import Handler

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
