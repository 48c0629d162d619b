"""What graph, profile, offcpu, calls and latency have shown, in each format, as what reads it elsewhere reads it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports.formats import encoded
from gdb_optprobe.exports.from_views import gathered
from gdb_optprobe.maps.aggregate import Powers, initial, update
from gdb_optprobe.probes.views import CallView, GatheredView, StackView
from tests.exports.test_profiles import profile
from tests.exports.viewers import viewer

BOOT = 5_000_000_000
GRAPH = gathered(
    GatheredView(
        "graph vfs_read",
        calls=(
            CallView("vfs_read", BOOT + 100, BOOT + 900, 0, 1, 0, 412, "dd", (("cpu", 7), ("$retval", -11))),
            CallView("rw_verify_area", BOOT + 100, BOOT + 300, 0, 0, 1, 412, "dd", (("interrupt", "yes"),)),
            # It took no time that the clock could tell, at the end of the one around it.
            CallView("__rcu_read_unlock", BOOT + 300, BOOT + 300, 0, 0, 2, 412, "dd"),
            CallView("vfs_read", BOOT + 900, BOOT + 950, 1, 1, 0, 412, "dd"),
            CallView("vfs_read", BOOT + 120, BOOT + 200, 1, 1, 0, 413, "cat"),
        ),
        lost=3,
    )
)
WAITS = gathered(
    GatheredView(
        "offcpu",
        stacks=(StackView(("sh", "do_wait", "schedule"), 2, 5000), StackView(("dd", "pipe_read", "schedule"), 1, 70)),
    )
)
SAMPLES = gathered(GatheredView("profile", stacks=(StackView(("dd", "main", "vfs_read"), 7),)))
LATENCY = gathered(
    GatheredView(
        "latency vfs_read", function="vfs_read", words=tuple(update(Powers(True), initial(Powers(True)), 1000))
    )
)


def data(word: str) -> bytes:
    found, _ = encoded(word, GRAPH)
    assert isinstance(found, bytes)
    return found


def test_timelines_have_the_nesting_of_the_graph() -> None:
    trace = Trace.FromString(data("perfetto"))
    described = {one.track_descriptor.thread.tid: one.track_descriptor.uuid for one in trace.packet}
    open: list[str] = []
    seen: list[tuple[int, str]] = []
    for one in trace.packet:
        event = one.track_event
        if event.track_uuid != described[412]:
            continue
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open.append(event.name)
            seen.append((one.timestamp - BOOT, ";".join(open)))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            open.pop()
    assert seen == [
        (100, "vfs_read"),
        (100, "vfs_read;rw_verify_area"),
        (300, "vfs_read;rw_verify_area;__rcu_read_unlock"),
        (900, "vfs_read"),
    ]
    first, inner, *_ = (one for one in json.loads(data("chrome"))["traceEvents"] if one["ph"] == "X")
    assert first["args"] == {"cpu": 1, "cpu (argument)": 7, "$retval": -11}
    assert (first["ts"], first["dur"]) == (5_000_000.1, 0.8) and inner["args"] == {"cpu": 0, "interrupt": "yes"}


def test_each_format_says_what_it_leaves_out() -> None:
    lost = "Lost, as they found no room in the guest: 3 records."
    for word in ("chrome", "perfetto", "csv"):
        assert encoded(word, GRAPH)[1] == ["5 calls", lost]
    for word in ("trace.dat", "uftrace", "speedscope", "folded", "pprof"):
        assert encoded(word, GRAPH)[1] == ["5 calls", "Left out: 3 values of calls.", lost]
    with pytest.raises(OptprobeError, match="and what was gathered is calls") as refused:
        encoded("openmetrics", GRAPH)
    assert refused.value.hint.startswith("a format that holds these: chrome, perfetto, ")
    for word in ("chrome", "perfetto", "trace.dat", "uftrace", "openmetrics"):
        with pytest.raises(OptprobeError, match="nothing to export"):
            encoded(word, SAMPLES)


def test_trace_cmd_has_the_graph(tmp_path: Path) -> None:
    """A call is entered on the CPU where it was, and returns where it did."""
    (tmp_path / "trace.dat").write_bytes(data("trace.dat"))
    lines = viewer("trace-cmd", "report", "-t", "-i", f"{tmp_path}/trace.dat").splitlines()
    of_dd = (line for line in lines if " dd-412 " in line)
    found = [re.sub(r"^ +dd-412 +\[(\d+)\] +\d\.(\d+): (\S+): +", r"\1 \2 ", line) for line in of_dd]
    assert found == [
        "000 000000100 |  vfs_read() {",
        "000 000000100 |    rw_verify_area() {",
        "000 000000300 0.000 us   |      __rcu_read_unlock();",
        "000 000000300 0.200 us   |    }",
        "001 000000900 0.800 us   |  }",
        "001 000000900 0.050 us   |  vfs_read();",
    ]


def test_uftrace_has_the_graph_and_its_flame_graph_is_ours(tmp_path: Path) -> None:
    files, _ = encoded("uftrace", GRAPH)
    assert isinstance(files, Mapping)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    read = ("--no-pager", "--color=no", "-d", str(tmp_path))
    replayed = viewer("uftrace", "replay", *read, "-f", "duration", "--tid=412").splitlines()
    assert [line.partition("|")[2] for line in replayed[1:]] == [
        " vfs_read() {", "   rw_verify_area() {", "     __rcu_read_unlock();", "   } /* rw_verify_area */",
        " } /* vfs_read */", " vfs_read();",
    ]  # fmt: skip
    flame = viewer("uftrace", "dump", "--flame-graph", "--sample-time=1ns", *read).splitlines()
    ours: dict[str, int] = {}
    for line in data("folded").decode().splitlines():
        path, _, time = line.rpartition(" ")
        _, _, functions = path.partition(";")
        ours[functions] = ours.get(functions, 0) + int(time)
    assert {path: int(time) for path, _, time in (line.rpartition(" ") for line in flame)} == ours


def test_profiles_have_own_times_of_a_graph_and_times_of_waits() -> None:
    types, samples = profile(GRAPH)
    assert types == [("calls", "count"), ("time", "nanoseconds")]
    assert samples["dd", "vfs_read"] == [2, 650] and samples["dd", "vfs_read", "rw_verify_area"] == [1, 200]
    types, samples = profile(WAITS)
    assert types == [("waits", "count"), ("time", "nanoseconds")]
    assert samples["sh", "do_wait", "schedule"] == [2, 5000]
    assert profile(SAMPLES) == ([("samples", "count")], {("dd", "main", "vfs_read"): [7]})
    assert encoded("folded", WAITS)[0] == b"sh;do_wait;schedule 5000\ndd;pipe_read;schedule 70\n"
    found, _ = encoded("speedscope", WAITS)
    assert isinstance(found, bytes)
    (one,) = json.loads(found)["profiles"]
    assert (one["unit"], one["weights"], one["endValue"]) == ("nanoseconds", [5000, 70], 5070)


def test_tables_have_all_of_it() -> None:
    rows = [*csv.DictReader(io.StringIO(data("csv").decode()))]
    calls = {(row["place"], row["$retval"], row["cpu (argument)"], row["cpu"], row["probe"]) for row in rows}
    assert ("vfs_read", "-11", "7", "1", "") in calls and len(rows) == 5
    found, _ = encoded("csv", WAITS)
    assert isinstance(found, bytes)
    assert b"stack,,,,5000,,,,,2,,sh;do_wait;schedule" in found
    found, lines = encoded("openmetrics", LATENCY)
    assert isinstance(found, bytes) and lines == ["1 number of tables"]
    (family,) = text_string_to_metric_families(found.decode())
    bounds = [(one.labels["function"], one.labels["le"], one.value) for one in family.samples]
    assert family.name == "optprobe_latency_seconds"
    assert bounds == [("vfs_read", "0.000001023", 1), ("vfs_read", "+Inf", 1)]
