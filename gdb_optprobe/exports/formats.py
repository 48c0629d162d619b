"""The table of formats: what each holds of a recording, and how it is encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports import chrome, csv, folded, openmetrics, perfetto, pprof, speedscope, trace_dat, uftrace
from gdb_optprobe.exports.recording import Recording
from gdb_optprobe.exports.tracks import is_counter

Encoded = bytes | Mapping[str, bytes]
"""What a file holds, or the files of a folder by their names."""
_SHOWN = ("$elapsed", "$pid", "$tgid", "$comm")
"""Values that say when a call was, and of which thread: each format has them in its own way."""


class Part(Enum):
    """What a format may hold. value: its words, of one and of several."""

    CALLS = ("call", "calls")
    EVENTS = ("event", "events")
    UNTIMED = ("event without a time", "events without a time")
    STACKS = ("stack", "stacks")
    COUNTERS = ("counter", "counters")  # numbers without a key
    TABLES = ("number of tables", "numbers of tables")  # all else that was counted


# By whether it has no time, and whether it is a counter.
_OF_EVENT = (Part.EVENTS, Part.UNTIMED)
_OF_MEASURE = (Part.TABLES, Part.COUNTERS)
_TIMELINE = (Part.CALLS, Part.EVENTS, Part.COUNTERS)
_GETS = {
    Part.CALLS: "optprobe add FUNCTION -return do record($pid, $comm, $elapsed)",
    Part.STACKS: "optprobe add FUNCTION do stack",
    Part.EVENTS: "optprobe add FUNCTION do record($pid, $comm)",
}


@dataclass(frozen=True, slots=True)
class Format:
    """parts: what it holds. either: of these, the first that there is, and nothing else. values: whether calls have
    theirs.
    """

    encode: Callable[[Recording], Encoded]
    parts: Sequence[Part]
    either: bool = False
    values: bool = False

    def held(self, recording: Recording) -> Recording:
        """Return the part of a recording that the format holds."""
        parts = [part for part in self.parts if _count(recording, part)]
        kept = frozenset(parts[:1] if self.either else parts)
        return Recording(
            events=tuple(one for one in recording.events if _OF_EVENT[one.time is None] in kept),
            calls=recording.calls if Part.CALLS in kept else (),
            stacks=recording.stacks if Part.STACKS in kept else (),
            measures=tuple(one for one in recording.measures if _OF_MEASURE[is_counter(one)] in kept),
            lost=recording.lost,
        )

    def check(self, recording: Recording) -> None:
        """Raise OptprobeError where a recording has nothing that the format holds."""
        if not any(_count(recording, part) for part in self.parts):
            holds = _listed(part.value[1] for part in self.parts)
            there = [part for part in Part if _count(recording, part)]
            if there:
                others = ", ".join(word for word, other in FORMATS.items() if {*there} & {*other.parts})
                holds = f"{holds}, and what was gathered is {_listed(part.value[1] for part in there)}"
                hint = f"a format that holds these: {others}"
            else:
                hint = next((_GETS[part] for part in self.parts if part in _GETS), "")
            raise OptprobeError(f"there is nothing to export: the format holds {holds}", hint)


FORMATS: Mapping[str, Format] = {
    "chrome": Format(chrome.encode, _TIMELINE, values=True),
    "perfetto": Format(perfetto.encode, _TIMELINE, values=True),
    "trace.dat": Format(trace_dat.encode, (Part.CALLS, Part.EVENTS)),
    "uftrace": Format(uftrace.encode, (Part.CALLS,)),
    "speedscope": Format(speedscope.encode, (Part.CALLS, Part.STACKS)),
    "folded": Format(folded.encode, (Part.STACKS, Part.CALLS), True),
    "pprof": Format(pprof.encode, (Part.STACKS, Part.CALLS), True),
    "openmetrics": Format(openmetrics.encode, (Part.COUNTERS, Part.TABLES)),
    "csv": Format(csv.encode, tuple(Part), values=True),
}


def encoded(word: str, recording: Recording) -> tuple[Encoded, Sequence[str]]:
    """Return a recording in a format, and lines that say what it holds and what it does not. Raises OptprobeError."""
    form = FORMATS[word]
    form.check(recording)
    held = form.held(recording)
    counts = {part: (_count(recording, part), _count(held, part)) for part in Part}
    lines = [_listed(_counted(part, kept) for part, (_, kept) in counts.items() if kept)]
    left_out = [_counted(part, there) for part, (there, kept) in counts.items() if there > kept]
    if held.calls and not form.values and (values := _values(held)):
        left_out.append(f"{values} {'value' if values == 1 else 'values'} of calls")
    if left_out:
        lines.append(f"Left out: {_listed(left_out)}.")
    if recording.lost:
        lines.append(f"Lost, as they found no room in the guest: {recording.lost} records.")
    return form.encode(held), lines


def _count(recording: Recording, part: Part) -> int:
    match part:
        case Part.CALLS:
            return len(recording.calls)
        case Part.STACKS:
            return sum(stack.count for stack in recording.stacks)
        case Part.EVENTS | Part.UNTIMED:
            return sum(_OF_EVENT[one.time is None] is part for one in recording.events)
        case Part.COUNTERS | Part.TABLES:
            return sum(_OF_MEASURE[is_counter(one)] is part for one in recording.measures)


def _values(recording: Recording) -> int:
    """Return how many values calls have beside those that say when they were, and of which thread."""
    return sum(name not in _SHOWN for call in recording.calls for name, _ in call.values)


def _counted(part: Part, count: int) -> str:
    return f"{count} {part.value[count != 1]}"


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
