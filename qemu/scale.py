"""Time the commands on probes by the hundred and the thousand, and the guest's own function tracer on as many.

Both take the functions of one glob in turns, in one guest: a tracer's site holds our branch or its own call.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from .debugger import Debugger
from .guest import Guest, GuestError
from .rsp_proxy import RspProxy

__all__ = ["SIZES", "WHOLE", "Line", "Scale", "as_json", "glob_of", "report"]

SIZES = (100, 1_000, 10_000)
"""Functions, about."""
WHOLE = "*"
"""The glob of every function."""
ROUNDS = 3
"""Of the tracer, of which the fastest counts."""
LONGEST = 1800.0
"""Seconds of a command."""
TRACING = "/sys/kernel/tracing"
SESSION = "python from gdb_optprobe.debugger.attach import current_session"
SITES = f"{WHOLE} with a site"
"""The functions that the guest's tracer can trace: a row of their own, since all others are planned one by one."""
ONLY_SITES = (
    f"{SESSION}; session = current_session(); places = session.target.debugger.locations; resolve = places.resolve; "
    f"sites = frozenset(session.target.guest.idle_sites(resolve('{WHOLE}', True)).addresses); "
    "places.resolve = lambda *asked: tuple(at for at in resolve(*asked) if at in sites)"
)
ALL_AGAIN = "python del places.resolve"
MEMORY = "python arena = current_session().optimizer.arena; print(arena.code.used, arena.data.used)"
ADD, AGAIN, DELETE, ON, OFF = "add", "add again", "delete", "tracer on", "tracer off"
COMMANDS = ("list", "report", DELETE, AGAIN, DELETE)
RETURNS = "-return do latency"
BESIDE = {ADD: ON, AGAIN: ON, DELETE: OFF}
NOTES = """\
seconds        of the host, from a command to the end of what it prints
packets        between GDB and QEMU, both ways, for each probe
code, data     bytes of the guest's memory, for each probe
× the tracer's seconds, as a multiple of those in which the guest switches its tracer on or off
tracer on      its filter is written, and its site at each function becomes a call; those without a site it leaves out;
               the fastest of 3 rounds, less that of a command that does nothing
The first add of functions without a site in a boot plans them; the second knows their plans. The row of those with a
site is measured by itself: the others are not among them."""
_ADDED = re.compile(r"(\d+) addresses, (\d+) optimized")


@dataclass(frozen=True, slots=True)
class Line:
    """A command on `probes` probes on the functions of `glob`. packets: in all; None where GDB has no part in it.

    code, data: bytes of the guest's memory that the probes take; None where it adds none.
    """

    glob: str
    probes: int
    what: str
    seconds: float
    packets: int | None = None
    code: int | None = None
    data: int | None = None


