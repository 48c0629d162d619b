"""The output of commands as text, as GDB prints it."""

from __future__ import annotations

import operator
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile

from gdb_optprobe.commands import aggregates
from gdb_optprobe.commands.output import BEST, STOPS, Write, in_time_order, pairs, printable_lines, traps
from gdb_optprobe.commands.parse import is_glob
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.views import (
    ActiveCallView,
    CallsView,
    CodeLine,
    CollectorView,
    CountsView,
    DoctorView,
    ExplainView,
    GuestTraceView,
    GuestView,
    LeftOutView,
    ProbeView,
    ReasonView,
    RecordView,
    SessionMapView,
    ShowView,
    parts_of,
)

Colour = Callable[[str], str]
_Row = tuple[Sequence[str], Sequence[str]]
# Columns of a line where GDB's `width` is unlimited (in batch mode), and fewest ones where it is not.
WIDTH = 100
_NARROWEST = 40
_INDENT = "        "
# `add` of a glob prints a line for each probe up to this many, then counts them.
_MANY = 10
# How many threads of one name are listed by number, and functions that a glob leaves out by name.
_MOST = 8
_STOP = "stop"
# Columns of a report that are left out on a narrow terminal where all is 0.
_LOSSES = ("Missed", "Dropped", "Faults", "Stops")
_NEWLINE = "\n"
_SECOND = 1_000_000_000  # nanoseconds
_SYMBOL = "\0"
"""Where a symbol will be."""
_LARGER_MAPS = "set optprobe table-keys, and add the glob again"
_LARGER_RINGS = "set optprobe ring-records, and add the probe again"
_NEEDS_GDB = "needs GDB: without one, the guest waits at the next hit"
WAITS = "PENDING"
_NAMES = {
    "current_thread": "current thread",
    "task_list": "task list",
    "code_memory": "code memory",
    "data_memory": "data memory",
    "ftrace_records": "ftrace records",
    "trap_tier": "trap tier",
    "user_programs": "user programs",
    "gdb": "this GDB",
    "qemu": "this QEMU",
}
_NAME_WIDTH = 16


