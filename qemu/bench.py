"""Measure the cost of a hit in each tier, and that of Linux's own probes and GDB's breakpoints; or of many probes.

One function of the stock kernel, vfs_read, in one guest on one virtual CPU under -icount, where guest time is
guest instructions. GDB is attached during every run, through a proxy that counts its packets.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from . import arming, bpftrace_costs, bpftrace_guest, calls, first_add, graphs, live_view, scale, scale_load, timediff
from .arming import Arming
from .bench_target import BENCH_TARGETS, BREAK, FUNCTION, PROGRAMS, BenchTarget, hits
from .cache import say
from .calls import Calls
from .channel import ChannelError
from .costs.chart import chart
from .costs.estimate import Cost, cost
from .costs.measure import Reading
from .costs.page import page
from .costs.table import as_json, table
from .debian import FetchError
from .debugger import Debugger, DebuggerError
from .first_add import FirstAdd
from .graphs import Graphs
from .guest import Guest, GuestError, Options
from .linux_event import FILTER, TRIGGER, linux_event
from .live_view import LiveView
from .processes import ending_on_signals
from .reads import Reads
from .rsp_proxy import RspProxy
from .scale import Scale
from .scale_load import Load
from .timediff import TimeDifference

NOTES = """\
Each figure is that of one hit, above a run without a probe.
  instructions  of the guest (-icount shift=0,sleep=off; {append}), within some tenths, which its
                own work takes; "-": it was stopped
  stops         of the whole guest; packets: between GDB and QEMU, both ways
  µs            of the host's processor, QEMU and GDB together; "~": not clearly above the
                clock's noise, so the instructions' share of an unprobed read's {read:.1f} µs; ratio: of µs"""


def main() -> int:
    top = parser()
    arguments = top.parse_args()
    if arguments.time_difference and arguments.arch != "ppc64le":
        top.error("the timebase is one of --arch ppc64le")
    own_tables = arguments.scale, arguments.bpftrace, arguments.top, arguments.graph, arguments.arming, arguments.first
    others = arguments.time_difference, arguments.programs, *own_tables
    for option, file in (("--chart", arguments.chart), ("--html", arguments.html)):
        if file and any(others):
            top.error(f"{option} is of the table that none of --programs, --scale and the like prints")
        if file and not file.parent.is_dir():
            top.error(f"{option}: no folder {file.parent}; make it first")
    if arguments.append is None:
        arguments.append = "" if arguments.arming or arguments.first else "mitigations=off"
    ending_on_signals()
    try:
        if arguments.bpftrace:
            return scripts(arguments)
        if arguments.top:
            return viewed(arguments)
        if arguments.arming:
            return armed(arguments)
        if arguments.first:
            return added_first(arguments)
        return many(arguments) if arguments.scale else bench(arguments)
    except (GuestError, ChannelError, FetchError, DebuggerError, ValueError, OSError) as error:
        say(str(error))
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    top.add_argument("--quick", action="store_true", help="fewer hits: less exact, a third of the time")
    top.add_argument("--json", action="store_true", help="JSON lines")
    top.add_argument("--chart", metavar="FILE", type=Path, help="also write the table as a picture, SVG")
    top.add_argument("--html", metavar="FILE", type=Path, help="also write the table as a page for a browser")
    top.add_argument("--arch", default="x86_64", choices=tuple(BENCH_TARGETS), help="architecture (default: x86_64)")
    top.add_argument("--cpu", metavar="MODEL", help="QEMU's -cpu")
    top.add_argument(
        "--time-difference",
        action="store_true",
        help="instead: the timebase before and behind a probe at 20 forks, as the powerpc optprobes series had it",
    )
    top.add_argument(
        "--programs", action="store_true", help="instead: programs that call a function a million times, and its probes"
    )
    top.add_argument(
        "--scale",
        action="store_true",
        help="instead: the commands on many probes, and a load under them, beside the guest's function tracer; "
        "--quick: on up to 1,000",
    )
    top.add_argument(
        "--bpftrace",
        action="store_true",
        help="instead: scripts in bpftrace's language, beside bpftrace itself in the same guest",
    )
    top.add_argument(
        "--top",
        action="store_true",
        help="instead: the guest's throughput while `optprobe top` shows 1,000 probes and 20 maps ten times a second, "
        "beside that without, in 20 pairs of runs; --quick: 5 pairs",
    )
    top.add_argument(
        "--graph",
        action="store_true",
        help="instead: call graphs beside the guest's own function_graph: their trees, and what a call costs",
    )
    top.add_argument(
        "--arming",
        action="store_true",
        help="instead: how long a call graph of a thousand functions takes to be armed, of a kernel that is new and in "
        "a later boot of it, and packets; --quick: of some hundred functions",
    )
    top.add_argument(
        "--first",
        action="store_true",
        help="instead: how long the first `add -glob '*'` of a boot takes, of a kernel that is new and in two later "
        "boots of it; --quick: of functions that begin with v",
    )
    top.add_argument(
        "--append",
        metavar="TEXT",
        help="added to the guest's command line (default: mitigations=off, which favours Linux's own probes; with "
        "--arming and --first nothing: without them calls through pointers are other ones)",
    )
    return top


