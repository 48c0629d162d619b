"""Tables in GDB's manner: a line of titles, a line a row, indented remarks below it, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

WIDTH = 100
_INDENT = "        "

Row = tuple[Sequence[str], Sequence[str]]


def table(titles: Sequence[str], rows: Sequence[Row], right: Collection[str] = ()) -> list[str]:
    """rows: the cells, and the lines that follow them. right: titles of the columns that are numbers."""
    widths = [max(map(len, column)) for column in zip(titles, *(cells for cells, _ in rows), strict=True)]
    lines = _row(titles, widths, titles, right)
    for cells, remarks in rows:
        lines += _row(cells, widths, titles, right)
        lines += remarks
    return lines


def indented(text: str) -> list[str]:
    """A remark below a row, over as many lines as it takes."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=f"{_INDENT}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _row(cells: Sequence[str], widths: Sequence[int], titles: Sequence[str], right: Collection[str]) -> list[str]:
    """One line; what does not fit into the last column goes on below it."""
    fixed = [
        f"{cell:>{width}}" if title in right else f"{cell:<{width}}"
        for cell, width, title in zip(cells[:-1], widths, titles, strict=False)
    ]
    before = " ".join(fixed) + " "
    room = max(WIDTH - len(before), 20)
    last = textwrap.wrap(cells[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    return [(before + last[0]).rstrip(), *(" " * len(before) + line for line in last[1:])]
