"""Put calls and events on tracks, as viewers of traces want them: a row of things that nest.

A thread has a track. Its calls nest, but their beginnings may seem not to: a record is made a moment after `$elapsed`
was read, a long one where the guest was held between the two, and its call is moved by that moment. So a call that
ends last began first; it is given the beginning of the first one that it overlaps.

Of a call graph it is known which call is in which, and nothing is moved.

What comes from no known thread, or from an idle one, of which each CPU has one, is on the track of its CPU. There calls
of several threads may overlap: a call is put on the first lane of the track in which it nests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.exports.recording import Call, Event, Measure, Number, Recording, Thread

BEYOND_THREADS = 1 << 22
"""No thread has this number or a greater one (PID_MAX_LIMIT in include/linux/threads.h)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A call, and how many others of its track are around it."""

    call: Call
    depth: int


@dataclass(frozen=True, slots=True)
class Track:
    """number: a thread's id, or BEYOND_THREADS or more; there is no other track of this number. process: 0 of CPUs.

    calls: by their beginnings, the outer ones first. events: by their times; those without a time are on no track.
    """

    number: int
    process: int
    name: str
    calls: tuple[Placed, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of a call."""

    time: int
    placed: Placed
    begins: bool


@dataclass(slots=True)
class _Lane:
    """open: the ends of the calls that are under way, the outermost first."""

    placed: list[Placed] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def takes(self, call: Call) -> bool:
        """Place a call if it nests here. Calls come in the order of their beginnings."""
        while self.open and self.open[-1] <= call.begin:
            self.open.pop()
        if self.open and self.open[-1] < call.end:
            return False
        self.placed.append(Placed(call, len(self.open)))
        self.open.append(call.end)
        return True


def tracks(recording: Recording) -> list[Track]:
    """Return the tracks of threads by their ids, then those of CPUs; a lane of one behind it."""
    calls: dict[tuple[bool, int], list[Call]] = {}
    events: dict[tuple[bool, int], list[Event]] = {}
    threads: dict[int, Thread] = {}
    for call in recording.calls:
        calls.setdefault(_row(call), []).append(call)
    for event in recording.events:
        if event.time is not None:
            events.setdefault(_row(event), []).append(event)
    both: tuple[Event | Call, ...] = (*recording.events, *recording.calls)
    for one in both:
        if one.thread is not None and (one.thread.name or one.thread.id not in threads):
            threads[one.thread.id] = one.thread
    found: list[Track] = []
    beyond = BEYOND_THREADS
    for row in sorted(calls.keys() | events.keys()):
        is_cpu, number = row
        here = calls.get(row, ())
        known = _known(here)
        lanes = [known] if known else _lanes(here if is_cpu else _nested(here))
        first = tuple(sorted(events.get(row, ()), key=lambda event: event.time or 0))
        for lane, placed in enumerate(lanes or [()]):
            name = f"CPU {number}" if is_cpu else threads[number].name or f"thread {number}"
            own = beyond if is_cpu or lane else number
            beyond += own >= BEYOND_THREADS
            process = 0 if is_cpu else _process(threads[number])
            found.append(Track(own, process, f"{name} ({lane + 1})" if lane else name, placed, () if lane else first))
    return found


def edges(calls: Sequence[Placed]) -> Iterator[Edge]:
    """Yield beginnings and ends of the calls of a track in the order of time, so that they nest."""
    open: list[Placed] = []
    for placed in calls:
        while len(open) > placed.depth:
            ended = open.pop()
            yield Edge(ended.call.end, ended, False)
        open.append(placed)
        yield Edge(placed.call.begin, placed, True)
    for ended in reversed(open):
        yield Edge(ended.call.end, ended, False)


def is_counter(one: Measure) -> bool:
    """Return whether it is a number that a track of its own may show."""
    return isinstance(one.value, Number) and not one.key


def counters(recording: Recording) -> Iterator[tuple[str, int, str]]:
    """Yield name, value and unit of each counter. How it came to its value is not known: it is one point at the end."""
    for one in recording.measures:
        if is_counter(one) and isinstance(one.value, Number):
            own = one.action or one.name
            name = own if one.source is None else f"{one.source.place} ({one.source.number}): {own}"
            yield name, one.value.value, one.unit


def _row(one: Call | Event) -> tuple[bool, int]:
    """Return whether the track is a CPU's, and its number."""
    return (False, one.thread.id) if one.thread is not None and 0 < one.thread.id < BEYOND_THREADS else (True, one.cpu)


def _process(thread: Thread) -> int:
    return thread.id if thread.process is None else thread.process


def _known(calls: Iterable[Call]) -> tuple[Placed, ...]:
    """Return calls of which the depths are known, as they come; none where they do not nest as these say."""
    found: list[Placed] = []
    open: list[Call] = []
    last = 0
    for call in calls:
        if call.depth is None or call.depth > len(open):
            return ()
        if ended := open[call.depth :]:
            last = max(last, ended[0].end)
        del open[call.depth :]
        if not last <= call.begin <= call.end or (open and call.end > open[-1].end):
            return ()
        last = call.begin
        open.append(call)
        found.append(Placed(call, call.depth))
    return tuple(found)


def _nested(calls: Iterable[Call]) -> list[Call]:
    """Return the calls of a thread, each that surrounds others from the beginning of the first of them on."""
    found: list[Call] = []
    apart: list[Call] = []
    for call in sorted(calls, key=lambda call: (call.end, -call.begin)):
        begin = call.begin
        while apart and apart[-1].end > begin:
            begin = min(begin, apart.pop().begin)
        apart.append(replace(call, begin=begin))
        found.append(apart[-1])
    return found


def _lanes(calls: Iterable[Call]) -> list[tuple[Placed, ...]]:
    lanes: list[_Lane] = []
    for call in sorted(calls, key=lambda call: (call.begin, -call.end)):
        if not any(lane.takes(call) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].takes(call)
    return [tuple(lane.placed) for lane in lanes]
