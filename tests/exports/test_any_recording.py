"""Whatever was recorded, each format encodes it, and what reads it finds each thing once."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as some
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gdb_optprobe.exports.formats import FORMATS
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
    Values,
)
from gdb_optprobe.guest_text import one_line
from tests.examples import examples
from tests.exports.recordings import distribution

TIMES = some.integers(0, (1 << 63) - 1)
WORDS = some.integers(-(1 << 63), (1 << 64) - 1)
TEXTS = some.text(max_size=20).map(one_line)
NAMES = TEXTS.filter(bool)
VALUES = some.dictionaries(NAMES, WORDS | TEXTS, max_size=3).map(lambda found: tuple(found.items()))
SOURCES = some.builds(Source, some.integers(0, 1 << 31), NAMES)
CPUS = some.integers(0, (1 << 32) - 1)
THREADS = some.none() | some.builds(Thread, WORDS, TEXTS, some.none() | WORDS)
STACKS = some.lists(NAMES, max_size=3).map(tuple)
EVENTS = some.builds(Event, SOURCES, some.none() | TIMES, CPUS, THREADS, VALUES, TEXTS, STACKS)
CALLS = some.builds(
    lambda source, times, *others: Call(source, min(times), max(times), *others),
    *(SOURCES, some.tuples(TIMES, TIMES), CPUS, THREADS, VALUES),
    *(some.none() | some.integers(0, 3), some.none() | CPUS),
)
GATHERED = some.one_of(
    some.builds(Number, some.integers(0, (1 << 64) - 1)),
    some.builds(Number, WORDS, some.just(False)),
    some.builds(Mean, some.integers(0, 1 << 64), WORDS),
    some.lists(some.integers(0, (1 << 64) - 1), max_size=3).map(lambda values: distribution(*values)),
)


def measure(name: str, source: Source | None, value: Number | Mean | Distribution, key: Values, unit: str) -> Measure:
    """A name goes with one kind of value."""
    kind = f"{type(value).__name__.lower()}{isinstance(value, Number) and value.grows}"
    return Measure(source, f"{name}_{kind}", value, name, key, unit)


MEASURES = some.builds(
    measure, some.sampled_from(["hits", "sum"]), some.none() | SOURCES, GATHERED, VALUES, some.sampled_from(["", "ns"])
)
RECORDINGS = some.builds(
    Recording,
    some.lists(EVENTS, max_size=4).map(tuple),
    some.lists(CALLS, max_size=6).map(tuple),
    some.lists(some.builds(Stack, STACKS, some.integers(0, 1 << 63), some.none() | TIMES), max_size=3).map(tuple),
    some.lists(MEASURES, max_size=4).map(tuple),
    some.integers(0, 1 << 64),
)


@settings(max_examples=examples(60))
@given(RECORDINGS)
def test_each_format_encodes_it(found: Recording) -> None:
    encoded = {word: form.encode(form.held(found)) for word, form in FORMATS.items()}
    files = {word: data for word, data in encoded.items() if isinstance(data, bytes)}
    folder = encoded["uftrace"]
    calls, timed = len(found.calls), sum(one.time is not None for one in found.events)

    items = json.loads(files["chrome"])["traceEvents"]
    assert len([one for one in items if one["ph"] in "Xi"]) == calls + timed
    evented = [one for one in json.loads(files["speedscope"])["profiles"] if one["type"] == "evented"]
    assert sum(len(one["events"]) for one in evented) == 2 * calls
    trace = Trace.FromString(files["perfetto"])
    assert sum(one.track_event.type == TrackEvent.TYPE_SLICE_BEGIN for one in trace.packet) == calls
    assert isinstance(folder, Mapping)
    assert sum(len(data) for name, data in folder.items() if name.endswith(".dat")) == 2 * 16 * calls
    assert len(files["trace.dat"]) % 4096 == 0
    assert all(line.rsplit(" ", 1)[1].isdigit() for line in files["folded"].decode().splitlines())

    head, *rows = csv.reader(io.StringIO(files["csv"].decode(), newline=""))
    assert {len(row) for row in rows} <= {len(head)} and len({*head}) == len(head)
    kinds = [row[0] for row in rows]
    assert (kinds.count("call"), kinds.count("event")) == (calls, len(found.events))

    families = [*text_string_to_metric_families(files["openmetrics"].decode())]
    assert sum(len(one.samples) for one in families) >= len(found.measures)


def test_pages_of_a_trace_are_full_of_events() -> None:
    events = tuple(Event(Source(1, "f"), time << 40, 0, text="x" * (time % 1000)) for time in range(500))
    encoded = FORMATS["trace.dat"].encode(Recording(events))
    assert isinstance(encoded, bytes)
    first, _, rest = encoded.partition(b"flyrecord\0")
    place, size = struct.unpack("<QQ", rest[:16])
    pages = [encoded[at : at + 4096] for at in range(place, place + size, 4096)]
    assert place + size == len(encoded) and len(pages) > 30
    assert all(0 < struct.unpack("<Q", page[8:16])[0] <= 4080 for page in pages) and first