class Scale:
    """The experiment in a guest that runs under no other tracer."""

    def __init__(
        self, guest: Guest, debugger: Debugger, proxy: RspProxy | None, say: Callable[[str], object]
    ) -> None:
        """proxy: what the packets pass through, to be counted."""
        self._guest, self._debugger, self._proxy, self._say = guest, debugger, proxy, say

    def run(self, sizes: Sequence[int] = SIZES, whole: bool = True) -> Iterator[Line]:
        """Yield what each command took, for a glob of about as many functions as each of `sizes`, and for all."""
        self._debugger(SESSION)
        self._debugger("set optprobe max-probes 65536")
        # The first probe reads the kernel's symbols and tables: scripts/first-contact measures that. The first trapped
        # one brings what handles traps, which stays.
        for first in ("optprobe add vfs_read", "optprobe add vfs_read -tier trapped"):
            self._debugger(first)
            self._debugger("optprobe delete")
        self._debugger("optprobe commit")
        listed = self._in_guest(f"cat {TRACING}/available_filter_functions")[1].splitlines()
        names = sorted(name for name in listed if " " not in name)
        for glob in [*(glob_of(names, size) for size in sizes), *([WHOLE] if whole else [])]:
            lines = list(self._of(glob))
            yield from lines
            yield from self._tracer(glob, lines[0].probes)
        if whole:
            self._debugger(ONLY_SITES)
            yield from self._of(WHOLE, SITES)
            self._debugger(ALL_AGAIN)
            yield from self._of(f"{WHOLE} {RETURNS}")

    def _of(self, glob: str, called: str = "") -> Iterator[Line]:
        """glob: with what `add` has behind it. called: in the lines, where that is something else."""
        self._say(f"{glob}: probes")
        self._debugger("optprobe commit")
        before = self._memory()
        took, packets, printed = self._timed(f"optprobe add -glob {glob}")
        code, data = (now - then for now, then in zip(self._memory(), before, strict=True))
        found = _ADDED.search(printed)
        if found is None:
            raise GuestError(f"nothing was added for {glob}:\n{printed[:2000]}")
        probes = int(found[2])
        yield Line(called or glob, probes, ADD, took, packets, code, data)
        for what in COMMANDS:
            took, packets, _ = self._timed(f"optprobe add -glob {glob}" if what == AGAIN else f"optprobe {what}")
            yield Line(called or glob, probes, what, took, packets)

    def _tracer(self, glob: str, probes: int) -> Iterator[Line]:
        self._say(f"{glob}: the tracer")
        on = f"cd {TRACING}; echo '{glob}' > set_ftrace_filter && echo function > current_tracer"
        off = f"cd {TRACING}; echo nop > current_tracer && echo > set_ftrace_filter"
        rounds = [[self._in_guest(command)[0] for command in ("true", on, off)] for _ in range(ROUNDS)]
        nothing, *took_by_tracer = map(min, zip(*rounds, strict=True))
        for what, seconds in zip((ON, OFF), took_by_tracer, strict=True):
            yield Line(glob, probes, what, max(0.0, seconds - nothing))

    def _timed(self, line: str) -> tuple[float, int, str]:
        """Return the seconds, packets and output of a line to GDB."""
        before, start = self._packets(), time.monotonic()
        printed = self._debugger(line, LONGEST)
        return time.monotonic() - start, self._packets() - before, printed

    def _memory(self) -> tuple[int, int]:
        """Return how many bytes of code and of data are in use."""
        code, data = map(int, self._debugger(MEMORY).split())
        return code, data

    def _packets(self) -> int:
        return self._proxy.count().packets if self._proxy is not None else 0

    def _in_guest(self, command: str) -> tuple[float, str]:
        def work() -> tuple[float, str]:
            start = time.monotonic()
            printed = self._guest.check(command, LONGEST)
            return time.monotonic() - start, printed

        return self._debugger.running(work)


def glob_of(names: Sequence[str], size: int) -> str:
    """Return the glob, of a prefix or of a range of first letters, that matches nearest to `size` of sorted `names`."""

    def count(first: str, last: str) -> int:
        return bisect_left(names, f"{last}\x7f") - bisect_left(names, first)

    firsts = sorted({name[0] for name in names if name[0].islower()})
    globs = {f"[{firsts[0]}-{last}]*": count(firsts[0], last) for last in firsts[1:]}
    whole = [name for name in names if "." not in name]
    for length in range(1, 6):
        globs |= {f"{prefix}*": count(prefix, prefix) for prefix in {name[:length] for name in whole}}
    return min(globs, key=lambda glob: (abs(globs[glob] - size), glob))


def report(lines: Sequence[Line]) -> list[str]:
    """Return the table."""
    rows = [("probes", "glob", "", "seconds", "µs a probe", "packets", "× the tracer's", "code", "data")]
    for line, beside in zip(lines, _beside(lines), strict=True):
        packets = "-" if line.packets is None else f"{line.packets / line.probes:.2f}"
        each = f"{line.seconds / line.probes * 1e6:,.0f}"
        ratio = "" if beside is None else f"{beside:.1f}"
        code, data = ("" if size is None else f"{size / line.probes:.1f}" for size in (line.code, line.data))
        rows.append((f"{line.probes:,}", line.glob, line.what, f"{line.seconds:.2f}", each, packets, ratio, code, data))
    sides = ">" + "<" * 2 + ">" * 6
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)]
    return [*("  ".join(forms).format(*row).rstrip() for row in rows), "", NOTES]


def as_json(lines: Sequence[Line]) -> list[dict[str, object]]:
    """Return the lines as objects, with the multiple of the tracer's seconds."""
    return [asdict(line) | {"ratio": beside} for line, beside in zip(lines, _beside(lines), strict=True)]


def _beside(lines: Sequence[Line]) -> Iterator[float | None]:
    """Yield each line's seconds as a multiple of the tracer's for the same; None where it does nothing like it."""
    tracers = {(line.glob, line.what): line.seconds for line in lines}
    for line in lines:
        glob = WHOLE if line.glob == SITES else line.glob
        seconds = tracers.get((glob, BESIDE.get(line.what, "")))
        yield line.seconds / seconds if seconds else None
