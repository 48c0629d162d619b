"""Make a recording of what a report has.

A record that has `$elapsed` among its values is a call, which began so long before the record; any other is an event.
`$pid`, `$comm` and `$tgid` say of which thread. Calls of a graph and stacks of a profile come as such.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gdb_optprobe.exports.recording import (
    Call,
    Distribution,
    Event,
    Mean,
    Measure,
    Number,
    Recording,
    Source,
    Stack,
    Thread,
    Value,
    Values,
)
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.maps.aggregate import (
    Aggregate,
    Average,
    Count,
    Greatest,
    Least,
    Linear,
    LogLinear,
    Powers,
    Stats,
    Sum,
    buckets,
    number,
    value,
)
from gdb_optprobe.probes.views import (
    NANOSECONDS,
    Address,
    CallView,
    CountsView,
    FrameView,
    GatheredView,
    ObjectView,
    ProbeView,
    RecordView,
    SessionMapView,
    parts_of,
)

_TIMES_END = 1 << 63
ELAPSED, THREAD, PROCESS, NAME = "$elapsed", "$pid", "$tgid", "$comm"

_OWN = ("cpu",)
"""What formats have beside the values of a call."""
_WORDS: Mapping[type, str] = {
    Count: "count",
    Sum: "sum",
    Least: "min",
    Greatest: "max",
    Average: "avg",
    Stats: "stats",
    Powers: "hist",
    LogLinear: "hist",
    Linear: "lhist",
}
"""What bpftrace calls the functions that make them."""


def recording(probes: Sequence[ProbeView], maps: Sequence[SessionMapView] = ()) -> Recording:
    """Return what the rows of a report hold, and maps of scripts and blocks.

    Functions of large globs that were never hit are left out.
    """
    rows = [*_rows(probes)]
    found = [_event(_source(row), record) for row in rows for record in row.records]
    return Recording(
        events=tuple(one for one in found if isinstance(one, Event)),
        calls=tuple(one for one in found if isinstance(one, Call)),
        stacks=stacks(rows),
        measures=(
            *(measure for row in rows for measure in _measures(row)),
            *(measure for one in maps for measure in _of_map(one)),
        ),
        lost=sum(row.dropped for row in rows),
    )


def gathered(view: GatheredView) -> Recording:
    """Return what a call graph, a profile, waits, calls or a latency have."""
    measures: tuple[Measure, ...] = ()
    if view.words:
        spread = Distribution(buckets(Powers(True), view.words))
        measures = (Measure(None, "latency", spread, "", (("function", view.function),), NANOSECONDS),)
    return Recording(
        calls=tuple(map(_call, view.calls)),
        stacks=tuple(Stack(tuple(map(one_line, one.frames)), one.count, one.time) for one in view.stacks),
        measures=measures,
        lost=view.lost,
    )


def _call(view: CallView) -> Call:
    names = [f"{name} (argument)" if name in _OWN else name for name, _ in view.values]
    values = _values(names, [value for _, value in view.values])
    thread = Thread(view.pid, view.comm)
    source = Source(None, view.function)
    return Call(source, view.begin, view.end, view.cpu, thread, values, view.depth, view.entered)


def stacks(probes: Iterable[ProbeView]) -> tuple[Stack, ...]:
    """Return the stacks that records have kept, and how often each."""
    kept = Counter(path for row in probes for record in row.records if (path := _path(record.stack)))
    return tuple(Stack(path, count) for path, count in sorted(kept.items()))


def _rows(probes: Sequence[ProbeView]) -> Iterator[ProbeView]:
    for part in parts_of(probes):
        if isinstance(part, CountsView):
            yield from (part[place] for place, hits in enumerate(part.hits) if hits)
        else:
            yield part


def _source(probe: ProbeView) -> Source:
    return Source(probe.number, probe.symbol or f"{probe.address:#x}")


def _event(source: Source, record: RecordView) -> Event | Call:
    by_name = dict(zip(record.names, record.values, strict=False))
    thread, time, elapsed = _thread(by_name), _time(record.since_boot), by_name.get(ELAPSED)
    values = _values(record.names, record.values)
    if time is not None and isinstance(elapsed, int) and elapsed >= 0:
        # Where an entry has two addresses, the probe is behind the first one.
        source = replace(source, place=_without_offset(source.place))
        return Call(source, max(time - elapsed, 0), time, record.cpu, thread, values)
    return Event(source, time, record.cpu, thread, values, one_line(record.text.rstrip("\n")), _path(record.stack))


def _time(since_boot: int | None) -> int | None:
    """Return a time that the formats can hold: a damaged record may have any."""
    return since_boot if since_boot is not None and 0 <= since_boot < _TIMES_END else None


def _thread(values: dict[str, Value]) -> Thread | None:
    """Return the thread that these values are of. A `$comm` alone does not say which."""
    thread, process, name = values.get(THREAD), values.get(PROCESS), values.get(NAME, "")
    if not isinstance(thread, int):
        return None
    return Thread(thread, str(name), process if isinstance(process, int) else None)


def _values(names: Sequence[str], values: Sequence[Value]) -> Values:
    """Return values by names that differ. Addresses are text. Names are typed, or from a journal."""
    seen: Counter[str] = Counter()
    found = []
    for place, one in enumerate(values):
        name = one_line(names[place]) if place < len(names) else f"value {place + 1}"
        seen[name] += 1
        unique = f"{name} ({seen[name]})" if seen[name] > 1 else name
        found.append((unique, f"{one:#x}" if isinstance(one, Address) else one))
    return tuple(found)


def _path(stack: Sequence[FrameView]) -> tuple[str, ...]:
    """Return the functions of a stack. What may be left from earlier calls is no part of it."""
    return tuple(_function(frame) for frame in reversed(stack) if frame.sure)


def _function(frame: FrameView) -> str:
    if not frame.address:
        return "[unknown]"
    return _without_offset(frame.symbol) or f"{frame.address:#x}"


def _without_offset(symbol: str) -> str:
    return re.sub(r"\+0x[0-9a-f]+$", "", symbol)


def _measures(probe: ProbeView) -> Iterator[Measure]:
    source = _source(probe)
    missed = ("missed_together", probe.missed_together) if probe.missed is None else ("missed", probe.missed)
    others = (("dropped", probe.dropped), ("faults", probe.faults), ("stops", probe.stops))
    for name, count in (("hits", probe.hits), missed, *others):
        yield Measure(source, name, Number(count))
    if probe.calls is not None:
        yield Measure(source, "active", Number(probe.active, grows=False))
    for found in probe.objects:
        yield from _of_object(source, found)


def _of_object(source: Source, found: ObjectView) -> Iterator[Measure]:
    action = one_line(found.action)
    word = re.match(r"[a-z]+", action)
    name = word[0] if word is not None else "value"
    for row in found.rows:
        gathered = _gathered(found.aggregate, row.words)
        if gathered is not None:
            yield Measure(source, name, gathered, action, _values(found.labels, row.key), found.unit)
    if found.lost:
        yield Measure(source, "lost", Number(found.lost), action)
    if found.lost_together:
        yield Measure(source, "lost_together", Number(found.lost_together), action)


def _of_map(found: SessionMapView) -> Iterator[Measure]:
    name = _WORDS.get(type(found.aggregate), "value")
    for row in found.rows:
        key = (("key", row.spelled),) if row.key else ()
        value = Number(row.words[0], grows=False)
        gathered = value if found.aggregate is None else _gathered(found.aggregate, row.words)
        if gathered is not None:
            yield Measure(None, name, gathered, found.name, key)


def _gathered(aggregate: Aggregate, words: Sequence[int]) -> Number | Mean | Distribution | None:
    """Return what the words mean; None of a least or greatest value where there was none."""
    match aggregate:
        case Average(signed) | Stats(signed):
            return Mean(words[0], number(words[1], signed))
        case Count():
            return Number(words[0])
        case Sum(signed):
            return Number(number(words[0], signed), grows=not signed)
        case Powers() | LogLinear() | Linear():
            return Distribution(buckets(aggregate, words))
        case Least() | Greatest():
            found = value(aggregate, words)
            return Number(found, grows=False) if isinstance(found, int) else None
