"""What a hit of an optimized probe costs, counted by the guest's own clock; and a row of the bench that stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gdb_optprobe.costs.estimate import cost
from qemu.debugger import Debugger
from qemu.guest import Guest, Options
from qemu.reads import Reads
from qemu.relay import Relay

MANY, FEW = 50_000, 20


@pytest.fixture(scope="module")
def debugger_and_reads() -> Iterator[tuple[Debugger, Reads]]:
    with (
        Guest.start(Options(icount="shift=0,sleep=off", append="mitigations=off")) as guest,
        Relay(guest.gdb_socket) as relay,
        Debugger(relay.path) as debugger,
    ):
        yield debugger, Reads(guest, debugger, relay)
        assert guest.problems() == []


def test_an_optimized_count_at_a_functions_entry_takes_at_most_six_instructions(
    debugger_and_reads: tuple[Debugger, Reads],
) -> None:
    debugger, reads = debugger_and_reads
    unprobed = reads.repeat(MANY, 2)
    debugger("optprobe add vfs_read")
    found = cost("optimized", reads.repeat(MANY, 2), unprobed)
    debugger("optprobe delete")
    assert found.stops == pytest.approx(0, abs=0.001)
    assert found.instructions is not None
    # Two; the timer's ticks make the rest of what is seen.
    assert found.instructions <= 6


@pytest.mark.parametrize(("location", "tier", "stops"), [("vfs_read", "breakpoint", 2), ("vfs_read+5", "emulated", 1)])
def test_stops_of_a_hit(debugger_and_reads: tuple[Debugger, Reads], location: str, tier: str, stops: int) -> None:
    debugger, reads = debugger_and_reads
    debugger(f"optprobe add {location} -tier {tier}")
    found = reads.measure(FEW)
    debugger("optprobe delete")
    assert found.stops == pytest.approx(stops, abs=0.5)
    assert found.packets > 2 * stops
