"""Time how a call graph of a thousand functions is armed: of a kernel that is new, and in a later boot of it.

    boot 1, an empty cache     new kernel   first │ again
    boot 2, the same cache     known kernel first │ again
The seconds are those of GDB's processor, so that a busy host changes little. Where calls through pointers lead is
forgotten between graphs: each is armed with the same functions. Packets are those of two boots more: through a proxy,
GDB's processor takes twice as long for each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .costs.table import aligned
from .debugger import Debugger
from .guest import Guest, GuestError, Options
from .rsp_proxy import RspProxy

__all__ = ["AGAIN", "DEPTH", "FIRST", "KNOWN", "NEW", "ROOT", "Arming", "Line", "as_json", "cache_in", "report"]

ROOT, DEPTH = "do_exit", 4
CACHE = "OPTPROBE_CACHE"
NEW, KNOWN = "new", "known"
FIRST, AGAIN = "first", "again"
NOTES = """\
functions  with a probe; sites: calls through pointers that are watched
kernel     new: nothing of it was kept; known: it was graphed in an earlier boot
graph      the first of the boot, or the one behind it
seconds    of the processor in GDB, from the command until all probes are in
packets    between GDB and QEMU, both ways, of the whole command, with taking the probes out"""
MEASURE = (
    "python import json, time; from gdb_optprobe.probes.graph.run import GraphRun; prepare, armed = "
    "GraphRun.prepare, []; GraphRun.prepare = lambda self: (armed.append(time.process_time()), prepare(self), "
    "armed.append(time.process_time()), armed.extend((len(self.functions.by_number), self.watched)))[0]"
)
TAKEN = "python print(json.dumps(armed)); armed.clear()"
FORGET = (
    "python from gdb_optprobe.debugger.attach import current_session; current_session().learned_calls.clear()"
)
LONGEST = 600.0
"""Seconds of a graph."""


@dataclass(frozen=True, slots=True)
class Line:
    """A graph of a kernel, NEW or KNOWN; FIRST or AGAIN in its boot."""

    kernel: str
    graph: str
    functions: int
    sites: int
    seconds: float
    packets: int


@dataclass(frozen=True, slots=True)
class Arming:
    """The experiment in guests that are booted for it. cache: an empty folder, in place of the user's.

    is_timed: whether two guests are booted for the seconds alone; else they are those through the proxy.
    """

    options: Options
    cache: Path
    say: Callable[[str], None]
    root: str = ROOT
    depth: int = DEPTH
    is_timed: bool = True

    def run(self) -> list[Line]:
        counted = [*self._boots(is_counted=True)]
        timed = [*self._boots(is_counted=False)] if self.is_timed else counted
        return [replace(one, packets=other.packets) for one, other in zip(timed, counted, strict=True)]

    def _boots(self, is_counted: bool) -> Iterator[Line]:
        for kernel in (NEW, KNOWN):
            self.say(f"booting a guest: a {kernel} kernel{', to count packets' if is_counted else ''}")
            with ExitStack() as stack:
                guest = stack.enter_context(Guest.start(self.options))
                proxy = stack.enter_context(RspProxy(guest.gdb_socket)) if is_counted else None
                with cache_in(self.cache / str(int(is_counted))):
                    debugger = stack.enter_context(Debugger(proxy.path if proxy is not None else guest.gdb_socket))
                debugger(MEASURE)
                for graph in (FIRST, AGAIN):
                    yield self._armed(kernel, graph, debugger, proxy)
                if problems := guest.problems():
                    raise GuestError("the guest is ill:\n" + "\n".join(problems))

    def _armed(self, kernel: str, graph: str, debugger: Debugger, proxy: RspProxy | None) -> Line:
        debugger(FORGET)
        before = proxy.count().packets if proxy is not None else 0
        debugger(f"optprobe graph {self.root} -depth {self.depth} -for 0.001", LONGEST)
        packets = proxy.count().packets - before if proxy is not None else 0
        begun, ended, functions, sites = json.loads(debugger(TAKEN))
        return Line(kernel, graph, functions, sites, ended - begun, packets)


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Have a GDB that is started within the block keep what it finds in `folder`."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = before


def report(lines: Sequence[Line]) -> list[str]:
    """Return the table, and what its columns are."""
    table = [["kernel", "graph", "functions", "sites", "seconds", "packets"]]
    for line in lines:
        numbers = f"{line.functions:,}", f"{line.sites:,}", f"{line.seconds:.2f}", f"{line.packets:,}"
        table.append([line.kernel, line.graph, *numbers])
    return [*aligned(table), "", NOTES]


def as_json(lines: Sequence[Line]) -> list[dict[str, object]]:
    return [asdict(line) for line in lines]
