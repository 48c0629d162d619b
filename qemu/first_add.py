"""Time the first `add -glob '*'` of a boot: of a kernel that is new, and in later boots of it, with a new GDB in each.

    boot 1, an empty cache     new kernel    first │ again
    boot 2, the same cache     known kernel  first │ again
    …
Processor time is that of GDB and of QEMU, each by itself, so that a busy host changes little.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .arming import AGAIN, FIRST, KNOWN, NEW, cache_in
from .costs.table import aligned
from .debugger import Debugger, DebuggerError
from .guest import Guest, GuestError, Options
from .processes import cpu_seconds

__all__ = ["BOOTS", "FirstAdd", "Line", "as_json", "report"]

GLOB, BOOTS = "*", 3
SETTLED = 3.0
"""Seconds from the end of a boot until its first `add`."""
LONGEST = 1800.0
"""Seconds of an `add`."""
NOTES = f"""\
kernel   new: nothing of it was kept; known: it was probed so in an earlier boot. The second boot proves, once, what
         differs from the first
add      the first of the boot, or the one behind it, when the probes have been deleted
probes   that are in
seconds  of the host, from the command to the end of what it prints
GDB      seconds of the processor in GDB; QEMU: in QEMU. The guest is up for {SETTLED:.0f} s and stopped"""
_ADDED = re.compile(r"(\d+) addresses?, ")


@dataclass(frozen=True, slots=True)
class Line:
    """An `add` to a kernel, NEW or KNOWN; FIRST or AGAIN in its boot. gdb, qemu: seconds of the processor."""

    kernel: str
    add: str
    probes: int
    seconds: float
    gdb: float
    qemu: float


@dataclass(frozen=True, slots=True)
class FirstAdd:
    """The experiment in guests that are booted for it. cache: an empty folder, in place of the user's."""

    options: Options
    cache: Path
    say: Callable[[str], None]
    glob: str = GLOB
    boots: int = BOOTS

    def run(self) -> Iterator[Line]:
        for number in range(self.boots):
            kernel = KNOWN if number else NEW
            self.say(f"booting a guest: a {kernel} kernel")
            with Guest.start(self.options) as guest:
                time.sleep(SETTLED)
                with cache_in(self.cache), Debugger(guest.gdb_socket) as debugger:
                    for add in (FIRST, AGAIN):
                        yield self._added(kernel, add, guest, debugger)
                        debugger("optprobe delete", LONGEST)
                if problems := guest.problems():
                    raise GuestError("the guest is ill:\n" + "\n".join(problems))

    def _added(self, kernel: str, add: str, guest: Guest, debugger: Debugger) -> Line:
        pids = (debugger.pid,), (guest.pid,)
        before, start = [*map(cpu_seconds, pids)], time.monotonic()
        said = debugger(f"optprobe add -glob '{self.glob}'", LONGEST)
        seconds = time.monotonic() - start
        gdb, qemu = (cpu_seconds(of) - was for of, was in zip(pids, before, strict=True))
        if (found := _ADDED.search(said)) is None:
            raise DebuggerError(f"no probes were added:\n{said}")
        return Line(kernel, add, int(found[1]), seconds, gdb, qemu)


def report(lines: Sequence[Line]) -> list[str]:
    """Return the table, and what its columns are."""
    table = [["kernel", "add", "probes", "seconds", "GDB", "QEMU"]]
    for line in lines:
        times = (f"{each:.2f}" for each in (line.seconds, line.gdb, line.qemu))
        table.append([line.kernel, line.add, f"{line.probes:,}", *times])
    return [*aligned(table), "", NOTES]


def as_json(lines: Sequence[Line]) -> list[dict[str, object]]:
    return [asdict(line) for line in lines]
