"""What is taken from the lines of function_graph."""

from __future__ import annotations

import pytest

from qemu.graphs import Row, Tree, report, trees, usual
from qemu.guest import GuestError

TEXT = """\
# tracer: function_graph
 0)               |  f() {
 0)   0.100 us    |    g();
 0) ! 203.512 us  |  }
 0)               |  f() {
 0)   ==========> |
 0)   0.100 us    |    g();
 0)   1.000 us    |  }
 1)               |  f() {
 1)   0.100 us    |    g();
 1)   1.500 us    |  }
 1)               |  f() {
 1)   0.100 us    |    h();
"""
LINES = ("f() {", "  g();", "}")


def test_whole_trees_without_an_interrupt_are_taken_with_their_times() -> None:
    found = [*trees(TEXT, "f")]
    assert found == [Tree(LINES, 203.512), Tree(LINES, 1.5)]
    assert usual(found, "it") == Tree(LINES, 1.5) and found[0].calls == 2


def test_a_root_that_never_returns_ends_where_something_else_begins() -> None:
    assert [tree.lines for tree in trees(TEXT, "f", returns=False)][-1] == ("f() {", "  h();")


def test_where_no_tree_is_whole_it_is_told() -> None:
    with pytest.raises(GuestError, match="whole"):
        usual([*trees(TEXT, "g")], "it")


def test_the_table_tells_what_differs() -> None:
    same = Row("f", 5, 2, (), 334.0, 140.0, 1243.0, 1000, 0.5)
    other = Row("do_exit", 2, 9, ("-  g();",), None, None, None, 1000, 0.5)
    lines = report([same, other], "")
    assert lines[1].split() == ["f", "5", "2", "334", "140", "1,243", "1,000", "0.50"]
    assert lines[2].split()[3:6] == ["-", "-", "-"]
    assert lines[4].startswith("f: the same") and lines[5].startswith("do_exit: not") and lines[6] == "-  g();"
