"""What `optprobe report -html` shows: sections of a page, made of a report's rows. No GDB here.

    ProbeView ──from_views──► Recording: calls, events, stacks, numbers ─┐
       └── tiers, costs, reasons, losses ────────────────────────────────┴──► Section ──pages/──► HTML
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from gdb_optprobe import __version__
from gdb_optprobe.commands.aggregates import bucket_range, duration, short
from gdb_optprobe.commands.output import BEST, STOPS
from gdb_optprobe.commands.render_text import asked, cost_of_hit, counted, guest_line, hit_ones, many
from gdb_optprobe.exports.from_views import gathered, recording
from gdb_optprobe.exports.own_time import own_times
from gdb_optprobe.exports.recording import Call, Distribution, Event, Mean, Measure, Number, Recording, Stack, Value
from gdb_optprobe.maps.aggregate import Bucket, Powers, buckets, quantile
from gdb_optprobe.pages.bars import Bar, Group, logarithmic
from gdb_optprobe.pages.flame import Node, Share, Span, by_function, flame, frames, in_time, tree
from gdb_optprobe.pages.heat_map import heat_map, legend
from gdb_optprobe.pages.page import LINE, NUMBER, Cell, Column, Figure, Page, Paragraph, Part, Section, Table
from gdb_optprobe.pages.svg import cut, share_bar
from gdb_optprobe.pages.timeline import Lane, Lanes, Run, timeline
from gdb_optprobe.probes.views import GatheredView, GuestView, ProbeView, SessionMapView

LONGEST = 200
"""Characters of a cell."""
ROWS, KEYS, MAPS, HISTOGRAMS, RECORDS, PROBES_DRAWN = 25, 12, 20, 20, 40, 12
HEATED, COLUMNS, INTERVALS, GRAPH_ROWS = 3, 40, 10, 120
FRAMES, RUNS, CPUS, PLACES = 240, 120, 8, 4
"""How much of each there is at most, where the page is not too large."""
_SECOND = 1_000_000_000
_SHARE = Column("")


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to show. written: when, in words. order: the field of a report by which the probes are sorted.

    last: what a command that probes by itself has shown; then there are no probes.
    """

    probes: Sequence[ProbeView]
    never: Mapping[str, int]
    recording: Recording
    maps: Sequence[SessionMapView]
    guest: GuestView
    written: str
    order: str = "hits"
    last: GatheredView | None = None

    @classmethod
    def of_last(cls, last: GatheredView, guest: GuestView, written: str) -> Found:
        return cls((), {}, gathered(last), (), guest, written, last=last)

    @classmethod
    def of(
        cls,
        probes: Sequence[ProbeView],
        maps: Sequence[SessionMapView],
        guest: GuestView,
        written: str,
        order: str = "",
    ) -> Found:
        """order: the field by which `probes` are sorted already; "" for none."""
        shown, never = hit_ones(probes)
        ordered = shown if order else sorted(shown, key=lambda probe: -probe.hits)
        return cls(ordered, never, recording(probes, maps), maps, guest, written, order or "hits")

    @property
    def summary(self) -> str:
        """Return what is on the page, in a few words."""
        found = self.recording
        all_probes = len(self.probes) + sum(self.never.values())
        stacks = sum(one.count for one in found.stacks)
        calls, intervals = (sum(self.last.words), len(self.last.intervals)) if self.last is not None else (0, 0)
        counts = (
            (all_probes, "probe"), (len(found.calls) + calls, "call"), (len(found.events), "event"), (stacks, "stack"),
            (len(self.maps), "map"), (intervals, "interval"),
        )  # fmt: skip
        *most, last = [many(count, noun) for count, noun in counts if count] or ["nothing"]
        return f"{', '.join(most)} and {last}" if most else last

    @property
    def times(self) -> tuple[int, int]:
        """Return the first and the last time."""
        found = self.recording
        timed = [one.time for one in found.events if one.time is not None]
        return min([*timed, *(one.begin for one in found.calls)], default=0), found.end


