"""The costs as a picture: GDB, Linux and optprobe side by side, on a logarithmic scale.

    a breakpoint, condition false
    ██████████████████████████ GDB 6,766 µs, 2 stops
    ███ optprobe ~0.014 µs, 9 instructions
    0.001  0.1   10   1,000
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.pages import bars
from gdb_optprobe.pages.page import chart_style
from gdb_optprobe.pages.svg import Drawing

from .estimate import Cost
from .table import number

__all__ = ["ESTIMATED", "PAIRS", "Pair", "chart", "drawing"]

WIDTH = 760
WHERE = "vfs_read of a stock Debian kernel, one vCPU under TCG, GDB attached; scripts/bench --chart"
ESTIMATED = "~ too short for the host's clock: the share of the instructions in the time of a read"
OURS = "ours"
MAKERS = {"gdb": "GDB", "linux": "Linux", OURS: "optprobe"}


@dataclass(frozen=True, slots=True)
class Pair:
    """What does the same work: by a maker, and here. cost, our_cost: the names of rows in the table."""

    work: str
    maker: str
    cost: str
    our_cost: str


PAIRS = (
    Pair("a breakpoint, condition false", "gdb", "GDB's break … if", "a break, false"),
    Pair("a count", "linux", "Linux's event, optimized", "optimized"),
    Pair("a count, condition false", "linux", "Linux's filter, false", "a condition, false"),
    Pair("a histogram", "linux", "Linux's hist trigger", "hist($arg3)"),
    Pair("a record of three words", "linux", "Linux's event, three words", "record, three words"),
    Pair("a count of returns", "linux", "Linux's event, return", "a return"),
    Pair("a count, by a trap", "linux", "Linux's event, by a trap", "trapped"),
)


def chart(costs: Sequence[Cost], arch: str) -> str:
    """Return the picture of a bench's table, a file of its own."""
    return drawing(costs, arch).file(WIDTH, chart_style(), (WHERE, ESTIMATED))


def drawing(costs: Sequence[Cost], arch: str) -> Drawing:
    found = {cost.name: cost for cost in costs}
    groups = [
        bars.Group(pair.work, [_bar(pair.maker, found[pair.cost]), _bar(OURS, found[pair.our_cost])])
        for pair in PAIRS
        if {pair.cost, pair.our_cost} <= found.keys()
    ]
    said = "Each figure is behind its bar: GDB's breakpoint above all, then Linux's own events, then optprobe."
    return bars.logarithmic(f"What a hit costs: µs of the host, logarithmic ({arch})", said, groups)


def _bar(maker: str, cost: Cost) -> bars.Bar:
    time = number(cost.seconds * 1e6)
    figure = f"{MAKERS[maker]} {'~' if cost.estimated else ''}{time} µs"
    count = cost.instructions
    more = f"{cost.stops:.0f} stops" if count is None else f"{round(count, 1):,.0f} instructions"
    # As printed, so that the picture of a printed table is the same.
    return bars.Bar(maker, float(time.replace(",", "")), f"{figure}, {more}")
