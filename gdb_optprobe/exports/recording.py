"""What is exported: what hits have left, with nothing of probes or of the guest left to look up.

    views ──from_views──► Recording ──a format's encode──► bytes

Text is of printable characters (guest_text.py). Each format escapes what it takes for more than text.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.maps.aggregate import Bucket

Value = int | str
Values = tuple[tuple[str, Value], ...]
"""Values by name. A name is there once."""


@dataclass(frozen=True, slots=True)
class Source:
    """The probe that something comes from. number: None of a call graph's.

    place: a function, or an address in one: "vfs_read+0x13".
    """

    number: int | None
    place: str


@dataclass(frozen=True, slots=True)
class Thread:
    """id: what the kernel calls pid. process: what it calls tgid, None where that is not known."""

    id: int
    name: str = ""
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What happened at one time.

    time: in nanoseconds since boot, None where that is not known. thread: None where that is not known.
    text: as the report has it. stack: functions, the outermost first.
    """

    source: Source
    time: int | None
    cpu: int
    thread: Thread | None = None
    values: Values = ()
    text: str = ""
    stack: tuple[str, ...] = ()

    @property
    def callers(self) -> str:
        """Return the stack as one line, the innermost function first."""
        return " < ".join(reversed(self.stack))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, which has returned. begin, end: in nanoseconds since boot.

    depth: how many calls of its thread are around it, where that is known; then it is behind these in the recording.
    entered: the CPU on which it began, where that is known.
    """

    source: Source
    begin: int
    end: int
    cpu: int
    thread: Thread | None = None
    values: Values = ()
    depth: int | None = None
    entered: int | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """How often the same stack was seen. frames: functions, the outermost first.

    time: nanoseconds of all of these together; None where no time was taken.
    """

    frames: tuple[str, ...]
    count: int
    time: int | None = None

    @property
    def weight(self) -> int:
        """Return what a flame graph has of it."""
        return self.count if self.time is None else self.time


@dataclass(frozen=True, slots=True)
class Number:
    """grows: whether it never gets smaller."""

    value: int
    grows: bool = True


@dataclass(frozen=True, slots=True)
class Mean:
    """The number of values, and their sum."""

    count: int
    sum: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of integers. buckets: ascending, each beginning where the last one ends; None where there is no bound."""

    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """What was counted, by key.

    source: None of a map that probes share. name: one word, such as hits or hist. action: as it was typed, or the name
    of the map; "" where it is the probe's own. unit: "ns", or "" where it is not known.
    """

    source: Source | None
    name: str
    value: Number | Mean | Distribution
    action: str = ""
    key: Values = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """lost: records that found no room."""

    events: tuple[Event, ...] = ()
    calls: tuple[Call, ...] = ()
    stacks: tuple[Stack, ...] = ()
    measures: tuple[Measure, ...] = ()
    lost: int = 0

    @property
    def end(self) -> int:
        """Return the last time that is in it, 0 where there is none."""
        times = [*(one.time for one in self.events if one.time is not None), *(one.end for one in self.calls)]
        return max(times, default=0)