def page(found: Found, share: float = 1.0) -> Page:
    """Return the page. share: of the most that each section may have."""
    limit = _Limit(share)
    sections = (
        Section("Probes", [*_probes(found, limit)]),
        Section("Cost of a hit", _costs(found, limit)),
        Section("Counts and values", [*_values(found, limit)]),
        Section("Histograms", [*_histograms(found, limit)]),
        Section("Over time", [*_over_time(found, limit)]),
        Section("Call graph", [*_graph(found, limit)]),
        Section("Calls", [*_calls(found, limit)]),
        Section("Stacks", [*_stacks(found, limit)]),
        Section("By CPU", [*_by_cpu(found, limit)]),
        Section("Records", [*_records(found, limit)]),
        Section("Lost", [*_lost(found, limit)]),
        Section("Not optimized", [*_refused(found, limit)]),
    )
    facts = [
        ("Guest", guest_line(found.guest)),
        ("On this page", found.summary),
        ("Written", f"{found.written}, by optprobe {__version__}"),
    ]
    title = "report" if found.last is None else found.last.title
    return Page(f"optprobe {title}", facts, [one for one in sections if one.parts])


@dataclass(frozen=True, slots=True)
class _Limit:
    share: float

    def __call__(self, most: int) -> int:
        return max(int(most * self.share), 2)


# probes and costs -----------------------------------------------------------------------------------------------------


