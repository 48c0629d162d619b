"""How the time-difference experiment writes branches and prints what it found."""

from __future__ import annotations

import pytest

from qemu.timediff import Pair, Report, as_json, branch, report

FOUND = Report(
    frequency=512_000_000,
    unprobed=2,
    host=9000.4,
    pairs=(
        Pair("optprobe", 0x50, (20_000.4, 30_000, 40_000), (10, 10, 11), host=True),
        Pair("Linux's", 0x50, (790, 791, 790), None),
    ),
)


# As `powerpc64le-linux-gnu-as` assembles `b .+8` and `b .-4`.
@pytest.mark.parametrize(("start", "target", "word"), [(0x1000, 0x1008, 0x48000008), (0x1000, 0xFFC, 0x4BFFFFFC)])
def test_a_branch(start: int, target: int, word: int) -> None:
    assert branch(start, target) == word


def test_a_row_for_each_fork_and_the_ratio_of_medians() -> None:
    assert report(FOUND)[2:8] == [
        "          optprobe      +0x50      Linux's      +0x50",
        "fork   unoptimized  optimized  unoptimized  optimized",
        "1          20,000*         10          790          -",
        "2          30,000*         10          791          -",
        "3          40,000*         11          790          -",
        "ratio                   3,000                       -",
    ]
    assert "Without a probe it is 2." in "\n".join(report(FOUND))
    assert "Without a probe that is 9,000." in "\n".join(report(FOUND))


def test_lines_for_programs() -> None:
    ours, own = as_json(FOUND)
    assert ours["unoptimized"] == [20_000, 30_000, 40_000] and ours["optimized"] == [10, 10, 11]
    assert (ours["unoptimized_by"], own["unoptimized_by"]) == ("host", "timebase")
    assert own["optimized"] is None and own["location"] == "kernel_clone+0x50"
