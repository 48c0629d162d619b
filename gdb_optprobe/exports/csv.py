"""CSV (RFC 4180), one table of all that there is: a row an event, a call, a stack, a number or a bucket.

    type,probe,place,time_ns,duration_ns,cpu,name,low,high,value,text,stack,$comm,count
    call,1,vfs_read,1500,300,0,,,,,,,dd,512
    hits,1,vfs_read,,,,,,,1052,,,,

Behind the fixed columns there is one for each name of a value or a part of a key.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from gdb_optprobe.exports.recording import Call, Distribution, Event, Mean, Measure, Number, Recording, Value, Values

FIXED = ("type", "probe", "place", "time_ns", "duration_ns", "cpu", "name", "low", "high", "value", "text", "stack")
_FORMULA = ("=", "+", "-", "@", "'")
"""What makes a spreadsheet compute a text; an apostrophe before it keeps it from that."""
_Row = Mapping[str, Value | None]


def encode(recording: Recording) -> bytes:
    rows = [*_rows(recording)]
    names = dict.fromkeys(FIXED)
    for row in rows:
        names.update(dict.fromkeys(row))
    text = io.StringIO()
    table = csv.DictWriter(text, [*names], restval="", lineterminator="\r\n")
    table.writerow({name: _cell(name) for name in names})
    for row in rows:
        table.writerow({name: _cell(one) for name, one in row.items()})
    return text.getvalue().encode()


def _rows(recording: Recording) -> Iterator[_Row]:
    both: list[Event | Call] = [*recording.events, *recording.calls]
    for one in sorted(both, key=_time):
        yield _call(one) if isinstance(one, Call) else _event(one)
    for stack in recording.stacks:
        yield {"type": "stack", "duration_ns": stack.time, "value": stack.count, "stack": ";".join(stack.frames)}
    for measure in recording.measures:
        yield from _measure(measure)


def _time(one: Event | Call) -> int:
    return one.end if isinstance(one, Call) else -1 if one.time is None else one.time


def _event(one: Event) -> _Row:
    where: _Row = {"probe": one.source.number, "place": one.source.place, "time_ns": one.time, "cpu": one.cpu}
    return {"type": "event", **where, "text": one.text, "stack": ";".join(one.stack), **_own(one.values)}


def _call(one: Call) -> _Row:
    where: _Row = {"probe": one.source.number, "place": one.source.place, "cpu": one.cpu}
    times: _Row = {"time_ns": one.begin, "duration_ns": one.end - one.begin}
    return {"type": "call", **where, **times, **_own(one.values)}


def _measure(one: Measure) -> Iterator[_Row]:
    where: _Row = {"name": one.action, **_own(one.key)}
    if one.source is not None:
        where = {"probe": one.source.number, "place": one.source.place, **where}
    match one.value:
        case Number(value):
            yield {"type": one.name, **where, "value": value}
        case Mean(count, total):
            yield {"type": f"{one.name}_count", **where, "value": count}
            yield {"type": f"{one.name}_sum", **where, "value": total}
        case Distribution(buckets):
            for bucket in (each for each in buckets if each.count):
                yield {"type": one.name, **where, "low": bucket.low, "high": bucket.high, "value": bucket.count}


def _own(values: Values) -> _Row:
    """Return values by columns, none of which is a fixed one. A parameter may be named `value`."""
    return {f"{name} (value)" if name in FIXED else name: one for name, one in values}


def _cell(one: Value | None) -> Value | None:
    """Return a value so that no spreadsheet takes a text for a formula."""
    return f"'{one}" if isinstance(one, str) and one.startswith(_FORMULA) else one