class Text:
    """Text as GDB prints it. width: columns of a line; 0 where they are unlimited."""

    def __init__(self, write: Write, colour: Colour = str, width: int = 0) -> None:
        self._write = write
        self._colour = colour
        self._width = max(width, _NARROWEST) if width else WIDTH
        self._is_limited = bool(width)
        self._names_width = 0

    def lines(self, lines: Sequence[str]) -> None:
        if lines:
            self._write(f"{printable_lines(_NEWLINE.join(lines))}\n")

    def _sentences(self, lines: Sequence[str]) -> None:
        """Write lines that a terminal would break within a word."""
        for line in lines:
            self.lines(self._broken(line) if self._is_limited else [line])

    def _broken(self, line: str) -> list[str]:
        return textwrap.wrap(
            line, self._width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )

    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        many = len(probes) > _MANY
        if glob or many:
            self._sentences([_summary(probes)])
            firsts = [_first(part) for part in parts_of(probes)]
            self._sentences([line for first in firsts for line in _left_out(first.left_out)])
            self._sentences([f"NOTE: {probes[0].note}"] if many and probes[0].note else [])
        singles = [part for part in parts_of(probes) if isinstance(part, ProbeView)] if many else probes
        told = [probe for probe in singles if not many or (probe.tier != BEST and probe.state != "optimizing")]
        for probe in told[:_MANY]:
            self._sentences(_added(probe)[: 1 if many else None])
        if len(told) > _MANY:
            self.lines([f"... and {len(told) - _MANY} more: optprobe list"])

    def probes(self, probes: Sequence[ProbeView]) -> None:
        if not probes:
            self.lines(["No probes."])
            return
        rows = [row for part in parts_of(probes) for row in self._rows(part)]
        self.lines(table(("Num", "Tier", "Hits", "Address", "What"), rows, self._width, right=("Num", "Hits")))
        self._sentences(_missed_together(probes))

    def _rows(self, part: ProbeView | CountsView) -> Iterable[_Row]:
        """Return the row of a probe, with the remarks below it, or those of many counts."""
        if isinstance(part, ProbeView):
            return [(_row(part), _remarks(part, self._width))]
        _, tier, _, _, what = _row(replace(part.first, symbol=_SYMBOL))
        before, _, behind = what.partition(_SYMBOL)
        remarks = _remarks(part.first, self._width)
        names = (symbol or part.first.location for symbol in part.symbols)
        columns = zip(count(part.first.number), part.hits, part.addresses, names, strict=False)
        return [
            ((str(number), tier, str(hits), f"{address:#018x}", f"{before}{name}{behind}"), remarks)
            for number, hits, address, name in columns
        ]

    def timeline(self, probes: Sequence[ProbeView], more: bool = False) -> None:
        found = [
            (f"{probe.number} {probe.symbol or probe.location}", record) for probe, record in in_time_order(probes)
        ]
        if not found and not more:
            self.lines(["No records."])
        width = self._names_width = max((self._names_width, *(len(name) for name, _ in found)))
        for name, record in found:
            first, *rest = _record(record)
            beside = " " * (width + 1)
            self.lines([beside + line for line in _losses_before(record)])
            self.lines([f"{name:<{width}} {first}", *(beside + line for line in (*rest, *_losses_after(record)))])

    def ran(self, text: str, follower: Follower | None = None) -> None:
        self.lines([text])
        if follower is not None:
            records = f"{follower.records:,} {'record' if follower.records == 1 else 'records'}"
            self.lines([f"{records}, {follower.lost:,} lost"])
            self.lines([f"HINT: {_LARGER_RINGS}"] if follower.lost else [])

    def report(self, probes: Sequence[ProbeView], whole: bool = True) -> None:
        if not probes:
            self.lines(["No probes."])
            return
        missed = _missed_together(probes)
        probes, never = (probes, {}) if whole else hit_ones(probes)
        columns: Sequence[str] = ("Num", "Hits", "Missed", "Dropped", "Faults", "Stops", "Cost of a hit", "Where")
        cells = [_report_row(probe) for probe in probes]
        right = columns[:6]
        if self._width < WIDTH:
            columns, cells = _without_zeros(columns, cells, _LOSSES)
        if cells:
            self.lines(table(columns, [(row, ()) for row in cells], self._width, right))
        self.lines([f"and {number} of {location} never hit: -all" for location, number in never.items()])
        self._sentences(missed)
        for probe in probes:
            if probe.objects or probe.records or probe.calls is not None:
                self.lines(["", f"Probe {probe.number}, {asked(probe)}", *_gathered(probe)])
        self._sentences(_lost_in_globs(probes))

    def maps(self, maps: Sequence[SessionMapView]) -> None:
        for each in maps:
            self.lines(["", *each.text.split(_NEWLINE)])

    def guest_traces(self, traces: Sequence[GuestTraceView]) -> None:
        for trace in traces:
            self.lines(["", *_guest_trace(trace)])

    def collector(self, found: CollectorView) -> None:
        self.lines(["", *_collector(found, self._width)])

    def quarantine(self, found: CollectorView) -> None:
        self.lines(_quarantine(found))

    def doctor(self, found: DoctorView) -> None:
        self.lines(_doctor(found, self._width))

    def show(self, views: Sequence[ShowView]) -> None:
        for view in views:
            self._sentences([_headline(view.probe)])
            self.lines(_remarks(view.probe, self._width))
            self._section("original", view.original)
            self._section("patched", view.patched)
            self._section("detour", view.detour)
            self._section("trampoline", view.trampoline)

    def explanation(self, views: Sequence[ExplainView]) -> None:
        for view in views:
            verdict, *why = _explanation(view, self._width)
            self._sentences([verdict])
            self.lines(why)
            if view.displaced:
                self._section("the branch displaces" if view.tier == BEST else "the instruction", view.displaced)

    def _section(self, title: str, code: Sequence[CodeLine]) -> None:
        if not code:
            return
        self.lines([f"{title}:"])
        most = 15 if self._width >= WIDTH else 8
        digits = min(max(len(line.data) for line in code), most) * 3 - 1
        before: tuple[str, ...] = ()
        for line in code:
            if line.note:
                self.lines([f"    ; {line.note}"])
            self.lines(_new_parts(before, line.part))
            before = line.part
            text = self._colour(printable_lines(line.text))
            self._write(f"    {line.address:#x}  {pairs(line.data[:most]):<{digits}}  {text}\n")
            if line.data[most:]:
                self._write(f"    {line.address + most:#x}  {pairs(line.data[most:])}\n")


