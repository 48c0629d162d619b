"""What a report leaves out, and its other forms: records in the order of time, stacks for flame graphs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from gdb_optprobe.commands.options import REPORT_OPTIONS, parse_run, parse_selection
from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.commands.render_text import Text
from gdb_optprobe.commands.report_order import chosen
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.aggregate import Average, Count, Powers, Sum
from gdb_optprobe.probes.views import NANOSECONDS, ObjectView, ProbeView, RecordView, RowView
from tests.commands.fake_session import probe
from tests.commands.in_gdb import shared_gdb

GLOB = [replace(probe(), number=number, location="vfs_*", hits=int(number == 3)) for number in range(1, 6)]


def text(method: str, *arguments: Any) -> list[str]:
    written: list[str] = []
    getattr(Text(written.append), method)(*arguments)
    return "".join(written).splitlines()


def values(method: str, *arguments: Any) -> list[Any]:
    written: list[str] = []
    getattr(Json(written.append), method)(*arguments)
    return [json.loads(line) for line in "".join(written).splitlines()]


def test_probes_of_a_glob_that_were_never_hit_are_one_line() -> None:
    head, row, last = text("report", GLOB, False)
    assert head.startswith("Num") and row.split()[:2] == ["3", "1"] and last == "and 4 of vfs_* never hit: -all"
    assert len(text("report", GLOB)) == 6
    assert text("report", [one for one in GLOB if not one.hits], False) == [last]
    assert len([line for line in values("report", GLOB, False) if line["type"] == "probe"]) == 5, "JSON has all"


@pytest.mark.parametrize(
    "change", [{"missed": 1}, {"faults": 1}, {"stops": 1}, {"active": 1}, {"enabled": False}, {"location": "vfs_read"}]
)
def test_what_has_something_to_tell_keeps_its_row(change: dict[str, Any]) -> None:
    lines = text("report", [replace(GLOB[0], **change), *GLOB[1:]], False)
    assert lines[1].split()[0] == "1" and lines[-1].startswith("and 3 of vfs_*")


def test_calls_that_functions_missed_together_are_told_once() -> None:
    probes = [replace(one, missed=None, missed_together=7) for one in GLOB]
    told = "7 calls of the functions of vfs_* found no room in the table that they share: missed"
    for lines in (text("report", probes), text("probes", probes), text("report", probes, False)):
        assert lines.count(told) == 1
    assert [line.split()[2] for line in text("report", probes)[1:-1]] == ["?"] * len(probes)
    rows = [line for line in values("report", probes) if line["type"] == "probe"]
    assert {(row["missed"], row["missed_together"]) for row in rows} == {(None, 7)}
    assert all("missed_together" not in line for line in values("report", GLOB))


def test_values_that_functions_lost_together_are_told_once() -> None:
    found = ObjectView("count by $pid", Count(), (RowView((7,), (2,), "[7]"),), None, 1, shared=True, lost_together=5)
    probes = [replace(one, objects=(found,)) for one in GLOB]
    told = "count by $pid of vfs_*: 5 values found no room in the map of all its functions"
    assert text("report", probes).count(told) == 1
    rows = [line for line in values("report", probes) if line["type"] == "map"]
    assert {(row["lost"], row["lost_together"]) for row in rows} == {(None, 5)}


def test_the_order_of_time() -> None:
    """An exact sum goes before what a histogram tells."""
    hist = (ObjectView("latency", Powers(False), (RowView((), (0,) * 11 + (3,) + (0,) * 54),), unit=NANOSECONDS),)
    total = (ObjectView("sum($elapsed)", Sum(False), (RowView((), (2000,)),), unit=NANOSECONDS), *hist)
    mean = (ObjectView("avg($elapsed)", Average(False), (RowView((), (2, 9000)),), unit=NANOSECONDS),)
    bytes_read = (ObjectView("sum(count)", Sum(False), (RowView((), (10**9,)),)),)
    gathered = enumerate(((), hist, total, mean, bytes_read), 1)
    probes = [replace(probe(), number=number, objects=one) for number, one in gathered]
    found = chosen(probes, parse_selection("-sort time", REPORT_OPTIONS))
    assert [one.number for one in found[:3]] == [4, 2, 3]


def test_a_row_costs_no_more_when_there_are_many() -> None:
    def calls(count: int) -> int:
        probes = [replace(GLOB[0], number=number, hits=number % 2) for number in range(count)]
        found = []
        sys.setprofile(lambda frame, event, _: found.append(event) if event == "call" else None)
        try:
            text("report", probes, False)
        finally:
            sys.setprofile(None)
        return len(found)

    assert calls(1000) < 11 * calls(100)


def test_all_of_a_glob_may_be_asked_for() -> None:
    assert [parse_selection(typed, REPORT_OPTIONS).whole for typed in ("-all", "-top 3")] == [True, False]


def recorded(number: int, *times: int | None) -> ProbeView:
    records = (RecordView(0, time, (number,), f"n={number}\nmore" if time == 20 else f"n={number}") for time in times)
    return replace(probe(), number=number, symbol="f" * number, records=tuple(records))


def test_a_timeline_has_the_records_of_all_probes_in_the_order_of_time() -> None:
    probes = [recorded(1, 10, 30), recorded(2, None, 20)]
    assert text("timeline", probes) == [
        "2 ff [0]: n=2",
        "1 f  [0] 10: n=1",
        "2 ff [0] 20: n=2",
        "         | more",
        "1 f  [0] 30: n=1",
    ]
    assert [(line["type"], line["number"], line["time"]) for line in values("timeline", probes)] == [
        ("record", 2, None), ("record", 1, 10), ("record", 2, 20), ("record", 1, 30)
    ]  # fmt: skip
    assert text("timeline", [probe()]) == ["No records."]


FOLDED = """python
from gdb_optprobe.commands.report import folded
from gdb_optprobe.probes.views import FrameView, RecordView
from types import SimpleNamespace
def stack(*frames): return RecordView(0, 1, (), "", tuple(FrameView(*frame) for frame in frames))
inner, outer = (16, "vfs_read+0x13"), (32, "ksys_read+0x7")
cut = stack(inner, (0, "…"))
doubtful = stack(inner, (48, "left", False), (64, ""), outer)
views = [SimpleNamespace(records=(stack(inner, outer), cut, RecordView(0, 1, (), "no stack"))),
         SimpleNamespace(records=(stack(inner, outer), doubtful))]