def _probes(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield the top table, and what is not in it."""
    most = max((one.hits for one in found.probes), default=0) or 1
    rows = [
        (one.number, one.hits, share_bar(one.hits / most), _cell(asked(one)), cost_of_hit(one))
        for one in found.probes[: limit(ROWS)]
    ]
    columns = (
        Column("No.", NUMBER), Column("Hits", NUMBER), _SHARE, Column("What"), Column("Cost of a hit", LINE)
    )  # fmt: skip
    if rows:
        yield Table(f"By {found.order}", columns, rows, _more(len(found.probes) - len(rows), "probe"))
    for location, number in found.never.items():
        yield Paragraph(f"{number:,} of {location} were never hit.")


def _costs(found: Found, limit: _Limit) -> list[Part]:
    shown = [one for one in found.probes if one.detour is not None or one.tier in STOPS][: limit(PROBES_DRAWN)]
    if not shown:
        return []
    groups = [*_linux(found, shown), *(Group(f"{one.number} {asked(one)}", [_cost(one)]) for one in shown)]
    notes = ["Counted when the probe was made."]
    if len(groups) > len(shown):
        notes.append("Linux's own events: measured on a stock kernel by optprobe's bench, not in this guest.")
    if any(one.detour is not None and one.detour.own != one.detour.added for one in shown):
        notes.append("Site: with all probes at the same address.")
    if any(one.tier in STOPS for one in shown):
        notes.append("A hit that stops the guest takes milliseconds: it is off the scale.")
    title = "Instructions of the guest that a hit adds, on a logarithmic scale"
    drawing = logarithmic(title, f"{counted(len(shown), 'probe')}; the figure is behind each bar.", groups)
    return [Figure(drawing, title), Paragraph(" ".join(notes))]


def _linux(found: Found, shown: Sequence[ProbeView]) -> Iterator[Group]:
    """Yield what Linux's own events take, of the kinds that there are."""
    for kind, cost in found.guest.event_costs.items():
        if any(one.kind == kind for one in shown):
            yield Group(f"Linux's own {kind} event", [Bar("linux", cost, f"{cost:,} instructions")])


def _cost(probe: ProbeView) -> Bar:
    if probe.detour is None or probe.tier in STOPS:
        return Bar("stop", None, cost_of_hit(probe))
    return Bar("ours", max(probe.detour.own, 1), cost_of_hit(probe))


# what actions gathered ------------------------------------------------------------------------------------------------


def _values(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield one table of single values, and one of each map with keys."""
    groups = _grouped(found.recording, (Number, Mean))
    single = [one for group in groups for one in group if not one.key]
    if single:
        rows = [(_cell(_place(one)), _cell(one.action or one.name), _spelled(one)) for one in single[: limit(ROWS)]]
        columns = (Column("Where"), Column("What"), Column("Value", NUMBER))
        yield Table("Values", columns, rows, _more(len(single) - len(rows), "value"))
    keyed = [sorted((one for one in group if one.key), key=_weight, reverse=True) for group in groups]
    maps = [*map(partial(_map, limit), filter(None, keyed)), *_printed(found.maps)]
    yield from maps[: limit(MAPS)]
    yield from _others(len(maps) - limit(MAPS), "map")


def _printed(maps: Sequence[SessionMapView]) -> Iterator[Table]:
    """Yield maps without numbers, as they are printed."""
    for one in maps:
        if not one.rows and one.text:
            lines = [(_cell(line),) for line in one.text.split("\n")]
            more = _more(len(lines) - KEYS, "line")
            yield Table(_cell(one.name or "A map"), (Column("As printed"),), lines[:KEYS], more)


def _map(limit: _Limit, keyed: Sequence[Measure]) -> Table:
    """Return the keys of one map, those with the greatest values first."""
    first = keyed[0]
    shown = keyed[: limit(KEYS)]
    most = max(_weight(first), 1)
    names = [name for name, _ in first.key]
    rows: list[Sequence[Cell]] = [
        (*(_cell(value) for _, value in one.key), _spelled(one), share_bar(_weight(one) / most)) for one in shown
    ]
    columns = (*(Column(name) for name in names), Column("Value", NUMBER), _SHARE)
    title = f"{_place(first)}: {first.action}" if first.source is not None else first.action
    return Table(_cell(title), columns, rows, _more(len(keyed) - len(shown), "key"))


def _histograms(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield a table of each, those of the most values first."""
    shown = [one for group in _grouped(found.recording, (Distribution,)) for one in group]
    shown.sort(key=_weight, reverse=True)
    for one in shown[: limit(HISTOGRAMS)]:
        assert isinstance(one.value, Distribution)
        filled = [place for place, each in enumerate(one.value.buckets) if each.count]
        if filled:
            buckets = one.value.buckets[filled[0] : filled[-1] + 1]
            most = max(each.count for each in buckets)
            rows = [
                (label, each.count, share_bar(each.count / most))
                for label, each in zip(_labels(buckets, one.unit), buckets, strict=True)
            ]
            key = f" [{', '.join(str(value) for _, value in one.key)}]" if one.key else ""
            columns = (Column("From, to below", NUMBER), Column("How many", NUMBER), _SHARE)
            yield Table(_cell(f"{_place(one)}: {one.action or one.name}{key}".removeprefix(": ")), columns, rows)
    yield from _others(len(shown) - limit(HISTOGRAMS), "histogram")


def _grouped(found: Recording, kinds: tuple[type, ...]) -> list[list[Measure]]:
    """Return what actions gathered, by action and kind of key; what every probe counts is in other tables."""
    groups: dict[tuple[object, ...], list[Measure]] = {}
    for one in found.measures:
        if (one.action or one.source is None) and isinstance(one.value, kinds) and not one.name.startswith("lost"):
            groups.setdefault((one.source, one.action, one.name, *(name for name, _ in one.key)), []).append(one)
    return [*groups.values()]


def _labels(buckets: Sequence[Bucket], unit: str) -> list[str]:
    """Return the range of each; times with three digits where that tells them apart."""
    spellings: tuple[Callable[[int], str], ...] = (short,) if not unit else (duration, lambda edge: f"{edge}{unit}")
    for spell in spellings:
        found = [bucket_range(one, spell) for one in buckets]
        if len({*found}) == len(found):
            break
    return found


def _weight(one: Measure) -> int:
    match one.value:
        case Number(value):
            return value
        case Mean():
            return _mean(one.value)
        case Distribution(buckets):
            return sum(each.count for each in buckets)


def _spelled(one: Measure) -> str:
    match one.value:
        case Number(value):
            return duration(value) if one.unit and value >= 0 else f"{value:,}"
        case Mean(count):
            mean = _mean(one.value)
            return f"{duration(mean) if one.unit and mean >= 0 else f'{mean:,}'} of {count:,}"
        case Distribution():
            return ""


def _mean(found: Mean) -> int:
    """Return the mean, rounded towards zero as C divides."""
    whole = abs(found.sum) // found.count if found.count else 0
    return whole if found.sum >= 0 else -whole


def _place(one: Measure) -> str:
    return one.source.place if one.source is not None else ""


# calls, stacks --------------------------------------------------------------------------------------------------------


def _calls(found: Found, limit: _Limit) -> Iterator[Part]:
    calls = found.recording.calls
    if not calls:
        return
    paths = own_times(found.recording)
    stacks = [Stack(path, own.time) for path, own in paths.items()]
    root = tree(stacks)
    functions = by_function(root)
    yield _functions(calls, functions, limit)
    yield from _flame("Time of calls, by thread and path", root, functions, duration, limit)
    by_place = Counter(call.source.place for call in calls)
    for place, _ in by_place.most_common(HEATED):
        yield _heat(place, [call for call in calls if call.source.place == place], found.times, limit)
    yield from _others(len(by_place) - HEATED, "function", "without a picture of their calls over time")


def _functions(calls: Sequence[Call], functions: Sequence[Share], limit: _Limit) -> Table:
    """Return the functions, with the time of their calls, and without that of the calls in them."""
    lasted: dict[str, list[int]] = {}
    for call in calls:
        lasted.setdefault(call.source.place, []).append(call.end - call.begin)
    own = {name: value for name, value, _ in functions}
    order = sorted(lasted, key=lambda place: (-own.get(place, 0), place))
    most = max(own.get(order[0], 0), 1)
    rows: list[Sequence[Cell]] = []
    for place in order[: limit(ROWS)]:
        times = sorted(lasted[place])
        whole, by_itself = sum(times), own.get(place, 0)
        first = (_cell(place), len(times), duration(by_itself), share_bar(by_itself / most))
        rows.append((*first, duration(whole), *map(duration, _spread(times))))
    columns = (
        Column("Function"),
        *(Column(title, NUMBER) for title in ("Calls", "Own time")),
        _SHARE,
        *(Column(title, NUMBER) for title in ("All time", "Median", "99 %", "Longest")),
    )
    title = "Functions, by their own time: without that of the probed calls in them"
    return Table(title, columns, rows, _more(len(order) - len(rows), "function"))


# a latency, a call graph ----------------------------------------------------------------------------------------------


def _over_time(found: Found, limit: _Limit) -> Iterator[Figure]:
    """Yield how long calls took in each interval of a latency."""
    last = found.last
    if last is None or not any(map(any, last.intervals)):
        return
    step = -(-len(last.intervals) // limit(COLUMNS))
    parts = [last.intervals[at : at + step] for at in range(0, len(last.intervals), step)]
    columns = [_sum(part) for part in parts]
    cells = {(column, _row(one)): one.count for column, each in enumerate(columns) for one in each if one.count}
    lowest = min(row for _, row in cells)
    names = [duration(1 << row) for row in range(lowest, max(row for _, row in cells) + 1)]
    times = [round(_SECOND * last.every * (last.skipped + step * column)) for column in range(len(columns))]
    begins = [_after(time) if time else "0" for time in times]

    def note(column: int, row: int, count: int) -> str:
        return f"{counted(count, 'call')} from {names[row]}, at {begins[column]}"

    rows: list[Sequence[Cell]] = [
        (begin, sum(one.count for one in each), *(_below(each, percent) for percent in (50, 99, 100)))
        for begin, each in zip(begins, columns, strict=True)
    ]
    titles = ("From", "Calls", "Median below", "99 % below", "All below")
    title = f"Calls of {cut(last.function)}: how long they took, over time"
    said = f"{counted(sum(cells.values()), 'call')} in {counted(len(last.intervals), 'interval')}."
    most = max(cells.values())
    shifted = {(column, row - lowest): count for (column, row), count in cells.items()}
    middle = _after(round(_SECOND * last.every * (last.skipped + len(last.intervals) / 2)))
    ends = (begins[0], middle, _after(round(_SECOND * last.every * (last.skipped + len(last.intervals)))))
    drawing = heat_map(title, said, shifted, len(columns), names, ends, note)
    every = f"Every {duration(round(_SECOND * last.every * step))}"
    yield Figure(drawing, title, legend(most), Table(every, [Column(one, NUMBER) for one in titles], rows))


def _sum(intervals: Sequence[Sequence[int]]) -> Sequence[Bucket]:
    """Return the buckets of several histograms of powers of two together."""
    words = tuple(sum(each) for each in zip_longest(*intervals, fillvalue=0))
    return buckets(Powers(True), words) if words else ()


def _row(one: Bucket) -> int:
    return (one.low or 1).bit_length() - 1


def _below(found: Sequence[Bucket], percent: float) -> str:
    one = quantile(found, percent)
    return duration(one.high) if one is not None and one.high is not None else ""


def _graph(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield the longest call of a graph's root, and a typical one."""
    calls = found.recording.calls
    starts = [at for at, call in enumerate(calls) if call.depth == 0]
    if found.last is None or not starts:
        return
    roots = [calls[at:end] for at, end in zip(starts, [*starts[1:], len(calls)], strict=True)]
    roots.sort(key=lambda one: one[0].end - one[0].begin)
    name, many_ = cut(roots[0][0].source.place), counted(len(roots), "call")
    yield _one_call(roots[-1], f"The longest of {many_} of {name}" if len(roots) > 1 else f"The call of {name}", limit)
    if len(roots) > 2:
        yield _one_call(roots[len(roots) // 2], f"A typical one, of median length, of {many_} of {name}", limit)


def _one_call(calls: Sequence[Call], title: str, limit: _Limit) -> Figure:
    """Return a call of the root, and what it called, in the order of time."""
    root = calls[0]
    shown, left_out = in_time(
        [Span(one.source.place, one.depth or 0, one.begin, one.end) for one in calls], limit(FRAMES)
    )
    took, thread = duration(root.end - root.begin), root.thread
    caller = f", {cut(thread.name)} {thread.id}" if thread is not None else ""
    said = f"{title} took {took}. Time goes from left to right; what a function calls is below it."
    rows: list[Sequence[Cell]] = [
        (
            one.depth or 0,
            _cell(one.source.place),
            _after(one.begin - root.begin),
            duration(one.end - one.begin),
            _cell(", ".join(f"{name}={value}" for name, value in one.values)),
        )
        for one in calls[: limit(GRAPH_ROWS)]
    ]
    columns = [
        Column("Level", NUMBER), Column("Function"), Column("Begins", NUMBER), Column("Took", NUMBER), Column("Values")
    ]  # fmt: skip
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    more = f" ({_more(left_out, 'box', 'boxes')}, narrow or deep)" if left_out else ""
    table = Table("Calls, in the order of time", columns, rows, _more(len(calls) - len(rows), "call"))
    at = f"{title}: {took}{caller}, at {_since_boot(root.begin)} since boot{more}"
    return Figure(flame(title, said, shown, duration), at, beside=table)


# calls over time, stacks ----------------------------------------------------------------------------------------------


def _heat(place: str, calls: Sequence[Call], times: tuple[int, int], limit: _Limit) -> Figure:
    """Return how long the calls of a function took, over the time."""
    first, last = times
    columns = min(limit(COLUMNS), max(last - first, 1))
    cells = Counter((_column(call.end, times, columns), _power(call)) for call in calls)
    lowest = min(row for _, row in cells)
    names = [duration(1 << row) for row in range(lowest, max(row for _, row in cells) + 1)]

    def note(column: int, row: int, count: int) -> str:
        return f"{counted(count, 'call')} from {names[row]}, at {_after((last - first) * column // columns)}"

    name = cut(place)
    title = f"Calls of {name}: how long they took, over time"
    spread = [duration(each) for each in _spread(sorted(call.end - call.begin for call in calls))]
    most = max(cells.values())
    said = f"{counted(len(calls), 'call')}: median {spread[0]}, 99 % up to {spread[1]}, longest {spread[2]}."
    shifted = {(column, row - lowest): count for (column, row), count in cells.items()}
    drawing = heat_map(title, said, shifted, columns, names, _ticks(times), note)
    caption = f"{title}, from {_since_boot(first)} since boot"
    return Figure(drawing, caption, legend(most), _by_interval(calls, times))


def _by_interval(calls: Sequence[Call], times: tuple[int, int]) -> Table:
    parts: dict[int, list[int]] = {}
    for call in calls:
        parts.setdefault(_column(call.end, times, INTERVALS), []).append(call.end - call.begin)
    rows: list[Sequence[Cell]] = [
        (_after((times[1] - times[0]) * part // INTERVALS), len(lasted), *map(duration, _spread(sorted(lasted))))
        for part, lasted in sorted(parts.items())
    ]
    columns = ("From", "Calls", "Median", "99 %", "Longest")
    return Table("Tenths of the time", [Column(title, NUMBER) for title in columns], rows)


def _stacks(found: Found, limit: _Limit) -> Iterator[Part]:
    stacks = found.recording.stacks
    root = tree(stacks)
    if stacks and all(one.time is not None for one in stacks):
        yield from _flame("Time of each stack", root, by_function(root), duration, limit)
    else:
        title = "How often each stack was " + ("kept" if found.last is None else "seen")
        yield from _flame(title, root, by_function(root), lambda count: f"{count:,}", limit)


def _flame(
    title: str, root: Node, functions: Sequence[Share], spell: Callable[[int], str], limit: _Limit
) -> Iterator[Figure]:
    if not functions or not root.value:  # stacks of nothing
        return
    shown, left_out = frames(root, limit(FRAMES))
    whole = root.value
    rows = [
        (_cell(name), spell(own), f"{100 * own / whole:.1f} %", share_bar(own / whole), spell(value))
        for name, own, value in functions[: limit(ROWS)]
    ]
    columns = (
        Column("Name"), Column("Own", NUMBER), Column("Share", NUMBER), _SHARE, Column("With what it calls", NUMBER)
    )  # fmt: skip
    name, own, _ = functions[0]
    said = f"Callers are above what they call; the width is the share. Most, {spell(own)}, is in {cut(name)}."
    more = f" ({_more(left_out, 'box', 'boxes')}, narrow or deep)" if left_out else ""
    table = Table(title, columns, rows, _more(len(functions) - len(rows), "function"))
    yield Figure(flame(title, said, shown, spell), f"{title}{more}", beside=table)


# time -----------------------------------------------------------------------------------------------------------------


def _by_cpu(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield what was recorded on each CPU: a lane for each function."""
    spans: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for call in found.recording.calls:
        spans.setdefault(call.cpu, {}).setdefault(call.source.place, []).append((call.begin, call.end))
    for event in found.recording.events:
        if event.time is not None:
            spans.setdefault(event.cpu, {}).setdefault(event.source.place, []).append((event.time, event.time))
    if not spans:
        return
    total: Counter[str] = Counter()
    for each in spans.values():
        total.update({place: len(of) for place, of in each.items()})
    places = [place for place, _ in total.most_common(PLACES)]
    kinds = {place: f"c{number}" for number, place in enumerate(places)}
    groups = [
        Lanes(f"CPU {cpu}", [Lane(place, kinds[place], each[place]) for place in places if place in each])
        for cpu, each in sorted(spans.items())[:CPUS]
    ]
    first, last = found.times

    def note(run: Run) -> str:
        return f"{run.count:,} at {_after(run.begin - first)}, until {_after(run.end - first)}"

    rows = [
        (cpu, _cell(place), len(of), duration(sum(end - begin for begin, end in of)))
        for cpu, each in sorted(spans.items())
        for place, of in sorted(each.items(), key=lambda one: -len(one[1]))
    ]
    columns = (Column("CPU", NUMBER), Column("Where"), Column("Records", NUMBER), Column("Time of calls", NUMBER))
    title = "When and on which CPU: calls and events"
    table = Table(title, columns, rows[: limit(ROWS)], _more(len(rows) - limit(ROWS), "row"))
    said = f"{counted(len(spans), 'CPU')}, from {_since_boot(first)} to {_since_boot(last)} since boot."
    most = max(limit(RUNS * 4) // max(sum(len(group.lanes) for group in groups), 1), 20)
    drawing = timeline(title, said, groups, (first, last), _ticks(found.times), note, most)
    yield Figure(drawing, f"{title}, from {_since_boot(first)} since boot", beside=table)
    yield from _others(len(spans) - CPUS, "CPU", "without lanes")
    yield from _others(len(total) - PLACES, "place", "without lanes")


def _records(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield the last events."""
    events = sorted(found.recording.events, key=lambda one: -1 if one.time is None else one.time)
    shown = events[-limit(RECORDS) :]
    if shown:
        rows = [
            ("" if one.time is None else _since_boot(one.time), one.cpu, _cell(one.source.place), _cell(_text(one)))
            for one in shown
        ]
        columns = (Column("Since boot", NUMBER), Column("CPU", NUMBER), Column("Where"), Column("Record"))
        yield Table("The last records", columns, rows, _more(len(events) - len(shown), "earlier record"))


def _text(one: Event) -> str:
    return one.callers if one.stack else one.text


def _column(time: int, times: tuple[int, int], columns: int) -> int:
    first, last = times
    return min((time - first) * columns // max(last - first, 1), columns - 1)


def _power(call: Call) -> int:
    return max(call.end - call.begin, 1).bit_length() - 1


def _spread(times: Sequence[int]) -> tuple[int, int, int]:
    """Return the median, what 99 % are at most, and the greatest, of sorted times."""
    return times[(len(times) - 1) // 2], times[(99 * len(times) + 99) // 100 - 1], times[-1]


def _ticks(times: tuple[int, int]) -> list[str]:
    return [_after((times[1] - times[0]) * quarter // 4) if quarter else "0" for quarter in (0, 2, 4)]


def _after(time: int) -> str:
    return f"+{duration(time)}"


def _since_boot(time: int) -> str:
    seconds, below = divmod(time, _SECOND)
    return f"{seconds}.{below // 1000:06} s"


# what is missing ------------------------------------------------------------------------------------------------------


def _lost(found: Found, limit: _Limit) -> Iterator[Part]:
    lost = [one for one in found.recording.measures if one.name in _LOSSES and _weight(one)]
    # Of what functions of a glob lost together, each says the same.
    told = ((_of_loss(one), _cell(f"{_LOSSES[one.name]} {one.action}"), _weight(one)) for one in lost)
    rows = list(dict.fromkeys(told))
    if rows:
        columns = (Column("Where"), Column("What"), Column("How many", NUMBER))
        yield Table("What is not on this page", columns, rows[: limit(ROWS)], _more(len(rows) - limit(ROWS), "row"))
    elif found.last is not None:
        if found.recording.lost:
            yield Paragraph(f"{many(found.recording.lost, 'record')} found no room.")
        yield from map(Paragraph, found.last.notes)
        if found.recording.calls and not (found.recording.lost or found.last.notes):
            yield Paragraph("Nothing: every record found room, and no call is known to lack.")
    else:
        yield Paragraph("Nothing: every hit, record and value found room, and all memory could be read.")


def _of_loss(one: Measure) -> str:
    return "" if one.name.endswith("_together") else _cell(_place(one))


_LOSSES = {
    "missed": "hits or calls that found no room",
    "missed_together": "calls that found no room, of all functions of the glob",
    "dropped": "records that found no room, or calls that never returned",
    "faults": "hits with memory that could not be read",
    "lost": "values that found no room:",
    "lost_together": "values that found no room, of all functions of the glob:",
}


def _refused(found: Found, limit: _Limit) -> Iterator[Part]:
    """Yield why probes have no better tier."""
    refused = [one for one in found.probes if one.reason is not None and one.tier != BEST]
    if refused:
        rows = [
            (one.number, _cell(asked(one)), one.tier or one.state, one.reason.code, one.reason.text, one.reason.hint)
            for one in refused[: limit(ROWS)]
            if one.reason is not None
        ]
        columns = (
            Column("No.", NUMBER), Column("What"), Column("Tier"), Column("Code"), Column("Why"), Column("Next step")
        )  # fmt: skip
        yield Table("Probes without a better tier", columns, rows, _more(len(refused) - len(rows), "probe"))


def _others(count: int, noun: str, what: str = "") -> Iterator[Paragraph]:
    """Yield what is left out of a section, if anything is."""
    if count > 0:
        yield Paragraph(f"{_more(count, noun)} {what}".strip())


def _cell(content: Value) -> str:
    return cut(str(content), LONGEST)


def _more(count: int, noun: str, nouns: str = "") -> str:
    return f"and {many(count, noun, nouns)} more" if count > 0 else ""
