"""A graph with -json: its keys, and what a guest may put into them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gdb_optprobe.commands.graph_json import GraphJson
from gdb_optprobe.commands.graph_totals import Totals
from gdb_optprobe.handlers.ctype import Integer, Pointer
from gdb_optprobe.probes.graph.functions import Traced
from gdb_optprobe.probes.graph.trees import Call, Ending, Tree
from tests.commands.test_graph_text import call, tree
from tests.golden import golden

INT, LONG = Integer("int", 4, True), Integer("unsigned long", 8, False)
READ = Traced("vfs_read", 0, 0, (("file", Pointer(INT), 0), ("count", LONG, 1)), result=INT)
FUNCTIONS = {0: READ, 1: Traced("rw_verify_area", 16, 16), 2: Traced("tick_handle_periodic", 32, 32)}
TOTALS = Totals("vfs_read", 3, 1, 2, 4, 5, 6, 7, 8, 9, False, (("schedule", "it is not probed"),))


def lines(found: Tree, depth: int = 5) -> str:
    form = GraphJson(FUNCTIONS, lambda ticks: 2 * ticks, lambda ticks: 10**9 + 2 * ticks, depth)
    return "".join(f"{line}\n" for line in (*form.header(), *form.lines(found)))


def read(*calls: Call, end: int | None = 500) -> Call:
    found = call(0, 0, end, *calls, to=0)
    found.arguments = 0xFFFF_8880_0000_1000, 4096
    if found.end is not None:
        found.end = *found.end[:2], 2**64 - 14
    return found


def test_what_leaves() -> None:
    tick = call(2, 20, 40)
    tick.is_interrupt = True
    found = lines(tree(read(call(1, 10, 60, tick))))
    found += lines(replace(tree(read(end=None), ending=Ending.LOST), is_early=True))
    last = GraphJson(FUNCTIONS, lambda ticks: ticks, lambda ticks: ticks, 3).ended(TOTALS)
    assert found + "".join(f"{line}\n" for line in last) == golden("graph.json")


def test_endings() -> None:
    found = {ending: json.loads(lines(tree(read(), ending=ending)))["ending"] for ending in Ending}
    assert found == {Ending.RETURNED: "returned", Ending.DIED: "died", Ending.OPEN: "open", Ending.LOST: "lost"}


def test_deeper_calls_are_left_out() -> None:
    found: Any = json.loads(lines(tree(read(call(1, 10, 60, call(2, 20, 40)))), 1))
    assert [inner["calls"] for inner in found["calls"]] == [[]]


def test_a_line_is_one_line_whatever_the_guest_calls_its_thread() -> None:
    """Also with as many calls around each other as a graph may show."""
    deep = call(1, 0, 10)
    for _ in range(64):
        deep = call(1, 0, 10, deep)
    found = lines(tree(deep, comm=b'"\n\x1b]0;\0'), 64)
    assert found.count("\n") == 1 and json.loads(found)["comm"] == r'"\n\033]0;' and found.isascii()


def test_totals_in_words() -> None:
    assert [*TOTALS.left_out_lines()] == [
        "left out: schedule: it is not probed",
        "the root reaches more than 4,096 functions: not all are there",
    ]
    assert [line for line in TOTALS.lines() if "repeat" in line] == [
        "1 call of the root may lack calls through pointers: repeat the command"
    ]
    assert not [*Totals("vfs_read", 3).lines(), *Totals("vfs_read", 3).left_out_lines()]
