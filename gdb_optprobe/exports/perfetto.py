"""Perfetto's TrackEvents: a Trace of packets, each field 1, which ui.perfetto.dev and trace_processor open.

    TracePacket      8 timestamp, 10 trusted_packet_sequence_id, 11 TrackEvent, 60 TrackDescriptor
    TrackDescriptor  1 uuid, 2 name, 4 thread {1 pid, 2 tid, 5 name}, 5 parent_uuid, 8 counter {6 unit_name}
    TrackEvent       4 debug_annotations, 9 type, 11 track_uuid, 23 name, 30 counter_value
    DebugAnnotation  10 name, 3 uint_value, 4 int_value, 6 string_value

Times are nanoseconds of the guest since boot, the default clock. (protos/perfetto/trace/)
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.exports.protobuf import data, integer, text
from gdb_optprobe.exports.recording import Event, Recording, Value
from gdb_optprobe.exports.tracks import Track, counters, edges, tracks

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
SEQUENCE = 1
CPUS = 1
"""The uuid of the track that those of CPUs are below."""
FIRST = 2


def encode(recording: Recording) -> bytes:
    found = tracks(recording)
    packets: list[bytes] = []
    if not all(track.process for track in found):
        packets.append(data(60, integer(1, CPUS) + text(2, "CPUs")))
    for uuid, track in enumerate(found, FIRST):
        packets.append(data(60, _descriptor(uuid, track)))
        packets += _on_track(uuid, track)
    packets += _counters(recording, FIRST + len(found))
    return b"".join(data(1, packet + integer(10, SEQUENCE)) for packet in packets)


def _descriptor(uuid: int, track: Track) -> bytes:
    if not track.process:
        return integer(1, uuid) + text(2, track.name) + integer(5, CPUS)
    return integer(1, uuid) + data(4, integer(1, track.process) + integer(2, track.number) + text(5, track.name))


def _on_track(uuid: int, track: Track) -> Iterator[bytes]:
    """Yield the packets of a track, in the order of time but for its events, which viewers sort."""
    for edge in edges(track.calls):
        call = edge.placed.call
        if edge.begins:
            notes = (("cpu", call.cpu), *call.values)
            yield _packet(edge.time, _event(uuid, BEGIN) + text(23, call.source.place) + _annotations(notes))
        else:
            yield _packet(edge.time, _event(uuid, END))
    for event in track.events:
        named = text(23, event.source.place) + _annotations(_notes(event))
        yield _packet(event.time or 0, _event(uuid, INSTANT) + named)


def _counters(recording: Recording, first: int) -> Iterator[bytes]:
    """Yield tracks and values of what probes have counted."""
    for uuid, (name, count, unit) in enumerate(counters(recording), first):
        yield data(60, integer(1, uuid) + text(2, name) + data(8, text(6, unit) if unit else b""))
        yield _packet(recording.end, _event(uuid, COUNTER) + integer(30, count))


def _packet(time: int, event: bytes) -> bytes:
    return integer(8, time) + data(11, event)


def _event(uuid: int, kind: int) -> bytes:
    return integer(9, kind) + integer(11, uuid)


def _notes(event: Event) -> tuple[tuple[str, Value], ...]:
    text_of = (("text", event.text),) if event.text and not event.stack else ()
    stack = (("stack", event.callers),) if event.stack else ()
    return (("cpu", event.cpu), *event.values, *text_of, *stack)


def _annotations(values: tuple[tuple[str, Value], ...]) -> bytes:
    return b"".join(data(4, text(10, name) + _value(one)) for name, one in values)


def _value(one: Value) -> bytes:
    """Return an int_value, or an uint_value where it is too great for one."""
    if isinstance(one, str):
        return text(6, one)
    return integer(3 if one >> 63 > 0 else 4, one)
