"""OpenMetrics as prometheus_client's parser reads it, and CSV as Python's own module does."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gdb_optprobe.exports import csv as exported_csv
from gdb_optprobe.exports import openmetrics
from gdb_optprobe.exports.recording import Distribution, Mean, Measure, Number, Recording
from gdb_optprobe.maps.aggregate import Linear, LogLinear, Powers, bucket, buckets, initial, update
from tests.exports.recordings import MEASURES, NASTY, READ, WHOLE, distribution, hostile


def families(*measures: Measure) -> dict[str, Any]:
    text = openmetrics.encode(Recording(measures=measures)).decode()
    return {one.name: one for one in text_string_to_metric_families(text)}


def test_prometheus_reads_it() -> None:
    found = families(*MEASURES)
    assert {name: one.type for name, one in found.items()} == {
        "optprobe_hits": "counter",
        "optprobe_active": "gauge",
        "optprobe_hist": "histogram",
        "optprobe_count": "counter",
        "optprobe_latency_seconds": "histogram",
        "optprobe_avg_seconds": "summary",
        "optprobe_signed_sum": "gauge",
        "optprobe_value": "gauge",
    }
    hits = [(one.name, one.value) for one in found["optprobe_hits"].samples]
    assert hits == [("optprobe_hits_total", 1052), ("optprobe_hits_total", 3)]
    labels = [one.labels for one in found["optprobe_count"].samples]
    assert labels[0] == {
        "probe": "1", "place": "vfs_read", "action": "count by ($comm, $pid)", "comm": "dd", "pid": "412",
    }  # fmt: skip
    assert labels[1]["comm"] == 'a "b"\\n' and labels[2] == {"map": "@reads", "key": "dd, 412"}
    assert [(one.labels, one.value) for one in found["optprobe_value"].samples] == [({"map": "@last"}, -1)]
    mean = {one.name: one.value for one in found["optprobe_avg_seconds"].samples}
    assert mean == {"optprobe_avg_seconds_count": 4, "optprobe_avg_seconds_sum": 1.500000001}


def cumulative(family: Any) -> dict[float, float]:
    return {float(one.labels["le"]): one.value for one in family.samples}


def test_a_bucket_has_all_values_up_to_its_greatest() -> None:
    found = families(*MEASURES)
    sizes = cumulative(found["optprobe_hist"])
    assert [sizes[at] for at in (0, 1, 511, 1023, 2047, math.inf)] == [1, 2, 2, 4, 5, 5]
    assert cumulative(found["optprobe_latency_seconds"]) == {1.023e-6: 1, 2.047e-6: 2, math.inf: 2}


@pytest.mark.parametrize("histogram", [Powers(True), LogLinear(2, True), Linear(-10, 30, 5, True)])
def test_every_value_is_in_the_bucket_of_its_bound(histogram: Powers | LogLinear | Linear) -> None:
    values = (-(1 << 63), -11, -10, -1, 0, 1, 2, 7, 29, 30, 31, 1000, (1 << 63) - 1)
    words = initial(histogram)
    for value in values:
        words = update(histogram, words, value & (1 << 64) - 1)
    family = families(Measure(READ, "hist", Distribution(buckets(histogram, words)), "hist(x)"))["optprobe_hist"]
    for bound, count in cumulative(family).items():
        if bound < 2**53 or math.isinf(bound):
            assert count == sum(value <= bound for value in values), bound
    assert bucket(histogram, 0) and cumulative(family)[math.inf] == len(values)


def test_nothing_yet_and_negative_means() -> None:
    found = families(
        Measure(READ, "hist", distribution(), "hist(x)"), Measure(READ, "avg", Mean(2, -7), "avg(x)")
    )
    assert cumulative(found["optprobe_hist"]) == {math.inf: 0}
    assert [one.name for one in found["optprobe_avg"].samples] == ["optprobe_avg_count"]


def test_the_same_action_twice_is_two_samples() -> None:
    one = Measure(READ, "count", Number(1), "count by $pid", (("$pid", 5),))
    samples = families(one, one)["optprobe_count"].samples
    assert [sample.labels.get("copy") for sample in samples] == [None, "2"]


def test_keys_are_labels_of_their_own() -> None:
    keys = (("$comm", "a"), ("probe", "b"), ("req->len", 1), ("req.len", 2), ("5", 3), ("le", 4), ("->", 6))
    (sample,) = families(Measure(READ, "count", Number(1), "count", keys))["optprobe_count"].samples
    assert sample.labels == {
        "probe": "1", "place": "vfs_read", "action": "count", "comm": "a", "key_probe": "b", "req_len": "1",
        "req_len_2": "2", "key_5": "3", "key_le": "4", "key": "6",
    }  # fmt: skip


def test_hostile_names_forge_no_sample() -> None:
    samples = [one for family in families(*hostile().measures).values() for one in family.samples]
    assert len(samples) == len(NASTY)
    assert [one.labels["place"] for one in samples] == [name or "f" for name in NASTY]
    # Label names are derived, label values are exact.
    assert all(set(NASTY) <= {*one.labels.values(), ""} for one in samples)


def rows(recording: Recording) -> list[dict[str, str]]:
    text = exported_csv.encode(recording).decode()
    assert text.count("\r\n") == text.count("\n")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_a_row_of_each_thing() -> None:
    found = rows(WHOLE)
    kinds = [one["type"] for one in found]
    assert kinds.count("call") == 6 and kinds.count("event") == 4 and kinds.count("stack") == 2
    assert kinds.count("hist") == 4 and kinds.count("count") == 3, "a bucket that is empty has none"
    call = next(one for one in found if one["place"] == "rw_verify_area")
    assert (call["time_ns"], call["duration_ns"], call["$comm"], call["value"]) == ("1000001000", "300", "dd", "")
    bounds = [(one["low"], one["high"], one["value"]) for one in found if one["type"] == "hist"]
    assert bounds[-1] == ("1024", "2048", "1")
    event = next(one for one in found if one["text"].startswith("name="))
    assert event["name (value)"] == 'a, "b";c', "a value of the name of a fixed column has a column of its own"
    assert {one["type"]: one["value"] for one in found if one["type"].startswith("avg")} == {
        "avg_count": "4", "avg_sum": "1500000001",
    }  # fmt: skip
    assert next(one for one in found if one["type"] == "sum")["value"] == "-5", "a number is no formula"
    last = next(one for one in found if one["type"] == "value")
    assert (last["name"], last["probe"], last["place"]) == ("'@last", "", "")


def test_no_text_is_a_formula_in_a_spreadsheet() -> None:
    text = exported_csv.encode(hostile()).decode()
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert {"'=1+1", "'-", "'@x"} <= {*cells}
    assert len({len(row) for row in csv.reader(io.StringIO(text, newline=""))}) == 1
