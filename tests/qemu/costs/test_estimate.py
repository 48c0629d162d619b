"""The cost of a hit: what is measured and what is the instructions' share."""

from __future__ import annotations

import pytest

from qemu.costs.estimate import cost
from qemu.costs.measure import Reading

BASE = (1873.75, 1873.8, 1873.5)
UNPROBED = [Reading(1390, 0, 0, seconds, seconds) for seconds in (4.9e-6, 5.0e-6, 5.1e-6)]


def test_few_instructions_are_a_share_of_the_unprobed_time() -> None:
    found = cost("optimized", [Reading(1392, 0, 0, seconds, seconds) for seconds in (4.7e-6, 5.1e-6)], UNPROBED)
    assert found.instructions == 2
    assert found.estimated
    assert found.seconds == pytest.approx(2 * 5.0e-6 / 1390)


def test_what_the_guest_does_beside_it_in_some_runs_is_not_of_a_hit() -> None:
    """As it was measured: 1,873.5 a read and, where more of the guest's own work was in the run, 1,873.75."""
    base, other = (
        [Reading(count, 0, 0, 5e-6, 5e-6) for count in counts] for counts in (BASE, [1898.75, 1898.5, 1898.8])
    )
    assert cost("a return", other, base).instructions == 25


def test_what_is_clearly_above_the_noise_is_measured() -> None:
    found = cost("event", [Reading(2140, 0, 0, 9.0e-6, 9.0e-6)] * 2, UNPROBED)
    assert found.instructions == 750
    assert not found.estimated
    assert found.seconds == pytest.approx(4.0e-6)


def test_a_stop_makes_the_guests_clock_jump_so_instructions_are_unknown() -> None:
    found = cost("breakpoint", [Reading(4_000_000, 2, 12, 0.008, 0.009)], UNPROBED)
    assert found.instructions is None
    assert (found.stops, found.packets) == (2, 12)
    assert not found.estimated


def test_a_stop_of_somebody_elses_in_a_long_run_is_no_stop_of_a_hit() -> None:
    assert cost("optimized", [Reading(1392, 0.00001, 0.0001, 5e-6, 5e-6)], UNPROBED).instructions == 2
