"""The pause between two looks at the rings follows how full they were."""

from __future__ import annotations

import pytest

from gdb_optprobe.probes.follower import FIRST, LONGEST, SHORTEST, Follower, Pause
from gdb_optprobe.probes.new_records import Drained


@pytest.mark.parametrize(
    ("fullness", "pause"),
    [(0.0, 2 * FIRST), (0.1, 2 * FIRST), (0.5, FIRST), (1.0, FIRST / 2), (1000.0, SHORTEST)],
)
def test_rings_are_to_be_half_full(fullness: float, pause: float) -> None:
    assert Follower(lambda: Drained(fullness=fullness), clock=lambda: 0)() == pytest.approx(pause)


def test_idle_guests_are_stopped_seldom_and_busy_ones_get_half_of_the_time() -> None:
    idle = Follower(Drained, clock=lambda: 0)
    assert [idle() for _ in range(5)][-1] == LONGEST
    times = iter((0.0, 3.0))
    assert Follower(lambda: Drained(1, 2, 1000.0), clock=lambda: next(times))() == 3.0


def test_what_was_taken_is_counted() -> None:
    follower = Follower(lambda: Drained(1, 2, 0.5))
    follower(), follower()
    assert (follower.records, follower.lost) == (2, 4)


def test_while_the_guest_runs_the_ring_fills_up_and_looks_come_when_it_is_half_full() -> None:
    """At the same rate each time: 5 % in FIRST seconds."""
    pause, fullness = Pause(), 0.0
    pauses = []
    for _ in range(12):
        fullness += 0.05 * pause.seconds / FIRST
        pause.look(fullness, runs=True)
        pauses.append(pause.seconds)
    assert pauses[:8] == [FIRST] * 8, "never longer"
    assert max(abs(one - FIRST) for one in pauses[:8]) < 1e-9 and pauses[-1] < FIRST / 2
    pause.look(0.5)
    assert pause.seconds > pauses[-1], "it is empty now"
