"""What one event cost, from two runs."""

from __future__ import annotations

import pytest

from qemu.costs.measure import Reading, each, least, middle, spread


def test_what_both_runs_share_does_not_count() -> None:
    short = Reading(instructions=2_000_000, stops=3, packets=40, seconds=0.5, wall=1.0)
    long = Reading(instructions=2_139_000, stops=203, packets=1240, seconds=0.7, wall=1.5)
    one = each(short, long, 100)
    assert one.instructions == 1390
    assert one.stops == 2
    assert one.packets == 12
    assert one.seconds == pytest.approx(0.002)
    assert one.wall == pytest.approx(0.005)


def test_runs_of_one_length_say_nothing() -> None:
    with pytest.raises(ValueError, match="more events"):
        each(reading(1), reading(2), 0)


def test_one_disturbed_run_changes_nothing() -> None:
    assert middle([reading(5), reading(500), reading(6)]) == reading(6)


def test_the_least_disturbed_run() -> None:
    assert least([reading(5), reading(500), reading(6)]) == reading(5)


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == 2.0


def reading(value: float) -> Reading:
    return Reading(value, value, value, value, value)
