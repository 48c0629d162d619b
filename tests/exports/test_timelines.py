"""Chrome's JSON and Perfetto's packets, the latter as Perfetto's own schema (pip's perfetto) decodes them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from gdb_optprobe.exports import chrome, perfetto
from gdb_optprobe.exports.recording import Recording
from gdb_optprobe.exports.tracks import BEYOND_THREADS
from tests.exports.recordings import CALLS, NASTY, SECOND, WHOLE, hostile


def items(recording: Recording) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chrome.encode(recording))["traceEvents"]
    return found


def packets(recording: Recording) -> Any:
    """Return the packets. What the schema does not know fails."""
    trace = Trace()
    trace.ParseFromString(perfetto.encode(recording))
    size = trace.ByteSize()
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == size
    return trace.packet


def test_chrome_has_calls_and_events_in_microseconds() -> None:
    found = items(WHOLE)
    assert Counter(one["ph"] for one in found) == {"X": 6, "i": 3, "C": 5, "M": 5 + 3}
    verify = next(one for one in found if one["name"] == "rw_verify_area")
    assert (verify["ts"], verify["dur"], verify["pid"], verify["tid"]) == (1_000_001.0, 0.3, 412, 412)
    assert verify["args"] == {"cpu": 0, "$pid": 412, "$comm": "dd", "$elapsed": 300}
    stack = next(one for one in found if one["ph"] == "i" and one["name"] == "vfs_read")
    assert stack["args"]["stack"] == "vfs_read < ksys_read < entry_SYSCALL_64" and stack["s"] == "t"
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in found if one["name"] == "thread_name"}
    assert names[412, 412] == "dd" and names[400, 413] == "cat" and names[0, BEYOND_THREADS] == "CPU 0"
    assert [one["args"] for one in found if one["ph"] == "C"] == [{"value": n} for n in (1052, 2, 3, -5, -1)]


def test_chrome_has_numbers_that_a_double_cannot_hold_as_text() -> None:
    flags = next(one for one in items(WHOLE) if "flags" in one["args"])["args"]
    assert flags["flags"] == str(1 << 63) and flags["file"] == "0xffff888000000000"
    assert json.loads(chrome.encode(WHOLE))["otherData"] == {"lost records": "36"}
    assert "otherData" not in json.loads(chrome.encode(Recording(calls=CALLS)))


def test_perfetto_has_slices_that_nest_on_their_tracks() -> None:
    described = (one.track_descriptor for one in packets(WHOLE) if one.HasField("track_descriptor"))
    tracks = {one.uuid: one for one in described}
    threads = [one.thread for one in tracks.values() if one.HasField("thread")]
    assert [(one.pid, one.tid, one.thread_name) for one in threads] == [(412, 412, "dd"), (400, 413, "cat")]
    parents = {tracks[one.parent_uuid].name for one in tracks.values() if one.parent_uuid}
    assert parents == {"CPUs"}
    dd = next(uuid for uuid, one in tracks.items() if one.thread.tid == 412)
    slices = [
        (one.timestamp - SECOND, one.track_event.type, one.track_event.name)
        for one in packets(WHOLE)
        if one.track_event.track_uuid == dd and one.track_event.type != TrackEvent.TYPE_INSTANT
    ]
    begin, end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
    assert slices == [
        (500, begin, "vfs_read"),
        (1000, begin, "rw_verify_area"),
        (1300, end, ""),
        (3000, end, ""),
        (3000, begin, "vfs_read"),
        (3100, end, ""),
    ]


def test_perfetto_has_values_and_counters() -> None:
    found = packets(WHOLE)
    event = next(one.track_event for one in found if one.track_event.name.startswith("do_sys_openat2"))
    notes = {one.name: one.string_value or one.int_value or one.uint_value for one in event.debug_annotations}
    assert notes == {"cpu": 0, "$pid": 412, "name": 'a, "b";c', "text": 'name=a, "b";c'}
    flags = next(one for each in found for one in each.track_event.debug_annotations if one.name == "flags")
    assert flags.uint_value == 1 << 63
    described = (one.track_descriptor for one in found if one.track_descriptor.HasField("counter"))
    names = {one.uuid: one.name for one in described}
    counted = {
        names[one.track_event.track_uuid]: one.track_event.counter_value
        for one in found
        if one.track_event.type == TrackEvent.TYPE_COUNTER
    }
    assert (counted["vfs_read (1): hits"], counted["vfs_read (1): sum($retval)"], counted["@last"]) == (1052, -5, -1)


@pytest.mark.parametrize("recording", [Recording(), hostile()])
def test_hostile_names_change_nothing_but_names(recording: Recording) -> None:
    calls = [one for one in items(recording) if one["ph"] == "X"]
    assert [one["name"] for one in calls] == [name or "f" for name in NASTY[: len(calls)]]
    assert len(calls) == len(recording.calls)
    begins = [one.track_event.name for one in packets(recording) if one.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    assert begins == [one["name"] for one in calls]
