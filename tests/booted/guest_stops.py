"""Sourced into GDB by tests: `guest-stops COUNT [FUNCTION…]` stops the guest COUNT times and tells whom it sees.

The last line printed is JSON: how many stops failed and why, how often an enumeration read memory, the threads that
every stop saw, and for each FUNCTION the threads that every stop saw inside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.debugger.machine import GdbMachine
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
        failures, reads = [], []
        machine = Counted(attachment.machine)
        threads: list[set[int]] = []
        inside: dict[str, list[set[int]]] = {name: [] for name in functions}
        for stop in range(int(count)):
            run_for(SHORTEST + STEP * (stop % STEPS))
            linux.forget()
            before = machine.reads
            try:
                saved = list(linux.saved())
            except OptprobeError as error:
                failures.append(str(error))
                continue
            reads.append(machine.reads - before)
            threads.append({pid for each in saved for pid in pids(each.owner)})
            found = busy(ranges.values(), saved)
            for name, where in ranges.items():
                inside[name].append({pid for each in found if each.where == where for pid in pids(each.owner)})
        result = {
            "failures": failures,
            "reads": sorted(reads),
            "threads": sorted(set.intersection(*threads)),
            "inside": {name: sorted(set.intersection(*seen)) for name, seen in inside.items()},
        }
        gdb.write(json.dumps(result) + "\n")


class Counted:
    """Counts what is read of the guest's memory, from now on."""

    def __init__(self, machine: GdbMachine) -> None:
        self.reads = 0
        for name in ("read_virtual", "read_physical"):
            setattr(machine, name, self._counted(getattr(machine, name)))

    def _counted(self, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        def counted(address: int, size: int) -> bytes:
            self.reads += 1
            return read(address, size)

        return counted


def pids(who: str) -> list[int]:
    """Idle tasks have 0."""
    return [int(pid) for pid in re.findall(r"^thread (\d+) ", who)]


def bounds(symbols: object, name: str) -> tuple[int, int]:
    address = symbols.address(name)  # type: ignore[attr-defined]
    start, end = symbols.function_bounds(address)  # type: ignore[attr-defined]
    return start + 1, end


GuestStops()
