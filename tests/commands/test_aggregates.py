"""What actions gathered, as text and for JSON."""

from __future__ import annotations

from gdb_optprobe.commands.aggregates import buckets, lines, value
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, Powers, Sum, initial, update
from gdb_optprobe.probes.views import ObjectView, RowView

MINUS = 2**64 - 7


def of(kind: Powers | Linear | Average, *values: int) -> tuple[int, ...]:
    words = initial(kind)
    for each in values:
        words = update(kind, words, each)
    return words


def test_numbers() -> None:
    assert value(Count(), (3,)) == 3
    assert value(Sum(True), (MINUS,)) == -7 and value(Sum(False), (MINUS,)) == MINUS
    assert value(Least(True), (MINUS, 1)) == -7
    assert value(Greatest(False), initial(Greatest(False))) is None
    assert value(Average(True), of(Average(True), MINUS, 2)) == -2, "as C divides"
    assert value(Average(True), (0, 0)) is None


def test_buckets_hold_the_values_that_are_counted_in_them() -> None:
    for kind in (Powers(True), Powers(False), Linear(10, 50, 20, False), Linear(-20, 20, 10, True)):
        for each in (0, 1, 2, 3, 9, 10, 29, 30, 49, 50, 4096, 2**40, MINUS):
            exact = each - 2**64 if kind.signed and each == MINUS else each
            (found,) = [bucket for bucket in buckets(kind, of(kind, each)) if bucket.count]
            assert found.low is None or found.low <= exact
            assert found.high is None or exact < found.high


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
