"""What a function calls, found in its code: the functions that a call graph of it has probes on.

    root ──call──► a ──call──► b      depth 1, 2
      └──call──► c  ──jmp──► d        a tail call is a call: depth 1, 2
Functions without a tracer's site, as `_cond_resched` of some kernels, are passed through and take no depth, as in
Linux's function_graph. Calls through pointers lead nowhere here; their addresses are returned, so that their targets
can be learned while the guest runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gdb_optprobe.guest.text import Function
from gdb_optprobe.isa.base import Flow, Insn, Pointer

MOST = 4096
"""Functions that are decoded at most. `do_exit` to a depth of 6 reaches 1,429 that are traced."""
ENTRY = 16
"""Bytes behind a function's start in which calls enter it: behind a landing pad, at a local entry."""
COLD = ".cold"


@dataclass(frozen=True, slots=True)
class Calls:
    """What one function calls. targets: the starts of functions. pointers: calls and jumps through pointers, with their
    addresses.
    """

    targets: tuple[int, ...]
    pointers: tuple[tuple[int, Pointer], ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """depths: of each function that is to be probed, by its start. pointers: by address, calls through pointers, with
    the depth of what they call. is_whole: whether all was decoded that is that near.
    """

    depths: Mapping[int, int] = field(default_factory=dict)
    pointers: Mapping[int, tuple[Pointer, int]] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True)
class Callees:
    """find: see Text.function. is_traced: whether a function that starts there has a tracer's site.

    pointer: see Guest.pointer. is_wanted: whether one with this name may be in the graph, with what it calls.
    """

    find: Callable[[int], Function | None]
    is_traced: Callable[[int], bool]
    pointer: Callable[[Insn], Pointer | None]
    is_wanted: Callable[[str], bool] = bool

    def reached(self, starts: Mapping[int, int], depth: int) -> Reached:
        """Return what the functions at `starts`, which have these depths, call down to a depth.

        They are not among it themselves, unless they are called.
        """
        seen = dict(starts)
        depths: dict[int, int] = {}
        pointers: dict[int, tuple[Pointer, int]] = {}
        level = min(starts.values(), default=0)
        while level < depth:
            waiting = [start for start, at in seen.items() if at == level]
            while waiting:
                if len(seen) > MOST:
                    return Reached(depths, pointers, is_whole=False)
                function = self.find(waiting.pop())
                if function is None:
                    continue
                calls = self.calls(function)
                pointers = {at: (pointer, level + 1) for at, pointer in calls.pointers} | pointers
                for start in calls.targets:
                    if start in starts:
                        depths.setdefault(start, level + 1)
                    if start in seen or not self._is_wanted(start):
                        continue
                    is_traced = self.is_traced(start)
                    seen[start] = level + is_traced
                    if is_traced:
                        depths[start] = level + 1
                    else:
                        waiting.append(start)
            level += 1
        return Reached(depths, pointers)

    def calls(self, function: Function) -> Calls:
        """Return what a function calls, by all of its parts."""
        targets: dict[int, None] = {}
        pointers: list[tuple[int, Pointer]] = []
        for insn, is_inside in self._instructions(function):
            if (pointer := self.pointer(insn)) is not None:
                pointers.append((insn.address, pointer))
            elif insn.target is not None and not is_inside:
                other = self.find(insn.target)
                if other is not None and insn.target - other.start < ENTRY:
                    targets[other.start] = None
        return Calls(tuple(targets), tuple(pointers))

    def _instructions(self, function: Function) -> Iterator[tuple[Insn, bool]]:
        """Yield the instructions of a function, of its cold part too, and whether each branches within it."""
        parts, waiting = {function.start: function.end}, [function]
        while waiting:
            part = waiting.pop()
            for insn in part.hot:
                target = insn.target
                if target is None or insn.flow is Flow.CALL:
                    yield insn, False
                    continue
                other = self.find(target) if not part.start <= target < part.end else part
                if other is not None and other.name == f"{function.name}{COLD}" and other.start not in parts:
                    parts[other.start] = other.end
                    waiting.append(other)
                yield insn, other is not None and other.start in parts

    def _is_wanted(self, start: int) -> bool:
        function = self.find(start)
        return function is not None and self.is_wanted(function.name)
