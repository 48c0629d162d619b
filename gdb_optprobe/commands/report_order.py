"""The order of a report's rows, and how many of them it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice, repeat
from operator import itemgetter

from gdb_optprobe.commands.options import Selection
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Average, Linear, Powers, Sum
from gdb_optprobe.probes.views import NANOSECONDS, CountsView, ObjectView, ProbeView, parts_of


def chosen(probes: Sequence[ProbeView], args: Selection) -> Sequence[ProbeView]:
    """Return the probes of a report in its order, at most as many as it is to have."""
    if not args.sort:
        return probes if args.top is None else list(islice(probes, args.top))
    keyed = list(_keyed(probes, args.sort))
    keyed.sort(key=itemgetter(0), reverse=args.sort not in ("number", "symbol"))
    return [part if isinstance(part, ProbeView) else part[place] for _, part, place in keyed[: args.top]]


def _keyed(probes: Sequence[ProbeView], by: str) -> Iterator[tuple[str | int, ProbeView | CountsView, int]]:
    """Yield what to sort each row by, and where it is: in a part, at a place of it."""
    for part in parts_of(probes):
        if isinstance(part, ProbeView):
            yield _key(part, by), part, 0
            continue
        columns: dict[str, Iterable[str | int]] = {
            "hits": part.hits,
            "symbol": part.symbols,
            "number": count(part.first.number),
        }
        keys = columns.get(by, repeat(_key(part.first, by)))
        yield from zip(keys, repeat(part), range(len(part)), strict=False)


def _key(probe: ProbeView, by: str) -> str | int:
    """Return what to sort a row by."""
    if by == "time":
        return _time(probe.objects)
    if by == "missed" and probe.missed is None:
        return probe.missed_together
    found: str | int = getattr(probe, by)
    return found


def _time(objects: Sequence[ObjectView]) -> int:
    """Return how long all calls took together, in nanoseconds, by a histogram about; 0 where nothing tells it."""
    about = 0
    for one in objects:
        if one.unit != NANOSECONDS or one.keys or len(one.rows) != 1:
            continue
        (row,) = one.rows
        match one.aggregate:
            case Sum():
                return row.words[0]
            case Average():
                return row.words[1]
            case Powers() | Linear():
                spans = aggregate.buckets(one.aggregate, row.words)
                about = sum(span.count * ((span.low or 0) + (span.high or span.low or 0)) // 2 for span in spans)
    return about