def _new_parts(before: Sequence[str], part: Sequence[str]) -> list[str]:
    """Return a line for each part that begins behind code of `before`, indented by how deep it is."""
    if part == before or not part:
        return []
    same = sum(1 for _ in takewhile(bool, map(operator.eq, before, part)))
    return [f"    ;{'  ' * depth} {part[depth]}" for depth in range(min(same, len(part) - 1), len(part))]


def _added(probe: ProbeView) -> list[str]:
    if probe.state == "pending" and probe.reason:
        return [f"Probe {probe.number} pending: {probe.reason.text}", f"HINT: {probe.reason.hint}"]
    return [_headline(probe), *_next_steps(probe)]


def _first(part: ProbeView | CountsView) -> ProbeView:
    return part.first if isinstance(part, CountsView) else part


def _summary(probes: Sequence[ProbeView]) -> str:
    tiers: Counter[str] = Counter()
    for part in parts_of(probes):
        first = _first(part)
        number = len(part) if isinstance(part, CountsView) else 1
        tiers["pending" if first.state == "pending" else first.tier] += number
    counts = ", ".join(f"{count} {tier}" for tier, count in tiers.most_common())
    waiting = sum(_first(part).state == "optimizing" for part in parts_of(probes))
    until = f"; {waiting} of them wait to be optimized: optprobe commit" if waiting else ""
    return f"{_numbers(probes)}: {counted(len(probes), 'address', 'addresses')}, {counts}{until}"


def _left_out(found: Sequence[LeftOutView]) -> list[str]:
    """Return a line for each reason why functions of a glob have no probe."""
    functions: dict[str, list[str]] = {}
    for one in found:
        # The error's first line; the others show the typed line.
        functions.setdefault(one.text.partition(_NEWLINE)[0], []).append(one.symbol or f"{one.address:#x}")
    return [f"NOTE: left out: {_listed(names)}: {why}" for why, names in functions.items()]


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(names[:_MOST])
    return some if len(names) <= _MOST else f"{some} and {len(names) - _MOST} more"


def _headline(probe: ProbeView) -> str:
    where = f"Probe {probe.number} at {place(probe.address, probe.symbol)}"
    if probe.tier == BEST:
        return f"{where}: optimized, {_patched(probe)}{_cost(probe)}"
    if probe.tier not in STOPS:
        return f"{where}: {probe.tier}{_cost(probe)}"
    until = " until it is optimized" if probe.state == "optimizing" else ""
    why = f": why not optimized: {probe.reason.text}" if probe.reason else ""
    return f"{where}: {probe.tier}; a hit stops the guest {STOPS[probe.tier]}{until}{why}"


def _patched(probe: ProbeView) -> str:
    if probe.detour is None or probe.detour.head == probe.address:
        return f"{probe.patch_size} bytes patched"
    return f"in the detour of the branch at {probe.detour.head:#x}"


def _cost(probe: ProbeView) -> str:
    if probe.detour is None:
        return ""
    others = f"; with the other probes there {_at_most(probe)}" if _shares(probe) else ""
    return _hit(probe, probe.detour.own_least, probe.detour.own, _and_a_trap(probe), others)


def _hit(view: ProbeView | ExplainView, least: int, most: int, trap: str, others: str = "") -> str:
    """Return what a hit costs; where the handler branches, the shortest path and the sum of all."""
    cost = f"{counted(least, 'instruction')}{trap} where the condition is false, and stops the guest otherwise"
    if _STOP in view.actions:
        return f"; a hit costs {cost if view.condition else 'a stop of the guest'}"
    cost = f"{counted(least, 'instruction')} where the condition is false, about {most} otherwise"
    if least == most or not view.condition:
        cost = f"{'' if least == most else 'about '}{counted(most, 'instruction')}"
    return f"; a hit costs {cost}{others}{trap}"


def _and_a_trap(probe: ProbeView | ExplainView) -> str:
    return ("", " and a trap", " and two traps")[traps(probe)]


def _shares(probe: ProbeView) -> bool:
    """Return whether a hit runs programs of other probes at the address too."""
    return probe.detour is not None and probe.detour.own != probe.detour.added


def _at_most(probe: ProbeView) -> str:
    """Return how many instructions a hit adds for all probes at the address."""
    assert probe.detour is not None
    return f"{'' if probe.detour.least == probe.detour.added else '~'}{probe.detour.added}"


