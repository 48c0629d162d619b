"""From what a report has to a recording: what is a call, of which thread, and what text becomes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports.formats import FORMATS, Part, encoded
from gdb_optprobe.exports.from_views import recording
from gdb_optprobe.exports.recording import Call, Event, Mean, Number, Source, Stack, Thread
from gdb_optprobe.maps.aggregate import MASK, Average, Count, Greatest, Least, Powers, Stats, Sum, update
from gdb_optprobe.probes.views import (
    NANOSECONDS,
    Address,
    CallsView,
    CountsView,
    FrameView,
    ObjectView,
    ProbeView,
    RecordView,
    RowView,
    SessionMapView,
    rows,
)
from tests.commands.fake_session import VFS_READ, boosted, probe
from tests.exports.recordings import WHOLE, hostile

SOURCE = Source(1, "vfs_read")


def recorded(*records: RecordView) -> ProbeView:
    return probe(records=records)


def test_a_record_with_elapsed_is_a_call_of_its_thread() -> None:
    values, names = (412, 400, "dd", 300, Address(16)), ("$pid", "$tgid", "$comm", "$elapsed", "file")
    found = recording([recorded(RecordView(1, 5, values, "", since_boot=1000, names=names))])
    kept = (("$pid", 412), ("$tgid", 400), ("$comm", "dd"), ("$elapsed", 300), ("file", "0x10"))
    assert found.calls == (Call(SOURCE, 700, 1000, 1, Thread(412, "dd", 400), kept),) and not found.events
    assert found.end == 1000


def test_a_call_is_of_its_function() -> None:
    record = RecordView(1, 5, (300,), "", since_boot=1000, names=("$elapsed",))
    (call,) = recording([probe(4, symbol="vfs_read+0x8", records=(record,))]).calls
    assert call.source == Source(4, "vfs_read")


def test_without_a_time_nothing_is_a_call() -> None:
    """Without the rate of a clock its ticks are not in nanoseconds; a hit that stopped the guest has no time."""
    found = recording([recorded(RecordView(1, 5, (300,), "$elapsed=300", names=("$elapsed",)))])
    assert found.events == (Event(SOURCE, None, 1, None, (("$elapsed", 300),), "$elapsed=300"),) and not found.calls


@pytest.mark.parametrize("time", [-1, 1 << 63, 1 << 90])
def test_a_time_that_no_format_holds_is_none(time: int) -> None:
    found = recording([recorded(RecordView(1, 5, (300,), "", since_boot=time, names=("$elapsed",)))])
    assert found.events[0].time is None and not found.calls


def test_a_call_does_not_begin_before_the_boot() -> None:
    found = recording([recorded(RecordView(1, 5, (300,), "", since_boot=100, names=("$elapsed",)))])
    assert (found.calls[0].begin, found.calls[0].end, found.calls[0].thread) == (0, 100, None)


def test_names_of_values_differ_and_a_text_is_one_line() -> None:
    record = RecordView(0, None, (1, 2, 3, 4), "a\n[0] b\x1b\n", names=("n", "n", "\x1b"))
    (event,) = recording([recorded(record)]).events
    assert event.values == (("n", 1), ("n (2)", 2), (r"\033", 3), ("value 4", 4)) and event.text == r"a\n[0] b\033"


def test_stacks_are_counted_and_kept_at_their_times() -> None:
    frames = (FrameView(16, "vfs_read+0x13"), FrameView(48, "left", False), FrameView(64, ""), FrameView(0, "…"))
    stack = RecordView(0, 5, (), "", frames, since_boot=7)
    found = recording([recorded(stack, stack)])
    path = ("[unknown]", "0x40", "vfs_read")
    assert found.stacks == (Stack(path, 2),) and [one.stack for one in found.events] == [path] * 2


def test_what_probes_have_counted() -> None:
    objects = (
        ObjectView("count by $comm", Count(), (RowView(("dd",), (7,)),), 3, 1, labels=("$comm",)),
        ObjectView("sum(count)", Sum(False), (RowView((), (9,)),)),
        ObjectView("avg($elapsed)", Average(False), (RowView((), (2, 9)),), unit=NANOSECONDS),
        ObjectView("max(count)", Greatest(False), (RowView((), (0, 0)),)),
        ObjectView("count by $pid", Count(), (), None, 1, shared=True, lost_together=4),
    )
    counts = {"hits": 5, "dropped": 2, "missed": None, "missed_together": 9, "active": 1}
    row = probe(**counts, calls=CallsView(6, 5, 1, 0, 0), objects=objects)
    found = recording([row])
    assert [(one.name, one.value) for one in found.measures if not one.action] == [
        ("hits", Number(5)), ("missed_together", Number(9)), ("dropped", Number(2)), ("faults", Number(0)),
        ("stops", Number(0)), ("active", Number(1, grows=False)),
    ]  # fmt: skip
    assert [(one.name, one.action, one.key, one.value) for one in found.measures if one.action] == [
        ("count", "count by $comm", (("$comm", "dd"),), Number(7)),
        ("lost", "count by $comm", (), Number(3)),
        ("sum", "sum(count)", (), Number(9)),
        ("avg", "avg($elapsed)", (), Mean(2, 9)),
        ("lost_together", "count by $pid", (), Number(4)),
    ], "a greatest value of none is none"
    assert found.lost == 2


def test_maps_of_scripts_are_of_no_probe() -> None:
    hist = tuple(reduce(partial(update, Powers(True)), (1, 2), (0,) * 66))
    maps = (
        SessionMapView("", "", "@n", Count(), (RowView(("dd, 7",), (5,), "dd, 7"),)),
        SessionMapView("", "", "@mean", Stats(True), (RowView((), (2, MASK)),)),
        SessionMapView("", "", "@last", None, (RowView((), (-3,)),)),
        SessionMapView("", "", "@h", Powers(True), (RowView((), hist),)),
        SessionMapView("", "", "@least", Least(True), (RowView((), (5, 0)),)),
        SessionMapView("", "", "@text"),
    )
    found = recording([], maps).measures
    assert [(one.source, one.name, one.action, one.key) for one in found] == [
        (None, "count", "@n", (("key", "dd, 7"),)),
        (None, "stats", "@mean", ()),
        (None, "value", "@last", ()),
        (None, "hist", "@h", ()),
    ], "a least value of none is none, and a text is no number"
    assert [one.value for one in found[:3]] == [Number(5), Mean(2, -1), Number(-3, grows=False)]


def test_functions_of_a_block_that_were_never_hit_are_left_out() -> None:
    columns = CountsView(probe(3), [VFS_READ, 16, 32], ["vfs_read", "f", ""], [0, 4, 1], [b""] * 3, [], 16)
    found = recording(rows([columns, boosted(2)]))
    hits = [(one.source, one.value) for one in found.measures if one.name == "hits"]
    assert hits == [(Source(2, "vfs_read+0x9"), Number(0)), (Source(4, "f"), Number(4)), (Source(5, "0x20"), Number(1))]


def test_what_is_in_the_file_and_what_is_not_is_told() -> None:
    assert encoded("speedscope", WHOLE)[1] == [
        "6 calls and 15 stacks",
        "Left out: 3 events, 1 event without a time, 5 counters and 6 numbers of tables.",
        "Lost, as they found no room in the guest: 36 records.",
    ]
    assert encoded("csv", replace(WHOLE, lost=0))[1] == [
        "6 calls, 3 events, 1 event without a time, 15 stacks, 5 counters and 6 numbers of tables"
    ]


@pytest.mark.parametrize("word", FORMATS)
def test_each_format_holds_what_it_says_and_refuses_nothing(word: str) -> None:
    form = FORMATS[word]
    held = form.held(WHOLE)
    assert form.held(held) == held and form.encode(held) == encoded(word, WHOLE)[0]
    assert (Part.CALLS in form.parts and not form.either) == bool(held.calls)
    assert encoded(word, hostile())[0]
    with pytest.raises(OptprobeError, match="there is nothing to export: the format holds"):
        encoded(word, recording([]))
