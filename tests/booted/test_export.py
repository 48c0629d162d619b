"""What real probes have gathered, in the formats of other tools, as these read it."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from qemu.guest import Guest
from tests.booted.batch import Workload, batch
from tests.booted.conftest import FULL
from tests.exports.viewers import viewer
from tests.pages.reading import drawings, is_on_its_own, read

READS = 20
FILES = {
    "chrome": "reads.json",
    "trace.dat": "trace.dat",
    "uftrace": "uftrace.data",
    "folded": "reads.folded",
    "openmetrics": "reads.prom",
    "csv": "reads.csv",
}
BLOCK = "if (arg2 == 91) { @reads[comm] = count(); @last = arg2; @sizes = hist(arg2); }"
MINE = ("$pid", "$comm", "$elapsed")


@pytest.mark.parametrize("each_linux", ["linux", *["ppc_guest"] * FULL], indirect=True)
def test_viewers_have_each_call_each_stack_and_each_count(each_linux: Guest, tmp_path: Path) -> None:
    kept = f"do record({', '.join(MINE)})"
    finished = batch(
        each_linux,
        [
            f"optprobe add vfs_read -return if $retval == 91 {kept}",
            f"optprobe add rw_verify_area -return entry do save size = $arg4 if $saved.size == 91 {kept}",
            "optprobe add vfs_read if $arg3 == 91 do stack, record($arg3), count by $comm, hist($arg3)",
            f"optprobe add vfs_read do {{ {BLOCK} }}",
            Workload(f"dd if=/dev/zero of=/dev/null bs=91 count={READS} 2>/dev/null"),
            *(f"optprobe export {word} {tmp_path}/{name}" for word, name in FILES.items()),
            f"optprobe report -html {tmp_path}/report.html",
        ],
    )
    assert finished.status == 0, finished.output
    wrote = f"Wrote {3 * READS} calls, {2 * READS} events and 23 counters to '{tmp_path}/reads.json'."
    assert wrote in finished.output, finished.output

    items = json.loads((tmp_path / "reads.json").read_text())["traceEvents"]
    calls = [one for one in items if one["ph"] == "X"]
    assert len({(one["pid"], one["args"]["$comm"]) for one in calls}) == 1 and calls[0]["args"]["$comm"] == "dd"
    inner, outer = ([one for one in calls if one["name"] == name] for name in ("rw_verify_area", "vfs_read"))
    assert (len(inner), len(outer)) == (2 * READS, READS), "a write calls it, too"
    # A host that takes the vCPU away between two reads of the clock makes a call seem to be behind another.
    nested = [one for one in inner if any(_is_in(one, other) for other in outer)]
    assert READS * 3 // 4 <= len(nested) <= READS

    report = viewer("trace-cmd", "report", "-i", f"{tmp_path}/trace.dat")
    assert len(re.findall(r" dd-\d+ .*funcgraph_entry: .*\b(?:vfs_read|rw_verify_area)\(\)", report)) == 3 * READS
    assert len(re.findall(r"print: +vfs_read\S*: \$arg3=91$", report, re.MULTILINE)) == READS
    assert len(re.findall(r"print: +vfs_read\S*: vfs_read < ksys_read < ", report)) == READS

    counted = viewer("uftrace", "report", "-f", "call", "-s", "call", "--no-pager", "-d", f"{tmp_path}/uftrace.data")
    assert sorted(int(line.split()[0]) for line in counted.splitlines()[2:]) == [READS, 2 * READS]

    folded = re.findall(r"^(.+) (\d+)$", (tmp_path / "reads.folded").read_text(), re.MULTILINE)
    assert sum(int(count) for _, count in folded) == READS
    assert all(path.endswith(";ksys_read;vfs_read") for path, _ in folded), folded

    families = {one.name: one for one in text_string_to_metric_families((tmp_path / "reads.prom").read_text())}
    hits = [one.value for one in families["optprobe_hits"].samples]
    assert hits[:3] == [READS, 2 * READS, READS] and hits[3] >= READS
    counts = [(one.labels.get("comm"), one.labels.get("key"), one.value) for one in families["optprobe_count"].samples]
    assert counts == [("dd", None, READS), (None, "dd", READS)]
    samples = families["optprobe_hist"].samples
    buckets = [(one.labels.get("action") or one.labels["map"], one.labels["le"], one.value) for one in samples]
    assert buckets == [(of, bound, READS) for of in ("hist($arg3)", "@sizes") for bound in ("127.0", "+Inf")]
    assert [(one.labels, one.value) for one in families["optprobe_value"].samples] == [({"map": "@last"}, 91)]

    with (tmp_path / "reads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["type"] for row in rows].count("call") == 3 * READS
    times = [int(row["time_ns"]) + int(row["duration_ns"] or 0) for row in rows if row["time_ns"]]
    assert len(times) == 5 * READS and times == sorted(times)

    page = (tmp_path / "report.html").read_bytes()
    kinds = Counter(one.get("class") for one in drawings(page))
    assert (kinds["chart flame"], kinds["chart heat"], kinds["chart time"], kinds["chart bars"]) == (2, 2, 1, 1)
    text = read(page).text
    assert is_on_its_own(page) and 20_000 < len(page) < 200_000
    counts = f"{3 * READS} calls, {2 * READS} events, {READS} stacks and 3 maps"
    assert counts in text and "Linux version" in text and "Linux's own kprobe event" in text
    assert re.search(rf"vfs_read\S*: count by \$comm\n\$comm\nValue\ndd\n{READS}$", text, re.MULTILINE)


def _is_in(one: dict[str, float], other: dict[str, float]) -> bool:
    return other["ts"] <= one["ts"] and one["ts"] + one["dur"] <= other["ts"] + other["dur"]
