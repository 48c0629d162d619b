"""OpenMetrics text, as Prometheus reads it: counters, averages and histograms.

    # TYPE optprobe_hits counter
    optprobe_hits_total{probe="1",place="vfs_read"} 1052
    # TYPE optprobe_hist histogram
    optprobe_hist_bucket{probe="1",place="vfs_read",action="hist(count)",comm="dd",le="1023.0"} 900
    # EOF

Times are in seconds. A histogram has no `_sum` and so no `_count`: what lies within a bucket is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from gdb_optprobe.exports.recording import Distribution, Mean, Measure, Number, Recording
from gdb_optprobe.maps.aggregate import Bucket

PREFIX = "optprobe"
RESERVED = ("probe", "place", "action", "map", "copy", "le", "quantile")
HELP: Mapping[str, str] = {
    "hits": "Hits for which the condition was true.",
    "missed": "Hits or calls that found no room and were not counted.",
    "missed_together": "The same of all functions that share a table, where it is not known of which.",
    "active": "Calls under way.",
    "dropped": "Records that found no room.",
    "faults": "Hits where something could not be evaluated.",
    "stops": "How often the probe stopped the guest.",
    "lost": "Values that found no room in the table of an action.",
    "lost_together": "The same of all functions that share a table, where it is not known of which.",
}
_BILLION = 10**9
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_Labels = tuple[tuple[str, str], ...]


def encode(recording: Recording) -> bytes:
    families: dict[tuple[str, str], list[Measure]] = {}
    for measure in recording.measures:
        families.setdefault(_family(measure), []).append(measure)
    lines = [line for (name, kind), found in families.items() for line in _of_family(name, kind, found)]
    return "".join(f"{line}\n" for line in (*lines, "# EOF")).encode()


def _family(one: Measure) -> tuple[str, str]:
    """Return the name and the type."""
    match one.value:
        case Number(_, grows):
            kind, name = ("counter", one.name) if grows else ("gauge", one.name)
        case Mean():
            kind, name = "summary", one.name
        case Distribution():
            kind, name = "histogram", one.name
    # A sum of signed values is no counter, and a family has one type.
    name = "signed_sum" if (name, kind) == ("sum", "gauge") else name
    return f"{PREFIX}_{name}{'_seconds' if one.unit else ''}", kind


def _of_family(name: str, kind: str, measures: Iterable[Measure]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    if name.endswith("_seconds"):
        yield f"# UNIT {name} seconds"
    if known := HELP.get(name.removeprefix(f"{PREFIX}_")):
        yield f"# HELP {name} {known}"
    seen: dict[_Labels, int] = {}
    for one in measures:
        labels = _labels(one)
        seen[labels] = seen.get(labels, 0) + 1
        # The same action may be there twice.
        own = (*labels, ("copy", str(seen[labels]))) if seen[labels] > 1 else labels
        yield from _samples(name, own, one)


def _samples(name: str, labels: _Labels, one: Measure) -> Iterator[str]:
    match one.value:
        case Number(value, grows):
            yield f"{name}{'_total' if grows else ''}{_spelled(labels)} {_number(value, one.unit)}"
        case Mean(count, total):
            yield f"{name}_count{_spelled(labels)} {count}"
            if total >= 0:  # no summary of negative values has one
                yield f"{name}_sum{_spelled(labels)} {_number(total, one.unit)}"
        case Distribution(buckets):
            for bound, count in _cumulative(buckets, one.unit):
                yield f"{name}_bucket{_spelled((*labels, ('le', bound)))} {count}"


def _cumulative(buckets: tuple[Bucket, ...], unit: str) -> Iterator[tuple[str, int]]:
    """Yield the greatest value of each bucket, and how many values are in it or below; of those up to the last filled.

    Values are integers: those below `high` are at most `high` - 1.
    """
    sums = [*accumulate(one.count for one in buckets)]
    for one, count in zip(buckets, sums, strict=True):
        if one.high is not None and count:
            yield _number(one.high - 1, unit) if unit else f"{one.high - 1}.0", count
        if count == sums[-1]:
            break
    yield "+Inf", sums[-1]


def _number(value: int, unit: str) -> str:
    """Return a number; nanoseconds as seconds, exactly."""
    if not unit:
        return str(value)
    whole, below = divmod(abs(value), _BILLION)
    return f"{'-' if value < 0 else ''}{whole}.{f'{below:09}'.rstrip('0') or '0'}"


def _labels(one: Measure) -> _Labels:
    found = {"probe": str(one.source.number), "place": one.source.place} if one.source is not None else {}
    if one.action:
        found["map" if one.source is None else "action"] = one.action
    for name, value in one.key:
        found[_label(name, found)] = str(value)
    return tuple(found.items())


def _label(name: str, taken: Iterable[str]) -> str:
    """Return the name of a part of a key, such as `$comm`, as a label's."""
    plain = re.sub(r"[^a-zA-Z0-9_]+", "_", name).strip("_") or "key"
    first = f"key_{plain}" if plain in RESERVED or plain[0].isdigit() else plain
    names = [first, *(f"{first}_{number}" for number in range(2, 9))]
    return next(each for each in names if each not in taken)


def _spelled(labels: _Labels) -> str:
    found = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{','.join(found)}}}"
