"""Chrome's JSON: the Trace Event Format, which Perfetto's UI opens.

    {"traceEvents": [{"ph": "X", "name": "vfs_read", "ts": 1000.5, "dur": 3.7, "pid": 412, "tid": 412, "args": {}}, …]}

X is a call, i an event, C a counter, M the name of a track. `ts` and `dur` are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from gdb_optprobe.exports.recording import Event, Recording, Value, Values
from gdb_optprobe.exports.tracks import Track, counters, tracks

LARGEST_EXACT = 1 << 53
"""Viewers hold numbers as doubles."""
_Item = Mapping[str, object]


def encode(recording: Recording) -> bytes:
    items = [item for track in tracks(recording) for item in _track(track)]
    items += _counters(recording)
    head: dict[str, object] = {"displayTimeUnit": "ns"}
    if recording.lost:
        head["otherData"] = {"lost records": str(recording.lost)}
    return f"{json.dumps({**head, 'traceEvents': items})}\n".encode()


def _track(track: Track) -> Iterator[_Item]:
    where = {"pid": track.process, "tid": track.number}
    yield {"ph": "M", "name": "thread_name", **where, "args": {"name": track.name}}
    if not track.process:
        yield {"ph": "M", "name": "process_name", **where, "args": {"name": "CPUs"}}
    for call in (placed.call for placed in track.calls):
        times = {"ts": _microseconds(call.begin), "dur": _microseconds(call.end - call.begin)}
        arguments = {"cpu": call.cpu, **_arguments(call.values)}
        yield {"ph": "X", "name": call.source.place, **times, **where, "args": arguments}
    for event in track.events:
        time = {"ts": _microseconds(event.time or 0), "s": "t"}
        yield {"ph": "i", "name": event.source.place, **time, **where, "args": _of_event(event)}


def _counters(recording: Recording) -> Iterator[_Item]:
    """Yield what probes have counted."""
    time = _microseconds(recording.end)
    for name, count, unit in counters(recording):
        yield {"ph": "C", "name": name, "ts": time, "pid": 0, "args": {unit or "value": count}}


def _of_event(event: Event) -> _Item:
    stack = {"stack": event.callers} if event.stack else {}
    text = {"text": event.text} if event.text and not event.stack else {}
    return {"cpu": event.cpu, **_arguments(event.values), **text, **stack}


def _arguments(values: Values) -> dict[str, Value]:
    return {name: str(one) if isinstance(one, int) and abs(one) > LARGEST_EXACT else one for name, one in values}


def _microseconds(time: int) -> float:
    return time / 1000
