"""The table of costs, in the manner of the kprobes papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .estimate import Cost

COLUMNS = ("", "instructions", "stops", "packets", "µs", "ratio")
_LINE = re.compile(r"(\S.*?)  +(-|[-\d,.]+) +([\d,.]+) +([-\d,.]+) +(~?)([-\d,.]+) +\S+")


def table(costs: Sequence[Cost], unit: Cost) -> list[str]:
    """Return a line for each cost, with a hit's cost in each column; `ratio`: its host time to that of `unit`."""
    return aligned([COLUMNS, *cells(costs, unit)])


def cells(costs: Sequence[Cost], unit: Cost) -> list[Sequence[str]]:
    """Return the same as cells, without the titles."""
    return [_row(cost, unit) for cost in costs]


def read(lines: Iterable[str]) -> list[Cost]:
    """Return the costs of a printed table's lines, as exact as they are printed; lines of other text are skipped."""
    return [_cost(found) for line in lines if (found := _LINE.fullmatch(line))]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as columns, the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_cells(row, widths)).rstrip() for row in rows]


def as_json(costs: Sequence[Cost], unit: Cost) -> list[Mapping[str, object]]:
    """Return the costs as JSON values."""
    return [
        {
            "type": "cost",
            "name": cost.name,
            "instructions": None if cost.instructions is None else round(cost.instructions, 2),
            "stops": round(cost.stops, 2),
            "packets": round(cost.packets, 2),
            "host_us": round(cost.seconds * 1e6, 4),
            "host_us_estimated": cost.estimated,
            "ratio": _ratio(cost, unit),
        }
        for cost in costs
    ]


def number(value: float) -> str:
    """Return a number with three digits, or with all digits before its point."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _row(cost: Cost, unit: Cost) -> tuple[str, ...]:
    ratio = _ratio(cost, unit)
    return (
        cost.name,
        "-" if cost.instructions is None else _tenths(cost.instructions),
        _tenths(cost.stops),
        _tenths(cost.packets),
        ("~" if cost.estimated else "") + number(cost.seconds * 1e6),
        "-" if ratio is None else number(ratio),
    )


def _cost(found: re.Match[str]) -> Cost:
    instructions, stops, packets, time = (cell.replace(",", "") for cell in found.group(2, 3, 4, 6))
    each = None if instructions == "-" else float(instructions)
    return Cost(found[1], each, float(stops), float(packets), float(time) / 1e6, bool(found[5]))


def _tenths(value: float) -> str:
    # Adding 0.0 avoids "-0.0", where the run without a probe took longer by chance.
    return f"{round(value, 1) + 0.0:,.1f}"


def _ratio(cost: Cost, unit: Cost) -> float | None:
    return cost.seconds / unit.seconds if unit.seconds > 0 and cost.seconds else None


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield f"{cell:>{width}}" if place else f"{cell:<{width}}"