def _instructions_briefly(probe: ProbeView) -> str:
    """Return what a hit costs, for a column of a table."""
    assert probe.detour is not None
    least, most = probe.detour.own_least, probe.detour.own
    site = f" (site: {_at_most(probe)})" if _shares(probe) else ""
    if _STOP in probe.actions:
        return f"{counted(least, 'instruction')} or a stop{site}" if probe.condition else "a stop"
    if least == most:
        return f"{counted(most, 'instruction')}{site}"
    return f"{least} or ~{most} instructions{site}" if probe.condition else f"~{most} instructions{site}"


def _next_steps(probe: ProbeView) -> list[str]:
    steps = [f"NOTE: {probe.note}"] if probe.note else []
    if probe.state == "optimizing":
        steps.append("HINT: it is tried again at every stop; optprobe commit runs the guest until it is done")
    elif probe.reason and probe.reason.hint:
        steps.append(f"HINT: {probe.reason.hint}")
    if probe.needs_gdb:
        steps.append(_NEEDS_GDB)
    return steps


def _row(probe: ProbeView) -> tuple[str, ...]:
    number = str(probe.number or "-")
    if not probe.tier:
        return number, "-", str(probe.hits), f"({probe.state})", _what(probe)
    return number, probe.tier, str(probe.hits), f"{probe.address:#018x}", _what(probe)


def _what(probe: ProbeView) -> str:
    tags = [f"[{tag}]" for tag in probe.tags if tag != "OPTIMIZED" or probe.tier != BEST]
    return " ".join([asked(probe), *tags])


def asked(probe: ProbeView) -> str:
    """Return where a probe is, and what it was asked to do."""
    parts = [probe.symbol or probe.location]
    if event_name.parse(probe.location) is not None:
        parts.append(f"({probe.location})" if parts != [probe.location] else "")
    elif probe.kind != "kprobe":
        parts.append(f"({probe.kind})")
    if probe.name:
        parts.append(f'"{probe.name}"')
    if probe.entry:
        parts.append(probe.entry)
    if probe.condition:
        parts.append(f"if {probe.condition}")
    if probe.actions and probe.actions != ("count",):
        parts.append(f"do {', '.join(probe.actions)}")
    return " ".join(filter(None, parts))


def _remarks(probe: ProbeView, width: int) -> tuple[str, ...]:
    remarks = []
    if probe.reason and probe.tier != BEST:
        what = "not optimized" if probe.tier else probe.state
        remarks.append(f"{what}: {probe.reason.text} ({probe.reason.code})")
    if probe.needs_gdb:
        remarks.append(_NEEDS_GDB)
    if probe.calls is not None and probe.calls.out:
        remarks.append(f"{counted(probe.active, 'call')} under way: {_threads(probe.calls.out)}")
    lost = {"missed": probe.missed, "dropped": probe.dropped, "faults": probe.faults}
    counts = [f"{count} {what}" for what, count in lost.items() if count]
    if counts:
        remarks.append(", ".join(counts))
    return tuple(line for remark in remarks for line in indented(remark, width))


def _lost_in_globs(probes: Iterable[ProbeView]) -> list[str]:
    """Return a line for each map of a glob that was full."""
    lost: Counter[tuple[str, str]] = Counter()
    together: dict[tuple[str, str], int] = {}
    for probe in probes:
        for one in probe.objects:
            lost[probe.location, one.action] += (one.lost or 0) * one.shared
            if one.lost_together:  # each says the same
                together[probe.location, one.action] = one.lost_together
    told = [
        f"{action} of {location}: {number} values found no room in the map of all its functions"
        for (location, action), number in (lost + Counter(together)).items()
    ]
    return [*told, f"HINT: {_LARGER_MAPS}"] if told else []


def _report_row(probe: ProbeView) -> tuple[str, ...]:
    missed = "?" if probe.missed is None else probe.missed
    counts = (probe.hits, missed, probe.dropped, probe.faults, probe.stops)
    return str(probe.number), *(str(count) for count in counts), cost_of_hit(probe), asked(probe)


def cost_of_hit(probe: ProbeView) -> str:
    """Return what a hit costs, for a column of a table; "" where that is not known."""
    stops = STOPS.get(probe.tier)
    if stops:
        return f"{'two stops' if stops == 'twice' else 'a stop'} ({probe.tier})"
    return _instructions_briefly(probe) + _and_a_trap(probe) if probe.detour else ""