print("|".join(folded(views)))
"""


def test_stacks_are_folded_for_flame_graphs() -> None:
    ended = shared_gdb(f"python exec({FOLDED.removeprefix('python')!r})")
    assert ended.out.strip() == "[unknown];vfs_read 1|ksys_read;0x40;vfs_read 1|ksys_read;vfs_read 2", ended.err


def test_a_report_of_no_records_and_no_stacks() -> None:
    ended = shared_gdb("optprobe report -timeline", "optprobe report -folded")
    assert ended.out.splitlines()[-2:] == ["No records.", "No stacks."], ended.err


@pytest.mark.parametrize("other", ["-json", "-timeline"])
def test_stacks_have_one_form_at_a_time(other: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        parse_selection(f"-folded {other}", REPORT_OPTIONS)
    assert caught.value.message.startswith(f"{other} and -folded exclude each other")


def test_records_that_are_followed_stand_in_the_same_columns() -> None:
    written: list[str] = []
    out = Text(written.append)
    for probes in ([recorded(2, 10)], [], [recorded(1, 30)]):
        out.timeline(probes, more=True)
    assert written == ["2 ff [0] 10: n=2\n", "1 f  [0] 30: n=1\n"]


def test_a_run_that_follows_ends_with_what_was_lost() -> None:
    ended = shared_gdb("optprobe add gathers", "optprobe run -follow 1", "optprobe run -follow 1 -json", "optprobe run")
    _, first, second, ran, taken, hint, *lines, last = ended.out.splitlines()
    assert (first, second, ran) == (*["1 vfs_read [1] 5: dd 12"] * 2, "fake: run None None None")
    assert taken == "4 records, 6 lost" and hint.startswith("HINT: set optprobe ring-records")
    assert [json.loads(line)["type"] for line in lines] == ["record", "record", "run"] and last == ran


def test_what_is_followed_must_be_known() -> None:
    for typed in ("-follow -every 1", "1 -for 2"):
        with pytest.raises(OptprobeError, match=r"exclude each other|not expected here"):
            parse_run(typed)
