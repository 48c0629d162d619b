"""Timelines: lanes of intervals, in groups, from the first time to the last.

    CPU 0
    vfs_read
    ██ ████  █
    rw_verify_area
    ▌  ▌█    ▌
    0      +1ms
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.pages.heat_map import axis
from gdb_optprobe.pages.svg import Drawing, Markup, cut, element, percent, text

HEAD, LABEL, LANE, FOOT = 20, 14, 14, 16
BAR = 10
LEAST = 0.0015
"""The share of the width of what has no length."""


@dataclass(frozen=True, slots=True)
class Lane:
    """kind: its class of colour. spans: (begin, end)."""

    label: str
    kind: str
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Lanes:
    label: str
    lanes: Sequence[Lane]


@dataclass(frozen=True, slots=True)
class Run:
    """Spans with less than the eye's distance between them."""

    begin: int
    end: int
    count: int


def timeline(
    title: str,
    description: str,
    groups: Sequence[Lanes],
    span: tuple[int, int],
    ticks: Sequence[str],
    note: Callable[[Run], str],
    most: int,
) -> Drawing:
    """span: from the first time to the last. note: of a run. most: runs of a lane."""
    content: list[Markup] = []
    top = 0
    for group in groups:
        content.append(text(group.label, "0", top + 14, "strong"))
        top += HEAD
        for lane in group.lanes:
            content.append(text(cut(lane.label), "0", top + 10, "note"))
            content += _lane(lane, top + LABEL, span, note, most)
            top += LABEL + LANE
    return Drawing(title, description, top + FOOT, (*content, *axis(ticks, top + 12)), "time")


def runs(spans: Sequence[tuple[int, int]], gap: int) -> list[Run]:
    """Return the spans, with those as one run that are not further apart than `gap`."""
    found: list[Run] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1].end <= gap:
            last = found.pop()
            found.append(Run(last.begin, max(last.end, end), last.count + 1))
        else:
            found.append(Run(begin, end, 1))
    return found


def _lane(
    lane: Lane, top: int, span: tuple[int, int], note: Callable[[Run], str], most: int
) -> Iterator[Markup]:
    first, last = span
    whole = max(last - first, 1)
    yield element("rect", {"class": "ground", "y": top, "width": "100%", "height": BAR})
    for run in runs(lane.spans, whole // most):
        width = max((run.end - run.begin) / whole, LEAST)
        left = min((run.begin - first) / whole, 1 - width)
        place = {"x": percent(left), "y": top, "width": percent(width), "height": BAR}
        yield element("rect", {"class": lane.kind, **place}, element("title", {}, note(run)))
