"""Call graphs beside the guest's own function_graph: whether both print the same trees, and what a call costs.

One guest on one virtual CPU under -icount, where a microsecond of a tree is a thousand instructions. Each root is
called by a workload of its own, the same for both tracers; of its trees the most frequent one counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from pathlib import Path

from .costs.table import aligned, number
from .debugger import Debugger
from .guest import Guest, GuestError
from .processes import cpu_seconds
from .rsp_proxy import RspProxy

__all__ = ["ROOTS", "Graphs", "Row", "as_json", "report", "trees"]

TRACING = "/sys/kernel/tracing"
WORK = "/tmp/work"
CHANNEL = "channel.sock"
ROUNDS = 10
LACKS, MOST_REPEATED = re.compile(r"repeat the command|not shown, from before"), 5
"""What a graph says that has learned where calls through pointers lead; how often it is repeated until it does not."""
NOTES = """\
calls         in the root's most frequent tree, which is compared with that of the guest's own function_graph
alone         instructions of one call of the root, without a tracer (-icount shift=0,sleep=off; {append})
ours, Linux's instructions that each call of the tree adds, by optprobe graph and by function_graph
packets       between GDB and QEMU, both ways, of a graph that ends at once, when the root was graphed before
seconds       of the host's processor, in GDB, of the same"""
_LINE = re.compile(r" +\d+\) (?P<duration>.{14})\|  (?P<indent> *)(?P<what>\S.*)")

_SAME = {True: "the same tree as function_graph's", False: "not the tree of function_graph, without - and with + these"}


@dataclass(frozen=True, slots=True)
class Root:
    """A function, the levels of calls below it, and a command that calls it about ROUNDS times. returns: whether it
    returns.
    """

    name: str
    depth: int
    command: str
    returns: bool = True


LOOP = "i=0; while [ $i -lt {rounds} ]; do {command}; i=$((i+1)); done"
ROOTS = (
    Root("vfs_read", 5, f"dd if=/dev/zero of=/dev/null bs=1 count={ROUNDS} 2>/dev/null"),
    Root("do_sys_openat2", 4, LOOP.format(rounds=ROUNDS, command="read x < /tmp/work")),
    Root("tcp_connect", 4, LOOP.format(rounds=ROUNDS, command="nc 127.0.0.1 9 < /dev/null 2> /dev/null")),
    Root("do_exit", 2, LOOP.format(rounds=ROUNDS, command="/bin/true"), returns=False),
)


@dataclass(frozen=True, slots=True)
class Tree:
    """One call of a root: its lines without times, and how long it took, in thousands of the clock's ticks."""

    lines: tuple[str, ...]
    took: float | None = None

    @property
    def calls(self) -> int:
        return sum(not line.endswith("}") for line in self.lines)


@dataclass(frozen=True, slots=True)
class Row:
    """A root. difference: between both trees, as a patch. alone, ours, theirs: None for one that never returns."""

    root: str
    depth: int
    calls: int
    difference: tuple[str, ...]
    alone: float | None
    ours: float | None
    theirs: float | None
    packets: int
    seconds: float


def trees(text: str, root: str, returns: bool = True) -> Iterator[Tree]:
    """Yield the trees of a root in function_graph's lines; none with an interrupt or a switch of threads in it.

    returns: False for a root that stays open: then the end of its tree is where something else begins.
    """
    found: list[str] = []
    for line in [*text.splitlines(), ""]:
        matched = _LINE.match(line)
        indent, what = (matched["indent"], matched["what"]) if matched is not None else ("", "")
        is_root = not indent and what.startswith(f"{root}(")
        if not returns and found and (is_root or matched is None):
            yield Tree(tuple(found))
        if matched is None or is_root:
            found = []
        if is_root or (found and matched is not None):
            found.append(indent + what)
        if found and returns and not indent and what == "}":
            assert matched is not None
            yield Tree(tuple(found), _microseconds(matched["duration"]))
            found = []


def usual(found: Sequence[Tree], where: str) -> Tree:
    """Return the most frequent of trees, with the least time. Raises GuestError where there is none."""
    if not found:
        raise GuestError(f"no call of the root is whole in what {where} prints")
    lines, _ = Counter(tree.lines for tree in found).most_common(1)[0]
    return min((tree for tree in found if tree.lines == lines), key=lambda tree: tree.took or 0)


