"""The time-difference experiment, with few forks: what it finds, and that it leaves the guest as it was."""

from __future__ import annotations

from statistics import median

from qemu.debugger import Debugger
from qemu.guest import Guest, Options
from qemu.reads import Reads
from qemu.rsp_proxy import RspProxy
from qemu.timediff import FUNCTION, LINEAR, UNUSED, TimeDifference
from tests.booted.addresses import address_of

FORKS = 3
MOST = 30
"""Instructions of an optimized count that is at no function's entry."""


def words(guest: Guest, function: str) -> str:
    """The first words of a function, and where they are."""
    start = address_of(guest, function)
    with guest.qmp() as control:
        return control.monitor(f"xp /32xw {start - LINEAR:#x}")


def test_the_timebase_before_and_behind_a_probe() -> None:
    options = Options(arch="ppc64le", icount="shift=0,sleep=off", append="mitigations=off")
    with Guest.start(options) as guest, RspProxy(guest.gdb_socket) as proxy, Debugger(proxy.path) as debugger:
        reads = Reads(guest, debugger, proxy)
        before = debugger.running(lambda: [words(guest, name) for name in (FUNCTION, UNUSED)])
        assert all(each.count(" 0x") == 32 for each in before)
        found = TimeDifference(reads, debugger, FORKS).run()
        assert debugger.running(lambda: [words(guest, name) for name in (FUNCTION, UNUSED)]) == before
        assert guest.problems() == []
    # Between the two mftb are the branch back, the instruction and the branch away: four instructions with one mftb.
    instructions = 1e9 / found.frequency
    assert 1 <= found.unprobed <= 3
    ours, same, easy = found.pairs
    assert ours.optimized is not None and len(ours.optimized) == len(ours.unoptimized) == FORKS
    # Both ends of what is measured lie between two ticks.
    assert found.unprobed < median(ours.optimized) <= found.unprobed + MOST / instructions + 1
    assert median(ours.unoptimized) > 1000 * median(ours.optimized)
    assert same.optimized is None, "Linux does not optimize a store"
    assert easy.optimized is not None
    assert median(easy.unoptimized) > median(easy.optimized) > 10 * median(ours.optimized)
