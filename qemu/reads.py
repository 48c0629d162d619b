"""A workload of known size: a program in the guest that reads one byte so many times, and its measured cost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .costs.measure import Reading, each, least
from .debugger import Debugger
from .guest import Guest
from .processes import cpu_seconds
from .rsp_proxy import RspProxy

__all__ = ["STARTS", "Reads"]

SCRIPT = "/r"
# The kernel's own clock, in nanoseconds. The file is in its first lines, but its cost does not count: see `each`.
PROGRAM = (
    "now() { T=$(sed -n \"3{s/now at //;s/ nsecs//;p;q}\" /proc/timer_list); }",
    "now; A=$T",
    "{workload}",
    "now; echo $((T - A))",
)
READ = "dd if=/dev/zero of=/dev/null bs=1 count=$1 2>/dev/null"
# The guest's init reads its commands byte by byte, and each byte is a hit: all commands are of one length.
WIDTH = 9
STARTS = 5
"""Runs of one read: of the 1.6 million instructions that programs take to start, 140,000 more in every fifth."""
TIMEOUT = 300.0


class Reads:
    """Reads in `guest`, which `debugger` has attached to through `proxy`; or another workload of $1 events."""

    def __init__(self, guest: Guest, debugger: Debugger, proxy: RspProxy, workload: str = READ) -> None:
        self._guest = guest
        self._debugger = debugger
        self._proxy = proxy
        lines = " ".join(f"'{line.replace('{workload}', workload)}'" for line in PROGRAM)
        self.guest(f"printf '%s\\n' {lines} > {SCRIPT}")

    def guest(self, command: str) -> str:
        """Run a command in the guest while GDB lets it run, and return its output."""
        return self._debugger.running(lambda: self._guest.check(command, TIMEOUT))

    def measure(self, reads: int) -> Reading:
        """Return the cost of one read of `reads`: vfs_read is called once for each."""
        return each(least([self._run(1) for _ in range(STARTS)]), self._run(1 + reads), reads)

    def repeat(self, reads: int, times: int, first: str = "") -> list[Reading]:
        """Measure several times. first: a command for the debugger before each."""
        found = []
        for _ in range(times):
            if first:
                self._debugger(first)
            found.append(self.measure(reads))
        return found

    def best(self, reads: int, times: int) -> Reading:
        """Return the measurement of the least disturbed runs: for host times on a busy machine."""
        short, long = ([self._run(count) for _ in range(times)] for count in (1, 1 + reads))
        return each(least(short), least(long), reads)

    def wall(self, reads: int, times: int) -> float | None:
        """Return the host's seconds of one read, by the least disturbed runs; None where they are not clearly more than
        what runs of no reads differ by.
        """
        short, long = ([self._run(count).wall for _ in range(times)] for count in (1, 1 + reads))
        return clear_difference(short, long, reads)

    def _run(self, reads: int) -> Reading:
        pids = (self._guest.pid, self._debugger.pid)
        before, cpu, start = self._proxy.count(), cpu_seconds(pids), time.monotonic()
        printed = self.guest(f"sh {SCRIPT} {reads:<{WIDTH}}")
        wall, used, through = time.monotonic() - start, cpu_seconds(pids) - cpu, self._proxy.count() - before
        return Reading(int(printed), through.stops, through.packets, used, wall)


def clear_difference(short: Sequence[float], long: Sequence[float], reads: int) -> float | None:
    """Return what each of so many reads takes: runs with them are `long`. None where that is below the noise."""
    took = min(long) - min(short)
    return took / reads if took > max(short) - min(short) else None
