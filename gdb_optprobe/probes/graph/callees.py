"""What a function calls, found in its code: the functions that a call graph of it has probes on.

    root ──call──► a ──call──► b      depth 1, 2
      └──call──► c  ──jmp──► d        a tail call is a call: depth 1, 2
Functions without a tracer's site, as `_cond_resched` of some kernels, are passed through and take no depth, as in
Linux's function_graph. Calls through pointers lead nowhere here; their addresses are returned, so that their targets
can be learned while the guest runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.guest.text import Place
from gdb_optprobe.isa.base import Flow, Insn, Pointer
from gdb_optprobe.isa.record import Isa

MOST = 4096
"""Functions that are looked at, at most. `do_exit` to a depth of 6 reaches 1,429 that are traced."""
ENTRY = 16
"""Bytes behind a function's start in which calls enter it: behind a landing pad, at a local entry."""
COLD = ".cold"


@dataclass(frozen=True, slots=True)
class Exits:
    """What leads out of a part of a function. calls: where to, by direct calls and jumps, and whether it is a call.
    pointers: calls and jumps through pointers, with their addresses.
    """

    calls: tuple[tuple[int, bool], ...] = ()
    pointers: tuple[tuple[int, Pointer], ...] = ()


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
    the depth of what they call. is_whole: whether all was looked at that is that near.
    """

    depths: Mapping[int, int] = field(default_factory=dict)
    pointers: Mapping[int, tuple[Pointer, int]] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True)
class Callees:
    """find: see Guest.place. exits: returns what leads out of each of these parts of functions.

    traced: returns those of functions that have a tracer's site, by their starts. is_wanted: whether one with this name
    may be in the graph, with what it calls.
    """

    find: Callable[[int], Place | None]
    exits: Callable[[Sequence[Place]], Sequence[Exits]]
    traced: Callable[[Collection[int]], Collection[int]]
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
                found = self.calls(filter(None, map(self.find, waiting)))
                targets = dict.fromkeys(start for calls in found for start in calls.targets)
                pointers = {at: (pointer, level + 1) for calls in found for at, pointer in calls.pointers} | pointers
                again = {start for start in targets if start in starts and start not in depths}
                new = [start for start in targets if start in again or (start not in seen and self._is_wanted(start))]
                traced = self.traced(new)
                depths |= {start: level + 1 for start in new if start in traced}
                # One of the starts may be nearer to another one than it is said to be.
                nearer = {start: level + (start in traced) for start in new}
                nearer = {start: at for start, at in nearer.items() if at < seen.get(start, depth + 1)}
                seen |= nearer
                waiting = [start for start, at in nearer.items() if at == level]
            level += 1
        return Reached(depths, pointers)

    def calls(self, functions: Iterable[Place]) -> Sequence[Calls]:
        """Return what each of these functions calls, by all of its parts."""
        wanted = [*functions]
        parts = {place.start: {place.start: place} for place in wanted}
        exits: dict[int, Exits] = {}
        new = {place.start: place for place in wanted}
        while new:
            exits |= zip(new, self.exits([*new.values()]), strict=True)
            new = {}
            for place in wanted:
                own = parts[place.start]
                for start in [*own]:
                    jumps = (target for target, is_call in exits[start].calls if not is_call)
                    cold = {other.start: other for other in filter(None, map(self.find, jumps))}
                    cold = {at: other for at, other in cold.items() if other.name == f"{place.name}{COLD}"}
                    new |= {at: other for at, other in cold.items() if at not in exits}
                    own.update(cold)
        return [self._joined(parts[place.start], exits) for place in wanted]

    def _joined(self, parts: Collection[int], exits: Mapping[int, Exits]) -> Calls:
        """Return what a function with parts at these addresses calls."""
        targets: dict[int, None] = {}
        for target, is_call in (each for start in parts for each in exits[start].calls):
            other = self.find(target)
            if other is not None and (is_call or other.start not in parts) and target - other.start < ENTRY:
                targets[other.start] = None
        return Calls(tuple(targets), tuple(each for start in parts for each in exits[start].pointers))

    def _is_wanted(self, start: int) -> bool:
        function = self.find(start)
        return function is not None and self.is_wanted(function.name)


def decoded(code: bytes, start: int, isa: Isa) -> tuple[list[Insn], Collection[int]]:
    """Return the instructions of a part of a function, and which jump by a table of its own: these lead nowhere else.
    """
    found, at, end, switches = list[Insn](), start, start + len(code), isa.switches(code, start)
    for jump in sorted(switches):
        found += isa.decode(code[at - start : switches[jump].start - start], at)
        at = switches[jump].stop
    found += isa.decode(code[at - start :], at) if at < end else []
    return found, switches.keys()


def exits_of(insns: Iterable[Insn], place: Place, pointer: Callable[[Insn], Pointer | None]) -> Exits:
    """Return what leads out of a part of a function with these instructions. pointer: see Guest.pointer."""
    calls: dict[tuple[int, bool], None] = {}
    pointers: list[tuple[int, Pointer]] = []
    for insn in insns:
        if insn.flow is Flow.NEXT:
            continue
        is_call = insn.flow is Flow.CALL
        if (found := pointer(insn)) is not None:
            pointers.append((insn.address, found))
        elif insn.target is not None and (is_call or not place.start <= insn.target < place.end):
            calls[insn.target, is_call] = None
    return Exits(tuple(calls), tuple(pointers))
