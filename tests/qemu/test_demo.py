"""The demo's figures: what a busy host does not let it tell, it does not tell."""

from __future__ import annotations

from qemu.demo import NOISY, rows_of
from qemu.reads import clear_difference


def test_a_difference_below_the_noise_is_none() -> None:
    assert clear_difference([1.0, 1.5], [3.0, 3.25], 100) == 0.02
    assert clear_difference([1.0, 3.5], [3.0, 9.0], 100) is None
    assert clear_difference([1.0, 1.0], [0.5, 0.75], 100) is None
    assert clear_difference([1.0], [1.0], 100) is None


def test_what_cannot_be_told_has_no_figure_and_no_ratio() -> None:
    took = [("no probe", 1000, 2e-6), ("optimized", 1000, None), ("boosted", 60, 1e-3)]
    assert [*rows_of(took)] == [
        ("no probe", "1,000", "2.00", "1.00"),
        ("optimized", "1,000", NOISY, "-"),
        ("boosted", "60", "1,000", "500"),
    ]
    took[0] = "no probe", 1000, None
    assert [row[2:] for row in rows_of(took)] == [(NOISY, "-"), (NOISY, "-"), ("1,000", "-")]
