"""What `optprobe top` shows: from samples to a state, from a state to the lines of a screen. No terminal, no GDB.

    sample, sample, … ──add──► Top ──screen(width, height)──► lines      one screen, cut to its size
                                  └──block──────────────────► lines      for output without a screen
"""

from __future__ import annotations

import heapq
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.commands import aggregates
from gdb_optprobe.commands.render_text import counted
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.maps.aggregate import Histogram, buckets, value
from gdb_optprobe.probes.sampler import Sample, Shown
from gdb_optprobe.probes.views import NANOSECONDS, ObjectView, SessionMapView

RATE, HITS, LOST, NUMBER, NAME = SORTS = ("rate", "hits", "lost", "number", "name")
KEYS = {ord("r"): RATE, ord("h"): HITS, ord("l"): LOST, ord("n"): NUMBER, ord("f"): NAME}
"""Keys that choose the order."""
QUIT = ord("q")
HELP = "r rate  h hits  l lost  n number  f function  q quit"
HEADER = 2
"""Which line of a screen has the titles of the columns."""
LEAST_WIDTH, LEAST_HEIGHT = 20, 5
TREND = 24
"""Samples that a trend shows, one character each."""
MOST_KEYS = 5
"""Keys of a table that are shown."""
BLOCK_ROWS, BLOCK_LINES = 10, 20
"""Rows, and lines of what they gather, that a block has at most."""
BARS = "▁▂▃▄▅▆▇█"
MAY_DIFFER = "averages, histograms and keys may differ by the hits under way"
_UNITS = " KMGTPE"


@dataclass
class Top:
    """labels, numbers: of the rows. way: how memory is read. sort: one of SORTS.

    seconds: since the beginning. begun, now: the first sample and the last one. rates: hits a second of each row since
    the sample before. recent: the rates of the last samples; totals: their sums. gathered: what some rows have beside
    hits, by their labels. maps: of scripts.
    """

    labels: Sequence[str]
    numbers: Sequence[int]
    way: str = ""
    sort: str = RATE
    seconds: float = 0.0
    begun: Sample | None = None
    now: Sample = field(default_factory=lambda: Sample(()))
    rates: Sequence[float] = ()
    recent: deque[Sequence[float]] = field(default_factory=lambda: deque(maxlen=TREND))
    totals: deque[float] = field(default_factory=lambda: deque(maxlen=TREND))
    gathered: Sequence[tuple[str, Shown]] = ()
    maps: Sequence[SessionMapView] = ()

    def add(self, sample: Sample, seconds: float) -> None:
        """Take what the rows have `seconds` after the beginning. The first sample has no rates."""
        if self.begun is None:
            self.begun, self.rates = sample, [0.0] * len(sample.hits)
        elif seconds > self.seconds:
            self.rates = _rates(self.now, sample, seconds - self.seconds)
            self.recent.append(self.rates)
            self.totals.append(sum(self.rates))
        self.now, self.seconds = sample, seconds

    def end(self, sample: Sample, seconds: float) -> None:
        """Take what the rows have in the end. The rates are those of the whole time then."""
        if self.begun is not None and seconds > 0:
            self.rates = _rates(self.begun, sample, seconds)
            self.totals.append(sum(self.rates))
        self.now, self.seconds = sample, seconds

    def first(self, count: int) -> list[int]:
        """Return the places of the first rows in the order that was chosen."""
        places = range(len(self.labels))
        if self.sort == NUMBER:
            return heapq.nsmallest(count, places, key=lambda at: self.numbers[at])
        if self.sort == NAME:
            return heapq.nsmallest(count, places, key=lambda at: (self.labels[at], self.numbers[at]))
        keys: dict[str, Callable[[int], float]] = {
            RATE: lambda at: self.rates[at],
            HITS: lambda at: self.now.hits[at],
            LOST: lambda at: self.now.lost.get(at, 0) + self.now.faults.get(at, 0),
        }
        by = keys[self.sort]
        return heapq.nsmallest(count, places, key=lambda at: (-by(at), -self.now.hits[at], self.numbers[at]))

    @property
    def lost(self) -> int:
        return sum(self.now.lost.values()) + self.now.together

    @property
    def total_rate(self) -> float:
        return self.totals[-1] if self.totals else 0.0


