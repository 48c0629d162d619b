"""What commands print to: `Output`, which render_text.py and render_json.py implement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from gdb_optprobe.guest_text import lines
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.views import (
    CollectorView,
    CountsView,
    DoctorView,
    ExplainView,
    GuestTraceView,
    ProbeView,
    RecordView,
    SessionMapView,
    ShowView,
    parts_of,
)

Write = Callable[[str], object]

BEST = "optimized"
STOPS = {"breakpoint": "twice", "boosted": "once", "emulated": "once"}
"""How often a hit of a tier stops the guest."""


class Output(Protocol):
    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        """Print new probes. glob: whether to print how many addresses the location matched."""

    def probes(self, probes: Sequence[ProbeView]) -> None: ...

    def show(self, views: Sequence[ShowView]) -> None: ...

    def explanation(self, views: Sequence[ExplainView]) -> None: ...

    def report(self, probes: Sequence[ProbeView], whole: bool = True) -> None:
        """Print what probes have counted. whole: those of a glob too that were never hit."""

    def maps(self, maps: Sequence[SessionMapView]) -> None:
        """Print maps of scripts and blocks."""

    def timeline(self, probes: Sequence[ProbeView], more: bool = False) -> None:
        """Print the records of all of them in the order of time. more: others have been printed, or will be."""

    def ran(self, text: str, follower: Follower | None = None) -> None:
        """Print the end of a run. follower: what has shown its records."""

    def guest_traces(self, traces: Sequence[GuestTraceView]) -> None:
        """Print the traces that the guest has printed up to a trampoline."""

    def collector(self, found: CollectorView) -> None: ...

    def quarantine(self, found: CollectorView) -> None:
        """Print a line for memory that is never used again, if there is any."""

    def doctor(self, found: DoctorView) -> None: ...

    def lines(self, lines: Sequence[str]) -> None:
        """Print text that has no JSON form."""


def in_time_order(probes: Sequence[ProbeView]) -> Iterator[tuple[ProbeView, RecordView]]:
    """Yield each record with its probe. Those of hits that stopped the guest have no time and come first."""
    found = [(probe, record) for probe in probes_with_records(probes) for record in probe.records]
    yield from sorted(found, key=lambda one: -1 if one[1].time is None else one[1].time)


def probes_with_records(probes: Sequence[ProbeView]) -> list[ProbeView]:
    """Return the rows that may have records: no count has."""
    return [part for part in parts_of(probes) if not isinstance(part, CountsView)]


def printable_lines(text: str) -> str:
    """Return text without control characters, which a user may have typed. Text from the guest has none."""
    return lines(text.expandtabs())


def traps(probe: ProbeView | ExplainView) -> int:
    """Return how many traps a hit takes."""
    if probe.tier != "trapped":
        return 0
    return 2 if probe.kind == "uretprobe" else 1


def pairs(data: bytes) -> str:
    """Return bytes as hex digits in pairs."""
    return data.hex(" ")