def bench(arguments: argparse.Namespace) -> int:
    say("booting a guest with a clock that counts instructions, about ten seconds")
    options = Options(arch=arguments.arch, cpu=arguments.cpu, icount="shift=0,sleep=off", append=arguments.append)
    with (
        Guest.start(options) as guest,
        RspProxy(guest.gdb_socket) as proxy,
        Debugger(proxy.path) as debugger,
    ):
        if arguments.programs:
            lines = programs(Calls(guest, debugger, proxy, 100_000 if arguments.quick else 1_000_000), arguments)
        elif arguments.graph:
            lines = call_graphs(Graphs(guest, debugger, proxy, say), arguments)
        else:
            measure = time_difference if arguments.time_difference else costs
            lines = measure(Reads(guest, debugger, proxy), debugger, arguments)
        _check(guest)
    print("\n".join(lines))
    return 0


def many(arguments: argparse.Namespace) -> int:
    """Print what commands on many probes take, in seconds of the host, and then what a load does, in instructions."""
    say("booting a guest")
    options = Options(arch=arguments.arch, append=arguments.append)
    sizes = [size for size in scale.SIZES if size <= 1_000 or not arguments.quick]
    with Guest.start(options) as guest:
        # A proxy takes as long for a packet as QEMU does: the seconds are those of a run without it.
        with Debugger(guest.gdb_socket) as debugger:
            timed = list(Scale(guest, debugger, None, say).run(sizes, not arguments.quick))
        with RspProxy(guest.gdb_socket) as proxy, Debugger(proxy.path) as debugger:
            counted = list(Scale(guest, debugger, proxy, say).run(sizes, not arguments.quick))
        lines = [replace(one, packets=other.packets) for one, other in zip(timed, counted, strict=True)]
        _check(guest)
    options = replace(options, icount="shift=0,sleep=off")
    with Guest.start(options) as guest, Debugger(guest.gdb_socket) as debugger:
        loads = list(Load(guest, debugger, say).run([line.glob for line in lines if line.what == scale.ON]))
        _check(guest)
    if arguments.json:
        print("\n".join(map(json.dumps, [*scale.as_json(lines), *scale_load.as_json(loads)])))
    else:
        print("\n".join([*scale.report(lines), "", *scale_load.report(loads)]))
    return 0


def viewed(arguments: argparse.Namespace) -> int:
    """Print what a live view takes of the guest's throughput."""
    say("booting a guest")
    with (
        Guest.start(Options(arch=arguments.arch, append=arguments.append)) as guest,
        Debugger(guest.gdb_socket) as debugger,
    ):
        view = LiveView(guest, debugger, say)
        pairs = view.run(5 if arguments.quick else 20)
        _check(guest)
    print("\n".join(map(json.dumps, live_view.as_json(pairs)) if arguments.json else live_view.report(pairs, view)))
    return 0


def armed(arguments: argparse.Namespace) -> int:
    """Print what a graph takes until its probes are in."""
    options = Options(arch=arguments.arch, cpu=arguments.cpu, append=arguments.append)
    with tempfile.TemporaryDirectory(prefix="optprobe-") as folder:
        depth = 2 if arguments.quick else arming.DEPTH
        lines = Arming(options, Path(folder), say, depth=depth).run()
    print("\n".join(map(json.dumps, arming.as_json(lines)) if arguments.json else arming.report(lines)))
    return 0


def added_first(arguments: argparse.Namespace) -> int:
    """Print what the first `add` of every function in a boot takes."""
    options = Options(arch=arguments.arch, cpu=arguments.cpu, append=arguments.append)
    with tempfile.TemporaryDirectory(prefix="optprobe-") as folder:
        lines = [*FirstAdd(options, Path(folder), say, "v*" if arguments.quick else first_add.GLOB).run()]
    print("\n".join(map(json.dumps, first_add.as_json(lines)) if arguments.json else first_add.report(lines)))
    return 0


def scripts(arguments: argparse.Namespace) -> int:
    """Print what scripts cost, here and by bpftrace."""
    say("booting a guest that has bpftrace, half a minute")
    options = replace(
        bpftrace_guest.options("bookworm", "6.1 cloud"), icount="shift=0,sleep=off", append=arguments.append
    )
    with Guest.start(options, timeout=bpftrace_guest.TIMEOUT) as guest:
        lines = [*bpftrace_costs.Costs(guest, say).run(2_000 if arguments.quick else 20_000)]
        _check(guest)
    if arguments.json:
        print("\n".join(map(json.dumps, bpftrace_costs.as_json(lines))))
    else:
        print("\n".join(bpftrace_costs.report(lines)))
    return 0