def _rates(before: Sample, now: Sample, seconds: float) -> list[float]:
    # A handler of the user's may have cleared a count.
    return [max(0, new - old) / seconds for new, old in zip(now.hits, before.hits, strict=True)]


def rows_that_fit(top: Top, height: int) -> int:
    """Return how many rows a screen has, with a third of it left to what they gather, where they gather anything."""
    room = max(1, height - HEADER - 2)
    gathers = bool(top.gathered or top.maps)
    return min(len(top.labels), max(1, room * 2 // 3) if gathers else room)


def screen(top: Top, width: int, height: int) -> list[str]:
    """Return the lines of a screen, at most `height` of at most `width` columns."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return [cut(f"{short(top.total_rate)}/s", width)][:height]
    rows = top.first(rows_that_fit(top, height))
    found = [*_title(top), *_table(top, rows, width)]
    room = height - len(found) - 1
    found += _gathered(top, max(0, room))[: max(0, room)]
    found += [""] * (height - len(found) - 1)
    return [cut(line, width) for line in [*found[: height - 1], HELP]]


def block(top: Top, width: int, said: str = "") -> list[str]:
    """Return what is printed at an interval: totals, the first rows, what they gather.

    width: 0 for unlimited. said: what the first line begins with.
    """
    rows = [at for at in top.first(BLOCK_ROWS) if top.now.hits[at]]
    lost = f", {top.lost:,} lost" if top.lost else ""
    faults = f", {sum(top.now.faults.values()):,} faults" if top.now.faults else ""
    hits = sum(top.now.hits)
    counts = f"{hits:,} {'hit' if hits == 1 else 'hits'}{lost}{faults}"
    first = f"{said}{top.seconds:.1f} s: {top.total_rate:,.0f}/s, {counts}"
    lines = [first, *_table(top, rows, width or 1 << 16, trend=False)] if rows else [first]
    lines += [f"  {line}" for line in _gathered(top, BLOCK_LINES)]
    return [cut(line, width) if width else line for line in lines]


def cut(text: str, width: int) -> str:
    """Return text of one line in at most so many columns of a terminal: some characters take two, marks none."""
    text = one_line(text)
    if text.isascii():
        return text[:width]
    used, kept = 0, []
    for character in text:
        columns = 0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        if used + columns > width:
            break
        used += columns
        kept.append(character)
    return "".join(kept)


def short(number: float) -> str:
    """Return a number in at most nine characters: with commas, or as 1.23G."""
    exact = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
    if len(exact) <= 9:
        return exact
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.3g}{_UNITS[unit]}"


def trend(values: Sequence[float]) -> str:
    """Return a character for each value, by its part of the greatest; a blank for none."""
    most = max(values, default=0)
    steps = len(BARS) - 1
    return "".join(BARS[round(steps * value / most)] if value > 0 else " " for value in values)


def _title(top: Top) -> Iterator[str]:
    faults = sum(top.now.faults.values())
    told = [counted(len(top.labels), "probe"), f"{short(top.total_rate)}/s", f"{sum(top.now.hits):,} hits"]
    told += [f"{top.lost:,} lost"] if top.lost else []
    told += [f"{faults:,} faults"] if faults else []
    yield f"optprobe top, {top.seconds:.0f} s: {', '.join(told)}  {trend(top.totals)}"
    yield f"read {top.way}" + (f"; {MAY_DIFFER}" if top.gathered or top.maps else "")


@dataclass(frozen=True, slots=True)
class _Column:
    """title: its sign is that of the order by it. size: characters. least: columns of a screen that has it.

    cell: makes it of a row.
    """

    title: str
    size: int
    least: int
    cell: Callable[[int], str]


def _table(top: Top, rows: Sequence[int], width: int, trend: bool = True) -> Iterator[str]:
    """Yield the titles and the rows. A narrow one has fewer columns; the name is the last, and cut."""
    columns = [one for one in _columns(top, trend) if width >= one.least]
    titles = [f"{one.title:>{one.size}}" for one in columns]
    yield " ".join([*titles, f"PROBE{_mark(top, NAME)}"])
    for at in rows:
        yield " ".join([*(f"{one.cell(at):>{one.size}}" for one in columns), top.labels[at]])


def _columns(top: Top, with_trend: bool) -> Iterator[_Column]:
    total = top.total_rate

    def share(at: int) -> str:
        return f"{100 * top.rates[at] / total:.1f}%" if total and top.rates[at] else ""

    def lost(at: int) -> str:
        return short(top.now.lost[at]) if at in top.now.lost else ""

    def faults(at: int) -> str:
        return short(top.now.faults[at]) if at in top.now.faults else ""

    digits = max(3, len(str(max(top.numbers, default=0))))
    yield _Column(f"#{_mark(top, NUMBER)}", digits, 50, lambda at: str(top.numbers[at]))
    yield _Column(f"RATE/S{_mark(top, RATE)}", 9, 0, lambda at: short(top.rates[at]))
    yield _Column("SHARE", 6, 46, share)
    yield _Column(f"HITS{_mark(top, HITS)}", 13, 36, lambda at: f"{top.now.hits[at]:,}")
    if top.now.lost:
        yield _Column(f"LOST{_mark(top, LOST)}", 9, 60, lost)
    if top.now.faults:
        yield _Column("FAULTS", 9, 70, faults)
    if with_trend:
        yield _Column("TREND", TREND, 90, lambda at: _trend_of(top, at))


def _trend_of(top: Top, at: int) -> str:
    return trend([rates[at] for rates in top.recent])


def _mark(top: Top, sort: str) -> str:
    return "*" if top.sort == sort else ""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one action or map has. keys: a line each, the greatest first."""

    head: Sequence[str]
    keys: Sequence[str] = ()

    def lines(self, keys: int) -> list[str]:
        return [*self.head, *self.keys[:keys]]


def _gathered(top: Top, room: int) -> list[str]:
    """Return what rows and maps have, in at most so many lines: as many keys of each as fit."""
    parts = [part for label, shown in top.gathered for part in _parts(label, shown)]
    parts += [_map(one) for one in top.maps]
    for keys in range(MOST_KEYS, 0, -1):
        found = [line for part in parts for line in part.lines(keys)]
        if len(found) <= room:
            break
    return found[:room]


def _parts(label: str, shown: Shown) -> Iterator[_Part]:
    for one in shown.objects:
        yield _part(f"{label} {one.action}", one)
    if shown.newest:
        yield _Part([f"{label} newest: {shown.newest}"])


def _part(name: str, one: ObjectView) -> _Part:
    if not one.keys and len(one.rows) <= 1:
        return _Part([f"{name}: {_spelled(one, one.rows[0].words) if one.rows else 'nothing yet'}"])
    lost = f", {one.lost:,} values found no room" if one.lost else ""
    weights = [(aggregates.weight(one.aggregate, row.words), row) for row in one.rows]
    total = sum(weight for weight, _ in weights if weight > 0)
    keys = []
    for weight, row in heapq.nlargest(MOST_KEYS, weights, key=lambda each: each[0]):
        share = f"{100 * weight / total:5.1f}%" if total and aggregates.adds_up(one.aggregate) else ""
        keys.append(f"  {_spelled(one, row.words):>12} {share:>6} {row.spelled}")
    return _Part([f"{name}: {counted(len(one.rows), 'key')}{lost}"], keys)


def _map(one: SessionMapView) -> _Part:
    """Return a map's text, of which the greatest of its keys are the last. Some values are several lines."""
    found = [line for line in one.text.splitlines() if line]
    is_line_each = all(line.startswith("@") for line in found)
    return _Part((), found[::-1] if is_line_each else found[-MOST_KEYS:])


def _spelled(one: ObjectView, words: Sequence[int]) -> str:
    if isinstance(one.aggregate, Histogram):
        return _histogram(one.aggregate, words, one.unit)
    found = value(one.aggregate, words)
    return f"{found:,}{one.unit}" if isinstance(found, int) else "nothing yet"


def _histogram(kind: Histogram, words: Sequence[int], unit: str) -> str:
    """Return a histogram as one line: from where, a character for each bucket, to where, and how many values."""
    found = buckets(kind, words)
    filled = [place for place, one in enumerate(found) if one.count]
    if not filled:
        return "nothing yet"
    some = found[filled[0] : filled[-1] + 1]
    low, high = some[0].low, some[-1].high
    spell = aggregates.duration if unit == NANOSECONDS else short
    first, last = ("…" if edge is None else spell(edge) for edge in (low, high))
    values = sum(one.count for one in found)
    return f"{first} {trend([one.count for one in some])} {last} ({counted(values, 'value')})"