class Graphs:
    """The experiment in a guest, which `debugger` has attached to through `proxy`."""

    def __init__(self, guest: Guest, debugger: Debugger, proxy: RspProxy, say: Callable[[str], None]) -> None:
        self._guest, self._debugger, self._proxy, self._say = guest, debugger, proxy, say
        # The option -guest looks for the guest's channel beside the socket that GDB is connected to.
        (Path(proxy.path).parent / CHANNEL).symlink_to(guest.directory / CHANNEL)

    def run(self, roots: Sequence[Root] = ROOTS) -> Iterator[Row]:
        """Yield the row of each root."""
        self._run(f"mount -t tracefs t {TRACING} 2>/dev/null; ip link set lo up; touch {WORK}")
        for root in roots:
            self._say(f"{root.name}, {root.depth} levels")
            yield self._row(root)

    def _row(self, root: Root) -> Row:
        self._run(f"echo '{root.command}' > {WORK}")
        alone = self._alone(root) if root.returns else None
        line = f"optprobe graph {root.name} -depth {root.depth} -guest 'sh {WORK}'"
        shown = [*trees(self._learned(line), root.name, root.returns)]
        packets, seconds = self._armed(root)
        traced = [*trees(self._traced(root), root.name, root.returns)]
        theirs = usual(traced, "function_graph")
        # Ours has what starts the command in the guest, too: calls that are as often there are the command's.
        alike = [tree for tree in shown if tree.lines == theirs.lines]
        often = len(alike) >= sum(tree.lines == theirs.lines for tree in traced)
        ours = usual(alike if often else shown, "optprobe graph")
        return Row(
            root.name,
            root.depth,
            ours.calls,
            tuple(unified_diff(theirs.lines, ours.lines, "function_graph", "optprobe graph", lineterm="", n=1)),
            alone,
            _each(ours, alone),
            _each(theirs, alone),
            packets,
            seconds,
        )

    def _learned(self, line: str) -> str:
        """Return what a graph prints that knows where all calls through pointers lead. Raises GuestError."""
        for _ in range(MOST_REPEATED):
            if LACKS.search(printed := self._debugger(line)) is None:
                return printed
        raise GuestError(f"it learns without an end: {line}")

    def _alone(self, root: Root) -> float:
        """Return the instructions of the shortest call, without a tracer."""
        self._debugger(f"optprobe add {root.name} -return do min($elapsed)")
        self._run(f"sh {WORK}")
        lines = map(json.loads, self._debugger("optprobe report -json").splitlines())
        self._debugger("optprobe delete")
        (least,) = (line["entries"][0]["value"] for line in lines if line["type"] == "map")
        return float(least)

    def _armed(self, root: Root) -> tuple[int, float]:
        """Return the packets, and the seconds of GDB's processor, of a graph that ends at once."""
        packets, seconds = self._proxy.count().packets, cpu_seconds([self._debugger.pid])
        self._debugger(f"optprobe graph {root.name} -depth {root.depth} -for 0.001")
        return self._proxy.count().packets - packets, cpu_seconds([self._debugger.pid]) - seconds

    def _traced(self, root: Root) -> str:
        """Return what the guest's own tracer prints."""
        begin = (
            f"cd {TRACING}; echo {root.name} > set_graph_function; echo {root.depth + 1} > max_graph_depth; "
            "echo 8192 > buffer_size_kb; echo function_graph > current_tracer; echo nofuncgraph-proc > trace_options; "
            f"echo > trace; echo 1 > tracing_on; sh {WORK}; echo 0 > tracing_on; cat trace"
        )
        end = (
            f"cd {TRACING}; echo nop > current_tracer; echo > set_graph_function; echo 0 > max_graph_depth; "
            "echo > trace; echo 1 > tracing_on; echo 1408 > buffer_size_kb"
        )
        try:
            return self._run(begin)
        finally:
            self._run(end)

    def _run(self, command: str) -> str:
        return self._debugger.running(lambda: self._guest.check(command, 300.0))


def report(rows: Sequence[Row], append: str) -> list[str]:
    """Return the table, what differs, and what the columns are."""
    table = [["root", "levels", "calls", "alone", "ours", "Linux's", "packets", "seconds"]]
    for row in rows:
        costs = [number(value) if value is not None else "-" for value in (row.alone, row.ours, row.theirs)]
        table.append([row.root, str(row.depth), str(row.calls), *costs, f"{row.packets:,}", f"{row.seconds:.2f}"])
    found = [line for row in rows for line in (f"{row.root}: {_SAME[not row.difference]}", *row.difference)]
    return [*aligned(table), "", *found, "", NOTES.format(append=append)]


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


def _each(tree: Tree, alone: float | None) -> float | None:
    """Return the instructions that each call of a tree adds."""
    return (1000 * tree.took - alone) / tree.calls if tree.took is not None and alone is not None else None


def _microseconds(duration: str) -> float:
    return float(re.sub(r"[^\d.]", "", duration) or 0)
