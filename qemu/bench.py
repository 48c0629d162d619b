"""What a hit of a probe costs, tier by tier, and what Linux's own probes and GDB's breakpoints cost beside it.

One function of the stock kernel, vfs_read, in one guest on one virtual CPU under -icount, where guest time is
guest instructions. GDB is attached during every run, through a relay that counts its packets.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from gdb_optprobe.costs.estimate import Cost, cost
from gdb_optprobe.costs.measure import Reading
from gdb_optprobe.costs.table import as_json, table
from qemu.cache import say
from qemu.channel import ChannelError
from qemu.debian import FetchError
from qemu.debugger import Debugger, DebuggerError
from qemu.guest import Guest, GuestError, Options
from qemu.processes import ending_on_signals
from qemu.reads import Reads
from qemu.relay import Relay

FUNCTION = "vfs_read"
BEHIND = f"{FUNCTION}+5"
"""The instruction after the site of the function tracer: a `push`."""
TRACING = "/sys/kernel/tracing"
SWITCH = "/proc/sys/debug/kprobes-optimization"
TARGET = 6
NOTES = """\
Each figure is that of one hit, above a run without a probe.
  instructions  of the guest (-icount shift=0,sleep=off; {append}); "-": it was stopped
  stops         of the whole guest; packets: between GDB and QEMU, both ways
  µs            of the host's processor, QEMU and GDB together; "~": not clearly above the
                clock's noise, so the instructions' share of an unprobed read's {read:.1f} µs; ratio: of µs"""


def main() -> int:
    arguments = parser().parse_args()
    ending_on_signals()
    try:
        return bench(arguments)
    except (GuestError, ChannelError, FetchError, DebuggerError, ValueError, OSError) as error:
        say(str(error))
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    top.add_argument("--quick", action="store_true", help="fewer hits: less exact, a quarter of the time")
    top.add_argument("--json", action="store_true", help="JSON lines")
    top.add_argument(
        "--append",
        default="mitigations=off",
        metavar="TEXT",
        help="added to the guest's command line (default: mitigations=off, which favours Linux's own probes)",
    )
    return top


def bench(arguments: argparse.Namespace) -> int:
    say("booting a guest whose clock counts instructions, about ten seconds")
    options = Options(icount="shift=0,sleep=off", append=arguments.append)
    with (
        Guest.start(options) as guest,
        Relay(guest.gdb_socket) as relay,
        Debugger(relay.path) as debugger,
    ):
        table_of = Bench(Reads(guest, debugger, relay), debugger, arguments.quick)
        costs = table_of.all()
        if guest.problems():
            raise GuestError("the guest is ill:\n" + "\n".join(guest.problems()))
    if arguments.json:
        for line in as_json(costs, table_of.optimized):
            print(json.dumps(line))
    else:
        print("\n".join(table(costs, table_of.optimized)))
        print()
        print(NOTES.format(append=arguments.append, read=table_of.read * 1e6))
        print(verdict(table_of.optimized, costs))
    return 0


def verdict(optimized: Cost, costs: list[Cost]) -> str:
    """The target of the project beside what Linux needs."""
    own = next(cost for cost in costs if cost.name == LINUX_OPTIMIZED)
    took, theirs = optimized.instructions or 0.0, own.instructions or 0.0
    met = "met" if took <= TARGET else "MISSED"
    return (
        f"\nTarget, at most {TARGET} instructions for an optimized count at a function's entry: {met}, {took:.1f}. "
        f"Linux's optimized event: {theirs:.0f}."
    )


LINUX_OPTIMIZED = "Linux's event, optimized"


class Bench:
    """The rows of the table, in its order."""

    def __init__(self, reads: Reads, debugger: Debugger, quick: bool) -> None:
        self._reads = reads
        self._debugger = debugger
        self._running, self._stopping, self._times = (100_000, 20, 2) if quick else (300_000, 50, 3)
        self._unprobed: list[Reading] = []
        self.optimized = Cost("", None, 0, 0, 0)

    @property
    def read(self) -> float:
        """Host seconds of an unprobed read."""
        return sorted(one.seconds for one in self._unprobed)[len(self._unprobed) // 2]

    def all(self) -> list[Cost]:
        self._unprobed = self._measure("no probe", self._running)
        self.optimized = self._row("optimized", self._ours(FUNCTION, "optimized"), self._running)
        return [
            cost("no probe", self._unprobed, self._unprobed),
            self._row("GDB's break … if", self._gdbs, self._stopping),
            self._row("breakpoint", self._ours(FUNCTION, "breakpoint"), self._stopping),
            self._row("boosted", self._ours(FUNCTION, "boosted"), self._stopping),
            self._row("emulated", self._ours(BEHIND, "emulated"), self._stopping),
            self.optimized,
            self._row("optimized, behind it", self._ours(BEHIND, "optimized"), self._running),
            self._row("Linux's event, int3", lambda: self._event(BEHIND, False), self._running),
            self._row("Linux's event, ftrace", lambda: self._event(FUNCTION, True), self._running),
            self._row(LINUX_OPTIMIZED, lambda: self._event(BEHIND, True), self._running),
        ]

    def _row(self, name: str, probe: Probed, reads: int) -> Cost:
        with probe():
            return cost(name, self._measure(name, reads), self._unprobed)

    def _measure(self, name: str, reads: int) -> list[Reading]:
        say(f"{name}: {self._times} × {reads:,} hits")
        return self._reads.repeat(reads, self._times)

    def _ours(self, location: str, tier: str) -> Probed:
        @contextmanager
        def probed() -> Iterator[None]:
            self._debugger(f"optprobe add {location} -tier {tier}")
            # A branch over several instructions waits until nobody is inside.
            self._debugger("optprobe commit")
            where = json.loads(self._debugger("optprobe list -json"))
            if where[0]["tier"] != tier or where[0]["state"] != "armed":
                raise DebuggerError(f"{location} is {where[0]['tier']} and {where[0]['state']}, not {tier}")
            yield
            self._debugger("optprobe delete")

        return probed

    @contextmanager
    def _gdbs(self) -> Iterator[None]:
        # A read of so many bytes does not occur.
        self._debugger(f"break *{FUNCTION} if $rdx == 4321")
        yield
        self._debugger("delete")

    @contextmanager
    def _event(self, location: str, optimization: bool) -> Iterator[None]:
        guest = self._reads.guest
        guest(f"echo {int(optimization)} > {SWITCH}")
        guest(f"echo 'p:bench/reads {location}' > {TRACING}/kprobe_events")
        guest(f"echo 1 > {TRACING}/events/bench/reads/enable")
        tag = "FTRACE" if location == FUNCTION else "OPTIMIZED" if optimization else ""
        self._wait_for(tag)
        yield
        guest(f"echo 0 > {TRACING}/events/bench/reads/enable")
        guest(f"echo > {TRACING}/kprobe_events; echo > {TRACING}/trace; echo 1 > {SWITCH}")

    def _wait_for(self, tag: str) -> None:
        """Until Linux says how it armed the probe."""
        deadline = time.monotonic() + 20
        while True:
            known = self._reads.guest("cat /sys/kernel/debug/kprobes/list; sleep 0.1")
            if f"[{tag}]" in known if tag else known.strip() and "[" not in known:
                return
            if time.monotonic() > deadline:
                raise GuestError(f"Linux did not arm its probe as [{tag}]: {known.strip()}")


Probed = Callable[[], AbstractContextManager[None]]


if __name__ == "__main__":
    sys.exit(main())