def hit_ones(probes: Sequence[ProbeView]) -> tuple[list[ProbeView], Mapping[str, int]]:
    """Return the probes without those of globs that have counted nothing, where there are several, and these by glob.
    """
    never: Counter[str] = Counter()
    for part in parts_of(probes):
        if isinstance(part, CountsView):
            never[part.first.location] += part.hits.count(0) * part.first.enabled
        elif _is_unhit(part):
            never[part.location] += 1
    shown: list[ProbeView] = []
    for part in parts_of(probes):
        if isinstance(part, CountsView):
            is_whole = not part.first.enabled or never[part.first.location] < 2
            shown += (part[place] for place, hits in enumerate(part.hits) if hits or is_whole)
        elif never[part.location] < 2 or not _is_unhit(part):
            shown.append(part)
    return shown, {location: number for location, number in never.items() if number > 1}


def _missed_together(probes: Sequence[ProbeView]) -> list[str]:
    """Return a line for each table that functions share and that had no room for some of their calls."""
    tables = {(one.location, one.missed_together): one for one in map(_first, parts_of(probes)) if one.missed is None}
    return [
        f"{counted(number, 'call')} of the functions of {location} found no room in the table that they share: missed"
        for location, number in tables
    ]


def _is_unhit(probe: ProbeView) -> bool:
    """Return whether it is one of a glob's that has counted nothing."""
    counts = (probe.hits, probe.missed, probe.active, probe.dropped, probe.faults, probe.stops)
    return probe.enabled and bool(probe.tier) and not any(counts) and is_glob(probe.location)


