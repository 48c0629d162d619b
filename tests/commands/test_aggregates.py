"""What actions gathered, as text and for JSON."""

from __future__ import annotations

from gdb_optprobe.commands.aggregates import lines
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Linear, Powers, initial, update
from gdb_optprobe.probes.views import ObjectView, RowView


def of(kind: Powers, *values: int) -> tuple[int, ...]:
    words = initial(kind)
    for each in values:
        words = update(kind, words, each)
    return words


def test_a_histogram_goes_from_its_first_filled_bucket_to_its_last() -> None:
    view = ObjectView("hist(n)", Powers(False), (RowView((), of(Powers(False), 1, 4096, 4097, 9000)),))
    shown = lines(view)
    assert shown[0] == "hist(n):"
    assert [line.split()[0] for line in shown[1:3]] == ["[1]", "[2,"]
    assert "[4K, 8K)" in shown[-2] and "| " not in shown[-2].split("|")[1]
    assert shown[-2].count("@") == 40 and shown[-1].count("@") == 20
    assert lines(ObjectView("hist(n)", Powers(False), (RowView((), of(Powers(False))),)))[1].strip() == "nothing yet"


def test_keys_are_sorted_by_their_values() -> None:
    rows = (RowView(("dd", 2), (7,), "[dd, 2]"), RowView(("cat", 1), (3,), "[cat, 1]"))
    shown = lines(ObjectView("count by ($comm, $cpu)", Count(), rows, lost=2))
    assert shown == ["count by ($comm, $cpu):", "    [cat, 1]: 3", "    [dd, 2]: 7", "    (2 values found no room)"]
    assert lines(ObjectView("count by $pid", Count(), ())) == ["count by $pid: nothing yet"]


def test_a_time_has_its_unit() -> None:
    view = ObjectView("latency", Powers(False), (RowView((), of(Powers(False), 4096, 1 << 17, 1 << 33)),), unit="ns")
    shown = lines(view)
    assert [line.split()[:2] for line in (shown[1], shown[6], shown[-1])] == [
        ["[4.1us,", "8.19us)"], ["[131us,", "262us)"], ["[8.59s,", "17.2s)"]
    ]  # fmt: skip
    assert lines(ObjectView("max($elapsed)", Greatest(False), (RowView((), (1500, 1)),), unit="ns")) == [
        "max($elapsed): 1500ns"
    ]
    keyed = ObjectView("avg($elapsed) by $comm", Average(False), (RowView(("dd",), (2, 3000), "[dd]"),), unit="ns")
    assert lines(keyed)[1] == "    [dd]: 1500ns"
    linear = ObjectView("l", Linear(0, 3000, 1500, True), (RowView((), (0, 1, 0, 0)),), unit="ns")
    assert lines(linear)[1].split()[:2] == ["[0ns,", "1500ns)"]
