"""Sourced into GDB by tests: `guest-stops COUNT [FUNCTION…]` stops the guest COUNT times and tells whom it sees.

The last line printed is JSON: how many stops failed and why, how long an enumeration took, the threads that every
stop saw, and for each FUNCTION the threads that every stop saw inside it.
"""

from __future__ import annotations

import json
import re
import time

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.debugger.running import run_for
from gdb_optprobe.detours.quiescence import busy
from gdb_optprobe.errors import OptprobeError

SHORTEST, STEP, STEPS = 0.03, 0.0013, 17  # seconds, so that stops fall anywhere within a tick


class GuestStops(gdb.Command):
    """Stop again and again, and enumerate all saved PCs each time."""

    def __init__(self) -> None:
        super().__init__("guest-stops", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        count, *functions = argument.split()
        current_session()
        attachment = attachments.current
        assert attachment is not None and attachment.linux is not None
        linux = attachment.linux
        ranges = {name: bounds(linux.kernel.symbols, name) for name in functions}
        failures, times = [], []
        threads: list[set[int]] = []
        inside: dict[str, list[set[int]]] = {name: [] for name in functions}
        for stop in range(int(count)):
            run_for(SHORTEST + STEP * (stop % STEPS))
            linux.forget()
            begin = time.monotonic()
            try:
                saved = list(linux.saved())
            except OptprobeError as error:
                failures.append(str(error))
                continue
            times.append(time.monotonic() - begin)
            threads.append({pid for each in saved for pid in pids(each.who)})
            found = busy(ranges.values(), saved)
            for name, where in ranges.items():
                inside[name].append({pid for each in found if each.where == where for pid in pids(each.who)})
        result = {
            "failures": failures,
            "seconds": sorted(times),
            "threads": sorted(set.intersection(*threads)),
            "inside": {name: sorted(set.intersection(*seen)) for name, seen in inside.items()},
        }
        gdb.write(json.dumps(result) + "\n")


def pids(who: str) -> list[int]:
    """Idle tasks have 0."""
    return [int(pid) for pid in re.findall(r"^thread (\d+) ", who)]


def bounds(symbols: object, name: str) -> tuple[int, int]:
    address = symbols.address(name)  # type: ignore[attr-defined]
    start, end = symbols.function_bounds(address)  # type: ignore[attr-defined]
    return start + 1, end


GuestStops()
