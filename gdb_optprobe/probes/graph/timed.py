"""The trees of a call graph as calls with exact times, for export.

    tree ──► calls, each behind the one that it is in ──► begin and end, within those of the one that it is in
A call that has not returned ends with the last record within it. Times of a damaged record are brought within bounds:
what is exported nests whatever the guest's memory held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.probes.graph.functions import Traced
from gdb_optprobe.probes.graph.trees import Call, Tree
from gdb_optprobe.probes.views import CallView

MOST_KEPT = 1 << 17
"""Calls."""
RESULT, INTERRUPT = "$retval", "interrupt"
_TIMES_END = 1 << 63


@dataclass
class KeptTrees:
    """The newest trees that a graph has shown. depth: levels of calls below the root that are kept.

    dropped: how many older trees found no room.
    """

    depth: int
    most: int = MOST_KEPT
    dropped: int = 0
    _trees: deque[tuple[Tree, int]] = field(default_factory=deque)
    _calls: int = 0

    def add(self, tree: Tree) -> None:
        size = len(_flat(tree.root, self.depth))
        self._trees.append((tree, size))
        self._calls += size
        while self._calls > self.most and len(self._trees) > 1:
            self._calls -= self._trees.popleft()[1]
            self.dropped += 1

    @property
    def early(self) -> int:
        """Return how many of the trees may lack calls."""
        return sum(tree.is_early for tree, _ in self._trees)

    def timed(self, functions: Mapping[int, Traced], clock: Callable[[int], int]) -> tuple[tuple[CallView, ...], int]:
        """Return the calls, and how many of them had not returned. functions: by number. clock: see Guest.clock."""
        views: list[CallView] = []
        ends: dict[tuple[int, int], int] = {}
        for tree, _ in sorted(self._trees, key=lambda kept: kept[0].root.time):
            thread = tree.pid, 0 if tree.pid else tree.root.cpu  # each CPU has an idle thread, of one number
            made = [*_timed(tree, self.depth, functions, clock, ends.get(thread, 0))]
            ends[thread] = made[0].end
            views += made
        flat = (call for tree, _ in self._trees for call, _ in _flat(tree.root, self.depth))
        return tuple(views), sum(call.end is None for call in flat)


def _flat(root: Call, depth: int) -> list[tuple[Call, int]]:
    """Return the calls of a tree with their depths, each behind the one that it is in."""
    found: list[tuple[Call, int]] = []
    waiting = [(root, 0)]
    while waiting:
        call, level = waiting.pop()
        found.append((call, level))
        if level < depth:
            waiting += [(inner, level + 1) for inner in reversed(call.calls)]
    return found


def _timed(
    tree: Tree, depth: int, functions: Mapping[int, Traced], clock: Callable[[int], int], first: int
) -> Iterable[CallView]:
    """Yield the calls of a tree. first: the time before which none of its thread may begin."""
    calls = _flat(tree.root, depth)
    last = _last(calls)
    comm = until_zero(tree.comm)
    # Of the open calls around each: when the next one within may begin, and when all within have ended.
    open: list[tuple[int, int]] = [(first, _TIMES_END - 1)]
    for (call, level), (ended, cpu) in zip(calls, last, strict=True):
        del open[level + 1 :]
        least, most = open[level]
        begin = min(max(clock(call.time), least), most)
        end = min(max(clock(ended), begin), most)
        open[level] = end, most
        open.append((begin, end))
        function = functions[call.function]
        yield CallView(function.name, begin, end, call.cpu, cpu, level, tree.pid, comm, _values(call, function))


def _last(calls: Iterable[tuple[Call, int]]) -> list[tuple[int, int]]:
    """Return time and CPU of each call's end; of one that has not returned, of the last record within it."""
    found: list[tuple[int, int]] = []
    within: list[tuple[int, int] | None] = []
    for call, level in reversed([*calls]):
        within += [None] * (level + 2 - len(within))
        inner, within[level + 1] = within[level + 1], None
        end = call.end[1::-1] if call.end is not None else max(inner or (0, 0), (call.time, call.cpu))
        within[level] = max(within[level] or (0, 0), end)
        found.append(end)
    return found[::-1]


def _values(call: Call, function: Traced) -> tuple[tuple[str, int | str], ...]:
    """Return arguments, result and what else is known of a call."""
    result = function.returned(call.end[2]) if call.end is not None else None
    return (
        *function.passed(call.arguments),
        *(((RESULT, result),) if result is not None else ()),
        *(((INTERRUPT, "yes"),) if call.is_interrupt else ()),
        *((("returned", "no"),) if call.end is None else ()),
    )
