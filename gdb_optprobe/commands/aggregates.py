"""The results of actions, as text in bpftrace's form and as values for JSON.

    hist(count)
    [1]                  12 |@@@@                                    |
    [4K, 8K)            120 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gdb_optprobe.maps.aggregate import Aggregate, Average, Count, Greatest, Least, Linear, Powers, Sum, number
from gdb_optprobe.probes.views import ObjectView

BAR = 40
_UNITS = "KMGTPE"


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many values are in [low, high). None is no bound."""

    low: int | None
    high: int | None
    count: int


def buckets(histogram: Powers | Linear, words: Sequence[int]) -> tuple[Bucket, ...]:
    """Return all buckets, ascending."""
    if isinstance(histogram, Powers):
        lows = [0, 1, *(1 << power for power in range(1, 64))]
        bounds: list[tuple[int | None, int | None]] = [(None, 0)]
        bounds += list(zip(lows, [*lows[1:], 1 << 64], strict=True))
    else:
        edges = list(range(histogram.low, histogram.high + 1, histogram.step))
        bounds = [(None, edges[0]), *pairwise(edges), (edges[-1], None)]
    return tuple(Bucket(*bound, count) for bound, count in zip(bounds, words, strict=True))


def value(aggregate: Aggregate, words: Sequence[int]) -> object:
    """Return the JSON: a number, null where there was no value, or the buckets that are not empty."""
    match aggregate:
        case Count():
            return words[0]
        case Sum(signed):
            return number(words[0], signed)
        case Least(signed) | Greatest(signed):
            return number(words[0], signed) if words[1] else None
        case Average(signed):
            return _average(words, signed)
        case Powers() | Linear():
            found = buckets(aggregate, words)
            return [{"low": one.low, "high": one.high, "count": one.count} for one in found if one.count]


def _average(words: Sequence[int], signed: bool) -> int | None:
    """Return the average, rounded towards zero as C divides."""
    count, total = words[0], number(words[1], signed)
    if not count:
        return None
    return abs(total) // count * (-1 if total < 0 else 1)


def lines(view: ObjectView) -> list[str]:
    """Return the text of an action's result. Rows of keys begin with the smallest value, as bpftrace prints maps."""
    lost = [f"    ({view.lost} values found no room)"] if view.lost else []
    if not view.rows:
        return [f"{view.action}: nothing yet", *lost]
    if len(view.rows) == 1 and not view.rows[0].key:
        return _one(view.action, view.aggregate, view.rows[0].words)
    rows = sorted(view.rows, key=lambda row: (_weight(view.aggregate, row.words), row.key))
    found = [line for row in rows for line in _one(row.spelled, view.aggregate, row.words)]
    return [f"{view.action}:", *(f"    {line}" for line in found), *lost]


def _one(name: str, aggregate: Aggregate, words: Sequence[int]) -> list[str]:
    if isinstance(aggregate, Powers | Linear):
        return [f"{name}:", *_histogram(aggregate, words)]
    found = value(aggregate, words)
    return [f"{name}: {found if found is not None else 'nothing yet'}"]


def _weight(aggregate: Aggregate, words: Sequence[int]) -> int:
    """Return the number by which rows are sorted: the value, or how many values a histogram has."""
    found = value(aggregate, words)
    return sum(words) if isinstance(aggregate, Powers | Linear) else found if isinstance(found, int) else 0


def _histogram(histogram: Powers | Linear, words: Sequence[int]) -> list[str]:
    """Return a line for each bucket, from the first to the last that is not empty."""
    found = buckets(histogram, words)
    filled = [index for index, one in enumerate(found) if one.count]
    if not filled:
        return ["    nothing yet"]
    most = max(one.count for one in found)
    shown = [(_range(one), one.count) for one in found[filled[0] : filled[-1] + 1]]
    width = max(len(label) for label, _ in shown)
    return [f"    {label:<{width}} {count:>10} |{'@' * (BAR * count // most):<{BAR}}|" for label, count in shown]


def _range(bucket: Bucket) -> str:
    low = "(..." if bucket.low is None else f"[{_short(bucket.low)}"
    if bucket.low is not None and bucket.high == bucket.low + 1:
        return f"{low}]"
    return f"{low}, {'...' if bucket.high is None else _short(bucket.high)})"


def _short(value: int) -> str:
    """Return 4K for 4096, where that is exact."""
    unit = 0
    while value and not value % 1024 and unit < len(_UNITS):
        value //= 1024
        unit += 1
    return f"{value}{_UNITS[unit - 1] if unit else ''}"
