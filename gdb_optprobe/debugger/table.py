"""Tables as GDB prints them: a line of titles, one line a row, indented remarks below a row, 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

WIDTH = 100
_INDENT = "        "

Row = tuple[Sequence[str], Sequence[str]]


def table(titles: Sequence[str], rows: Sequence[Row], right: Collection[str] = ()) -> list[str]:
    """Return the lines of a table. rows: cells, and the remarks below them. right: titles of columns of numbers."""
    widths = [max(map(len, column)) for column in zip(titles, *(cells for cells, _ in rows), strict=True)]
    lines = _row(titles, widths, titles, right)
    for cells, remarks in rows:
        lines += _row(cells, widths, titles, right)
        lines += remarks
    return lines


def indented(text: str) -> list[str]:
    """Return a remark below a row, wrapped."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=f"{_INDENT}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _row(cells: Sequence[str], widths: Sequence[int], titles: Sequence[str], right: Collection[str]) -> list[str]:
    """Return one row. The last column is wrapped."""
    fixed = [
        f"{cell:>{width}}" if title in right else f"{cell:<{width}}"
        for cell, width, title in zip(cells[:-1], widths, titles, strict=False)
    ]
    before = " ".join(fixed) + " "
    room = max(WIDTH - len(before), 20)
    last = textwrap.wrap(cells[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    return [(before + last[0]).rstrip(), *(" " * len(before) + line for line in last[1:])]