def _check(guest: Guest) -> None:
    """Raises GuestError where it is ill."""
    if problems := guest.problems():
        raise GuestError("the guest is ill:\n" + "\n".join(problems))


def time_difference(reads: Reads, debugger: Debugger, arguments: argparse.Namespace) -> list[str]:
    found = TimeDifference(reads, debugger).run()
    return [json.dumps(line) for line in timediff.as_json(found)] if arguments.json else timediff.report(found)


def programs(experiment: Calls, arguments: argparse.Namespace) -> list[str]:
    found = experiment.run()
    if arguments.json:
        return [json.dumps(line) for line in calls.as_json(found)]
    return calls.report(found, arguments.append)


def call_graphs(experiment: Graphs, arguments: argparse.Namespace) -> list[str]:
    found = list(experiment.run(graphs.ROOTS[:2] if arguments.quick else graphs.ROOTS))
    if arguments.json:
        return [json.dumps(line) for line in graphs.as_json(found)]
    return graphs.report(found, arguments.append)


def costs(reads: Reads, debugger: Debugger, arguments: argparse.Namespace) -> list[str]:
    target = BENCH_TARGETS[arguments.arch]
    table_of = Bench(reads, debugger, target, arguments.quick)
    rows = table_of.all()
    if arguments.chart:
        arguments.chart.write_text(chart(rows, arguments.arch))
    notes = NOTES.format(append=arguments.append, read=table_of.read * 1e6)
    targets = verdict(target, rows, table_of.read)
    if arguments.html:
        arguments.html.write_bytes(page(rows, table_of.optimized, arguments.arch, _paragraphs(notes), targets))
    if arguments.json:
        return [json.dumps(line) for line in as_json(rows, table_of.optimized)]
    return [*table(rows, table_of.optimized), "", notes, "", *targets]


def _paragraphs(notes: str) -> list[str]:
    """Return the notes of a table, those of a column as "stops: of the whole guest"."""
    return [" ".join(re.sub(r"  +", ": ", note, count=1).split()) for note in re.split(r"\n {2}(?=\S)", notes)]


def verdict(target: BenchTarget, costs: list[Cost], read: float) -> list[str]:
    """Return the project's targets beside the cost of Linux's probes. read: seconds of a read without a probe.

    A target is of whole instructions: tenths are the guest's own work.
    """
    took = {cost.name: cost.instructions or 0.0 for cost in costs}
    best = LINUX_OPTIMIZED if target.optimizes else LINUX_TRAP
    targets = [
        ("a count at a function's entry", took[OPTIMIZED], target.most, best),
        ("a count by a trap", took[TRAPPED], target.trapped, LINUX_TRAP),
    ]
    if target.elsewhere is not None:
        targets.append(("a count behind it", took[BEHIND], target.elsewhere, best))
    beside = (LINUX_FILTER, best, LINUX_HIST, LINUX_HIST, LINUX_RECORD, LINUX_READ, *[LINUX_RETURN] * 2)
    for name, most, other in zip(PROGRAMS, target.programs, beside, strict=True):
        targets.append((name, took[name], most, other))
    share = next(cost.seconds for cost in costs if cost.name == BREAK_FALSE) / read
    return [
        *(
            f"Target, at most {most} whole instructions for {what}: "
            f"{'met' if found < most + 0.5 else 'MISSED'}, {found:.1f}. {other}: {took[other]:.0f}."
            for what, found, most, other in targets
        ),
        f"Target, at most 5 % more time for reads with a break with a false condition: "
        f"{'met' if share <= 0.05 else 'MISSED'}, {100 * share:.1f} %.",
    ]


TRAPPED = "trapped"
OPTIMIZED, BEHIND, BREAK_FALSE = "optimized", "optimized, behind it", "a break, false"
LINUX_OPTIMIZED = "Linux's event, optimized"
LINUX_TRAP = "Linux's event, by a trap"
LINUX_FILTER, LINUX_HIST = "Linux's filter, false", "Linux's hist trigger"
LINUX_RECORD, LINUX_READ = "Linux's event, three words", "Linux's event, f_flags"
LINUX_RETURN = "Linux's event, return"


