"""Heat maps: how many there were, by time and by size, the darker the more.

    16us │   ░ ▒
    8us  │ ▒ █ █ ▒
    4us  │ █ █ ▒ ░
           0   +1s
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from gdb_optprobe.pages.svg import Drawing, Markup, element, percent, text

LEVELS = 6
LEFT = 0.14
ROW, FOOT = 14, 18

Cells = Mapping[tuple[int, int], int]
"""How many, by column and row. Row 0 is the lowest."""


def heat_map(
    title: str,
    description: str,
    cells: Cells,
    columns: int,
    rows: Sequence[str],
    ticks: Sequence[str],
    note: Callable[[int, int, int], str],
) -> Drawing:
    """rows: the names of all, the lowest first. ticks: of the time, at equal distances. note: of a cell and its number.
    """
    most = max(cells.values(), default=1)
    plot = {"viewBox": f"0 0 {columns} {len(rows)}", "preserveAspectRatio": "none"}
    place = {"x": percent(LEFT), "width": percent(1 - LEFT), "height": ROW * len(rows)}
    content = (
        element("rect", {"class": "ground", **place}),
        element("svg", {**plot, **place}, *_cells(cells, most, len(rows), note)),
        *(_name(name, len(rows) - 1 - row) for row, name in enumerate(rows)),
        *axis(ticks, ROW * len(rows) + 14, LEFT),
    )
    return Drawing(title, description, ROW * len(rows) + FOOT, content, "heat")


def level(count: int, most: int) -> int:
    """Return the shade of a number, from 0 to LEVELS - 1: equal ratios are equal steps."""
    return min(int(LEVELS * math.log(count) / math.log(most)), LEVELS - 1) if most > 1 else LEVELS - 1


def legend(most: int) -> Sequence[tuple[str, str]]:
    """Return the class of each shade, and which numbers it has."""
    levels: dict[int, list[int]] = {}
    for number in _borders(most):
        levels.setdefault(level(number, most), []).append(number)
    return [(f"h{shade}", _numbers(min(found), max(found))) for shade, found in sorted(levels.items())]


def axis(ticks: Sequence[str], y: float, left: float = 0.0) -> Iterator[Markup]:
    """Yield the labels of an axis, the first and the last one within the drawing."""
    for place, tick in enumerate(ticks):
        at = percent(left + (1 - left) * place / (len(ticks) - 1))
        yield text(tick, at, y, f"note {'' if not place else 'end' if place == len(ticks) - 1 else 'middle'}".strip())


def _cells(cells: Cells, most: int, rows: int, note: Callable[[int, int, int], str]) -> Iterator[Markup]:
    for (column, row), count in sorted(cells.items()):
        box = {"class": f"h{level(count, most)}", "d": f"M{column} {rows - 1 - row}h1v1h-1z"}
        yield element("path", box, element("title", {}, note(column, row, count)))


def _name(name: str, line: int) -> Markup:
    return text(name, percent(LEFT), ROW * line + 11, "note end", dx=-6)


def _borders(most: int) -> Iterator[int]:
    """Yield the first and the last number of each shade, and some beside them."""
    for shade in range(LEVELS + 1):
        about = round(most ** (shade / LEVELS))
        yield from (number for number in range(about - 2, about + 3) if 1 <= number <= most)


def _numbers(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
