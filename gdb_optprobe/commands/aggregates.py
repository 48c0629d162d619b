"""The results of actions as text, in bpftrace's form.

    hist(count)
    [1]                  12 |@@@@                                    |
    [4K, 8K)            120 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdb_optprobe.maps.aggregate import Aggregate, Bucket, Count, Histogram, Linear, Powers, Sum, buckets, value
from gdb_optprobe.probes.views import NANOSECONDS, ObjectView

BAR = 40
_UNITS = "KMGTPE"
_TIMES = (NANOSECONDS, "us", "ms", "s")


def lines(view: ObjectView) -> list[str]:
    """Return the text of an action's result. Rows of keys begin with the smallest value, as bpftrace prints maps."""
    # What a glob's probes share is said once, by the report.
    lost = [f"    ({view.lost} values found no room)"] if view.lost and not view.shared else []
    if not view.rows:
        return [f"{view.action}: nothing yet", *lost]
    if len(view.rows) == 1 and not view.rows[0].key:
        return _one(view.action, view, view.rows[0].words)
    rows = sorted(view.rows, key=lambda row: (weight(view.aggregate, row.words), row.key))
    found = [line for row in rows for line in _one(row.spelled, view, row.words)]
    return [f"{view.action}:", *(f"    {line}" for line in found), *lost]


def _one(name: str, view: ObjectView, words: Sequence[int]) -> list[str]:
    if isinstance(view.aggregate, Powers | Linear):
        return [f"{name}:", *histogram(view.aggregate, words, view.unit)]
    found = value(view.aggregate, words)
    return [f"{name}: {f'{found}{view.unit}' if found is not None else 'nothing yet'}"]


def adds_up(aggregate: Aggregate) -> bool:
    """Return whether the values of several keys have a sum, of which each is a part."""
    return isinstance(aggregate, Count | Sum | Histogram)


def weight(aggregate: Aggregate, words: Sequence[int]) -> int:
    """Return the number by which rows are sorted: the value, or how many values a histogram has."""
    found = value(aggregate, words)
    return sum(words) if isinstance(aggregate, Powers | Linear) else found if isinstance(found, int) else 0


def histogram(kind: Powers | Linear, words: Sequence[int], unit: str) -> list[str]:
    """Return a line for each bucket, from the first to the last that is not empty."""
    found = buckets(kind, words)
    filled = [index for index, one in enumerate(found) if one.count]
    if not filled:
        return ["    nothing yet"]
    most = max(one.count for one in found)
    exact = isinstance(kind, Linear)
    spell = short if not unit else (lambda edge: f"{edge}{unit}") if exact else duration
    shown = [(bucket_range(one, spell), one.count) for one in found[filled[0] : filled[-1] + 1]]
    width = max(len(label) for label, _ in shown)
    return [f"    {label:<{width}} {count:>10} |{'@' * (BAR * count // most):<{BAR}}|" for label, count in shown]


def bucket_range(bucket: Bucket, spell: Callable[[int], str]) -> str:
    """Return [4K, 8K), or [1] of one value."""
    low = "(..." if bucket.low is None else f"[{spell(bucket.low)}"
    if bucket.low is not None and bucket.high == bucket.low + 1:
        return f"{low}]"
    return f"{low}, {'...' if bucket.high is None else spell(bucket.high)})"


def duration(nanoseconds: int) -> str:
    """Return 4.1us for 4096, with three digits."""
    power = min((len(str(nanoseconds)) - 1) // 3, len(_TIMES) - 1)
    found = nanoseconds / 1000**power
    return f"{found:.3g}{_TIMES[power]}" if found < 999.5 else f"{found:.0f}{_TIMES[power]}"


def short(value: int) -> str:
    """Return 4K for 4096, where that is exact."""
    unit = 0
    while value and not value % 1024 and unit < len(_UNITS):
        value //= 1024
        unit += 1
    return f"{value}{_UNITS[unit - 1] if unit else ''}"