def _without_zeros(
    titles: Sequence[str], rows: Sequence[tuple[str, ...]], optional: Collection[str]
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return titles and rows of a table without those of the `optional` columns in which all is 0."""
    kept = [at for at, title in enumerate(titles) if title not in optional or any(row[at] != "0" for row in rows)]
    return [titles[at] for at in kept], [tuple(row[at] for at in kept) for row in rows]


def _gathered(probe: ProbeView) -> list[str]:
    account = [f"    {line}" for line in _calls(probe.calls)] if probe.calls is not None else []
    found = [f"    {line}" for found in probe.objects for line in aggregates.lines(found)]
    told = (each(record) for record in probe.records for each in (_losses_before, _record, _losses_after))
    return [*account, *found, *(f"    {line}" for lines in told for line in lines)]


def _calls(found: CallsView) -> list[str]:
    return [_accounted(found), *([f"    under way: {_threads(found.out)}"] if found.out else [])]


def _record(record: RecordView) -> list[str]:
    """Return time and CPU, and the values. Further lines are marked, so that they look like no row."""
    first, *more = record.text.rstrip(_NEWLINE).split(_NEWLINE)
    return [f"{_when(record)}: {first}", *(f"    | {line}" for line in more)]


def _losses_before(record: RecordView) -> list[str]:
    return [f"{record.lost_before:,} lost before {_time(record)}"] if record.lost_before else []


def _losses_after(record: RecordView) -> list[str]:
    return [f"{record.lost_after:,} lost after {_time(record)}"] if record.lost_after else []


def _when(record: RecordView) -> str:
    """Return time and CPU: seconds since boot as dmesg has them, or else the clock's ticks behind the CPU."""
    if record.since_boot is not None:
        return f"{_time(record)} [{record.cpu}]"
    return f"[{record.cpu}]" if record.time is None else f"[{record.cpu}] {_time(record)}"


def _time(record: RecordView) -> str:
    if record.since_boot is None:
        return str(record.time)
    seconds, below = divmod(record.since_boot, _SECOND)
    return f"[{seconds:5}.{below // 1000:06}]"


def _numbers(probes: Sequence[ProbeView]) -> str:
    first, last = probes[0].number, probes[-1].number
    return f"Probe {first}" if first == last else f"Probes {first}-{last}"


# calls of return probes -----------------------------------------------------------------------------------------------


def _accounted(calls: CallsView) -> str:
    """Return how many calls there were, and how many of them ended in which way."""
    return (
        f"calls: {calls.entries} = {calls.returns} returned + {calls.active} under way"
        f" + {calls.missed} missed + {calls.dropped} never returned"
    )


def _threads(out: Sequence[ActiveCallView]) -> str:
    """Return the threads that make these calls, by name."""
    threads: dict[str, list[int]] = {}
    others: dict[str, int] = {}
    for one in out:
        if one.pid is not None:
            threads.setdefault(one.comm, []).append(one.pid)
        else:
            other = one.thread or "a thread that cannot be identified now"
            others[other] = others.get(other, 0) + 1
    listed = [f"{name} ({_thread_numbers(pids)})" for name, pids in sorted(threads.items())]
    listed += [other if count == 1 else f"{count} of {other}" for other, count in others.items()]
    return ", ".join(listed)


def _thread_numbers(pids: Sequence[int]) -> str:
    """Return numbers of threads as text. A thread that is in several calls is listed once."""
    return _listed([str(pid) for pid in sorted(set(pids))])


# traces of the guest's own --------------------------------------------------------------------------------------------


def _guest_trace(found: GuestTraceView) -> list[str]:
    """Return the text, for a report."""
    thread = "a thread" if found.pid is None else f"thread {found.pid} ({found.name})"
    where = "" if found.cpu is None else f" on CPU {found.cpu}"
    frames = [f"{_INDENT}{frame.text}{' (interrupted)' if frame.is_interrupted else ''}" for frame in found.frames]
    told = [f"The guest's own trace of {thread}{where}, with the callers beyond probed returns:", *frames]
    told += [f"{_INDENT}… and callers that are not known"] if found.is_cut else []
    more = counted(found.left_out, "more trace")
    return [*told, f"{more} of the guest's own: report -clear makes room"] if found.left_out else told


# the slot collector ---------------------------------------------------------------------------------------------------


def _collector(found: CollectorView, width: int) -> list[str]:
    """Return the text, for a report."""
    told = list(_quarantine(found))
    left = f"{_size(found.garbage_slots, found.garbage_bytes)} still to be collected"
    if not found.runs and not found.failed and not found.quarantined:
        return [f"Collector: {left}"]
    if found.runs:
        each = ", ".join(f"{count} for {why}" for why, count in found.runs.items())
        runs = counted(sum(found.runs.values()), "run")
        told.append(f"Collector: {runs} ({each}); {_size(found.slots, found.bytes)} freed")
        held = f"{1000 * found.longest:.1f} ms at most, {1000 * found.total:.1f} ms in all"
        last = f"the last run looked through {counted(found.stacks, 'stack')}"
        told += indented(f"the guest was held for {held}; {last}", width)
    if found.failed:
        told += indented(f"{found.failed} of the runs freed nothing: not all stacks were known then", width)
    if found.garbage_slots and not found.quarantined:
        told += indented(left, width)
    return told


def _quarantine(found: CollectorView) -> Sequence[str]:
    """Return a line for memory that is never used again, and why; none where there is no such memory."""
    if not found.quarantined:
        return ()
    size = _size(found.garbage_slots, found.garbage_bytes)
    return (f"Quarantined: {size}, in which a thread may still be: {found.quarantined}",)


def _size(slots: int, size: int) -> str:
    return f"{counted(slots, 'slot')} of {size:,} bytes"


# explain --------------------------------------------------------------------------------------------------------------


def _explanation(view: ExplainView, width: int) -> list[str]:
    """Return the text for one address."""
    where = place(view.address, view.symbol)
    cost = _hit(view, view.least, view.instructions, _and_a_trap(view)) if view.instructions else ""
    if view.tier == BEST:
        waits = "; waits until no thread is inside them" if view.waits else ""
        head = view.displaced[0].address if view.displaced else view.address
        at = f" at {head:#x}" if head != view.address else ""
        verdict = f"{where}: would be optimized, {view.patch_size} bytes patched{at}{waits}{cost}"
    elif view.tier:
        stops = f"; a hit stops the guest {STOPS[view.tier]}" if view.tier in STOPS else cost
        verdict = f"{where}: would be {view.tier}{stops}"
    elif view.reason is not None and view.reason.code == WAITS:
        verdict = "would wait for its module"
    elif view.reason is None:
        verdict = f"{where}: would be left out"
    else:
        verdict = f"{where}: cannot be probed"
    lines = [verdict]
    for tiers, reason in _refusals(view):
        lines += indented(f"{tiers}{reason.text} ({reason.code})", width)
        if reason.hint:
            lines += indented(f"HINT: {reason.hint}", width)
    if view.nearest is not None:
        near = place(view.nearest, view.nearest_symbol)
        lines += indented(f"the nearest address that would be optimized: {near}", width)
    if view.note:
        lines += indented(f"NOTE: {view.note}", width)
    return lines


def _refusals(view: ExplainView) -> list[tuple[str, ReasonView]]:
    """Return each reason once, with the tiers that it forbids; without tiers where it forbids all."""
    if not view.tier or not view.refused:
        return [("", view.reason)] if view.reason else []
    tiers: dict[ReasonView, list[str]] = {}
    for refused in view.refused:
        tiers.setdefault(ReasonView(refused.code, refused.text, refused.hint), []).append(refused.tier)
    return [(f"not {' or '.join(names)}: ", reason) for reason, names in tiers.items()]


# doctor ---------------------------------------------------------------------------------------------------------------


def _doctor(found: DoctorView, width: int) -> list[str]:
    """Return the text: versions and the guest in one line, then each facility. A reason is spelled out once."""
    told, first = [_versions_and_guest(found)], dict[ReasonView, str]()
    for facility in found.facilities:
        name = _NAMES.get(facility.name, facility.name)
        if facility.reason is None:
            told += _wrapped(name, f"works: {facility.detail}", width)
        elif facility.reason in first:
            told += _wrapped(name, f"refused: as {first[facility.reason]} ({facility.reason.code})", width)
        else:
            first[facility.reason] = name
            told += _refused(name, facility.reason, width)
    return told


def _versions_and_guest(found: DoctorView) -> str:
    qemu = f"QEMU {found.qemu}" if found.qemu else "a target without a QEMU version"
    return f"{versions(found)}, {qemu}; {guest_line(found.guest)}"


def versions(found: DoctorView) -> str:
    """Return the versions on this side of the connection."""
    return f"optprobe {found.version}, GDB {found.gdb} with Python {found.python}"


def guest_line(guest: GuestView) -> str:
    if not guest.architecture:
        return "no guest"
    vcpus = "" if guest.vcpus is None else f", {guest.vcpus} vCPU{'s'[: guest.vcpus != 1]}"
    return f"{guest.architecture}{vcpus}, {guest.banner or 'no Linux kernel that is known'}"


def _refused(name: str, reason: ReasonView, width: int) -> list[str]:
    told = _wrapped(name, f"refused: {reason.text} ({reason.code})", width)
    return told + (_wrapped("", f"HINT: {reason.hint}", width) if reason.hint else [])


def _wrapped(name: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{name:<{_NAME_WIDTH}}",
        subsequent_indent=" " * (_NAME_WIDTH + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


# tables and words -----------------------------------------------------------------------------------------------------


def table(titles: Sequence[str], rows: Sequence[_Row], width: int, right: Collection[str] = ()) -> list[str]:
    """Return the lines of a table. rows: cells, and the remarks below them. right: titles of columns of numbers."""
    widths = [max(map(len, column)) for column in zip(titles, *(cells for cells, _ in rows), strict=True)]
    lines = _table_row(titles, widths, titles, right, width)
    for cells, remarks in rows:
        lines += _table_row(cells, widths, titles, right, width)
        lines += remarks
    return lines


def indented(text: str, width: int) -> list[str]:
    """Return a remark below a row, wrapped."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=_INDENT,
        subsequent_indent=f"{_INDENT}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table_row(
    cells: Sequence[str], widths: Sequence[int], titles: Sequence[str], right: Collection[str], width: int
) -> list[str]:
    """Return one row. The last column is wrapped."""
    fixed = [
        f"{cell:>{most}}" if title in right else f"{cell:<{most}}"
        for cell, most, title in zip(cells[:-1], widths, titles, strict=False)
    ]
    before = " ".join(fixed) + " "
    room = max(width - len(before), 20)
    if len(cells[-1]) <= room:
        return [(before + cells[-1]).rstrip()]
    last = textwrap.wrap(cells[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    return [(before + last[0]).rstrip(), *(" " * len(before) + line for line in last[1:])]


def place(address: int, symbol: str) -> str:
    return f"{address:#x} <{symbol}>" if symbol else f"{address:#x}"


def counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def many(count: int, noun: str, nouns: str = "") -> str:
    """Return the same with the thousands apart."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