class Bench:
    """The rows of the table, in its order."""

    def __init__(self, reads: Reads, debugger: Debugger, target: BenchTarget, quick: bool) -> None:
        self._reads = reads
        self._debugger = debugger
        self._target = target
        self._running, self._stopping, self._times = (100_000, 20, 2) if quick else (300_000, 50, 4)
        self._unprobed: list[Reading] = []
        self._few: list[Reading] = []
        self.optimized = Cost("", None, 0, 0, 0)
        self._at_entry = "FTRACE" if target.optimizes else ""

    @property
    def read(self) -> float:
        """Host seconds of an unprobed read."""
        return sorted(one.seconds for one in self._unprobed)[len(self._unprobed) // 2]

    def all(self) -> list[Cost]:
        self._unprobed = self._measure("no probe", self._running)
        # For the record: in a run of few reads each of them takes more, without a probe too.
        few = hits("record", self._running, self._target.records)
        self._few = self._measure("no probe", few) if few < self._running else self._unprobed
        behind = self._target.behind
        self.optimized = self._row(OPTIMIZED, self._ours(FUNCTION, "optimized"), self._running)
        return [
            cost("no probe", self._unprobed, self._unprobed),
            self._row("GDB's break … if", self._gdbs, self._stopping),
            self._row("breakpoint", self._ours(FUNCTION, "breakpoint"), self._stopping),
            self._row("boosted", self._ours(FUNCTION, "boosted"), self._stopping),
            self._row("emulated", self._ours(self._target.emulated, "emulated"), self._stopping),
            self._row(TRAPPED, self._ours(self._target.behind, "trapped"), self._running),
            self.optimized,
            self._row(BEHIND, self._ours(behind, "optimized"), self._running),
            *self._returns(),
            *self._programs(),
            self._row(BREAK_FALSE, self._ours(FUNCTION, "optimized", BREAK), self._running),
            self._row(LINUX_TRAP, self._event(behind, False, ""), self._running),
            *self._untrapped(behind),
            self._row(LINUX_FILTER, self._ftrace(FILTER, "size==7777"), self._running),
            self._row(LINUX_HIST, self._ftrace(TRIGGER, "hist:keys=size.log2"), self._running),
            self._row(LINUX_RECORD, self._with(self._target.words), self._running),
            self._row(LINUX_READ, self._with(self._target.flags), self._running),
            self._row(LINUX_RETURN, self._return, self._running),
        ]

    def _returns(self) -> Iterator[Cost]:
        """Yield return probes. One that stops the guest at the entry has its trampoline in the guest in every tier."""
        for tier in ("breakpoint", "boosted"):
            yield self._row(f"a return, {tier}", self._ours(FUNCTION, tier, "-return"), self._stopping)

    def _programs(self) -> Iterator[Cost]:
        self._debugger(f"set optprobe ring-records {self._target.records}")
        for name, clause in PROGRAMS.items():
            probe = self._ours(FUNCTION, "optimized", clause)
            yield self._row(name, probe, hits(clause, self._running, self._target.records), "optprobe report -clear")

    def _untrapped(self, behind: str) -> Iterator[Cost]:
        """Yield Linux's events that are no traps, where it has these."""
        if self._target.optimizes:
            yield self._row("Linux's event, ftrace", self._event(FUNCTION, True, "FTRACE"), self._running)
            yield self._row(LINUX_OPTIMIZED, self._event(behind, True, "OPTIMIZED"), self._running)

    def _row(self, name: str, probe: Probed, reads: int, first: str = "") -> Cost:
        with probe():
            found = self._measure(name, reads, first)
        # Rows that stop the guest have fewer hits still, and no figure of instructions.
        return cost(name, found, self._unprobed if reads == self._running else self._few)

    def _measure(self, name: str, reads: int, first: str = "") -> list[Reading]:
        say(f"{name}: {self._times} × {reads:,} hits")
        return self._reads.repeat(reads, self._times, first)

    def _ours(self, location: str, tier: str, clause: str = "") -> Probed:
        @contextmanager
        def probed() -> Iterator[None]:
            self._debugger(f"optprobe add {location} -tier {tier} {clause}")
            # A branch over several instructions waits until no thread is inside.
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
        self._debugger(f"break *{self._target.entry} if {self._target.size} == 4321")
        yield
        self._debugger("delete")

    def _event(self, location: str, optimization: bool, tag: str) -> Probed:
        return lambda: linux_event(self._reads.guest, location, optimization, tag)

    def _return(self) -> AbstractContextManager[None]:
        return linux_event(self._reads.guest, FUNCTION, True, self._at_entry, sort="r")

    def _with(self, fields: str) -> Probed:
        return lambda: linux_event(self._reads.guest, FUNCTION, True, self._at_entry, fields)

    def _ftrace(self, file: str, text: str) -> Probed:
        """Arm Linux's event at the function's entry with the size as a field, and write to its filter or trigger."""
        return lambda: linux_event(self._reads.guest, FUNCTION, True, self._at_entry, self._target.field, file, text)


Probed = Callable[[], AbstractContextManager[None]]


if __name__ == "__main__":
    sys.exit(main())
