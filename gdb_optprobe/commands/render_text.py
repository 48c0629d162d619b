"""The output of commands as text, as GDB prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gdb_optprobe.commands import aggregates
from gdb_optprobe.commands.output import BEST, STOPS, Write, pairs, printable_lines, traps
from gdb_optprobe.debugger import calls, collected, explained, facilities, words
from gdb_optprobe.debugger.table import indented, table
from gdb_optprobe.probes.views import (
    CallsView,
    CodeLine,
    CollectorView,
    DoctorView,
    ExplainView,
    ProbeView,
    RecordView,
    ShowView,
)

Colour = Callable[[str], str]
# `add` of a glob prints a line for each probe up to this many, then counts them.
_MANY = 10
_STOP = "stop"
_NEWLINE = "\n"
_NEEDS_GDB = "needs GDB: without one, the guest waits at the next hit"


class Text:
    """Text as GDB prints it."""

    def __init__(self, write: Write, colour: Colour = str) -> None:
        self._write = write
        self._colour = colour

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(f"{printable_lines(line)}\n")

    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        many = len(probes) > _MANY
        if glob or many:
            self.lines([_summary(probes)])
        told = [probe for probe in probes if not many or (probe.tier != BEST and probe.state != "optimizing")]
        for probe in told[:_MANY]:
            self.lines(_added(probe)[: 1 if many else None])
        if len(told) > _MANY:
            self.lines([f"... and {len(told) - _MANY} more: optprobe list"])

    def probes(self, probes: Sequence[ProbeView]) -> None:
        if not probes:
            self.lines(["No probes."])
            return
        rows = [(_row(probe), _remarks(probe)) for probe in probes]
        self.lines(table(("Num", "Tier", "Hits", "Address", "What"), rows, right=("Num", "Hits")))

    def report(self, probes: Sequence[ProbeView]) -> None:
        if not probes:
            self.lines(["No probes."])
            return
        columns = ("Num", "Hits", "Missed", "Dropped", "Faults", "Stops", "Cost of a hit", "Where")
        rows = [(_report_row(probe), ()) for probe in probes]
        self.lines(table(columns, rows, right=columns[:6]))
        for probe in probes:
            if probe.objects or probe.records or probe.calls is not None:
                self.lines(["", f"Probe {probe.number}, {_asked(probe)}", *_gathered(probe)])

    def collector(self, found: CollectorView) -> None:
        self.lines(["", *collected.lines(found)])

    def quarantine(self, found: CollectorView) -> None:
        self.lines(collected.quarantine(found))

    def doctor(self, found: DoctorView) -> None:
        self.lines(facilities.lines(found))

    def show(self, views: Sequence[ShowView]) -> None:
        for view in views:
            self.lines([_headline(view.probe), *_remarks(view.probe)])
            self._section("original", view.original)
            self._section("patched", view.patched)
            self._section("detour", view.detour)

    def explanation(self, views: Sequence[ExplainView]) -> None:
        for view in views:
            self.lines(explained.lines(view))
            if view.displaced:
                self._section("the branch displaces" if view.tier == BEST else "the instruction", view.displaced)

    def _section(self, title: str, code: Sequence[CodeLine]) -> None:
        if not code:
            return
        self.lines([f"{title}:"])
        digits = min(max(len(line.data) for line in code), 15) * 3 - 1
        for line in code:
            if line.note:
                self.lines([f"    ; {line.note}"])
            text = self._colour(printable_lines(line.text))
            self._write(f"    {line.address:#x}  {pairs(line.data):<{digits}}  {text}\n")


def _added(probe: ProbeView) -> list[str]:
    if probe.state == "pending" and probe.reason:
        return [f"Probe {probe.number} pending: {probe.reason.text}", f"HINT: {probe.reason.hint}"]
    return [_headline(probe), *_next_steps(probe)]


def _summary(probes: Sequence[ProbeView]) -> str:
    tiers = Counter("pending" if probe.state == "pending" else probe.tier for probe in probes)
    counts = ", ".join(f"{count} {tier}" for tier, count in tiers.most_common())
    waiting = sum(probe.state == "optimizing" for probe in probes)
    until = f"; {waiting} of them wait to be optimized: optprobe commit" if waiting else ""
    return f"{_numbers(probes)}: {words.counted(len(probes), 'address', 'addresses')}, {counts}{until}"


def _headline(probe: ProbeView) -> str:
    where = f"Probe {probe.number} at {words.place(probe.address, probe.symbol)}"
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
    if _STOP in probe.actions:
        return f"; a hit costs {_until_stopped(probe)}"
    return f"; a hit costs {_instructions(probe)}{_and_a_trap(probe)}"


def _until_stopped(probe: ProbeView) -> str:
    """Return the cost of a hit that may stop the guest."""
    if not probe.condition:
        return "a stop of the guest"
    assert probe.detour is not None
    least = f"{words.counted(probe.detour.least, 'instruction')}{_and_a_trap(probe)}"
    return f"{least} where the condition is false, and stops the guest otherwise"


def _and_a_trap(probe: ProbeView) -> str:
    return ("", " and a trap", " and two traps")[traps(probe)]


def _instructions(probe: ProbeView) -> str:
    """Return how many instructions a hit adds; where the handler branches, the shortest path and the sum of all."""
    assert probe.detour is not None
    least, most = probe.detour.least, probe.detour.added
    if least == most:
        return words.counted(most, "instruction")
    if not probe.condition:
        return f"about {words.counted(most, 'instruction')}"
    return f"{words.counted(least, 'instruction')} where the condition is false, about {most} otherwise"


def _instructions_briefly(probe: ProbeView) -> str:
    """Return the same for a column of a table."""
    assert probe.detour is not None
    least, most = probe.detour.least, probe.detour.added
    if _STOP in probe.actions:
        return f"{words.counted(least, 'instruction')} or a stop" if probe.condition else "a stop"
    if least == most:
        return words.counted(most, "instruction")
    return f"{least} or ~{most} instructions" if probe.condition else f"~{most} instructions"


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
    return " ".join([_asked(probe), *tags])


def _asked(probe: ProbeView) -> str:
    parts = [probe.symbol or probe.location]
    if probe.kind != "kprobe":
        parts.append(f"({probe.kind})")
    if probe.name:
        parts.append(f'"{probe.name}"')
    if probe.entry:
        parts.append(probe.entry)
    if probe.condition:
        parts.append(f"if {probe.condition}")
    if probe.actions and probe.actions != ("count",):
        parts.append(f"do {', '.join(probe.actions)}")
    return " ".join(parts)


def _remarks(probe: ProbeView) -> tuple[str, ...]:
    remarks = []
    if probe.reason and probe.tier != BEST:
        what = "not optimized" if probe.tier else probe.state
        remarks.append(f"{what}: {probe.reason.text} ({probe.reason.code})")
    if probe.needs_gdb:
        remarks.append(_NEEDS_GDB)
    if probe.calls is not None and probe.calls.out:
        remarks.append(f"{words.counted(probe.active, 'call')} under way: {calls.threads_of(probe.calls.out)}")
    lost = {"missed": probe.missed, "dropped": probe.dropped, "faults": probe.faults}
    counts = [f"{count} {what}" for what, count in lost.items() if count]
    if counts:
        remarks.append(", ".join(counts))
    return tuple(line for remark in remarks for line in indented(remark))


def _report_row(probe: ProbeView) -> tuple[str, ...]:
    counts = (probe.hits, probe.missed, probe.dropped, probe.faults, probe.stops)
    cost = STOPS.get(probe.tier)
    if cost:
        cost = f"{'two stops' if cost == 'twice' else 'a stop'} ({probe.tier})"
    elif probe.detour:
        cost = _instructions_briefly(probe) + _and_a_trap(probe)
    return str(probe.number), *(str(count) for count in counts), cost or "", _asked(probe)


def _gathered(probe: ProbeView) -> list[str]:
    account = [f"    {line}" for line in _calls(probe.calls)] if probe.calls is not None else []
    found = [f"    {line}" for found in probe.objects for line in aggregates.lines(found)]
    return [*account, *found, *(f"    {line}" for record in probe.records for line in _record(record))]


def _calls(found: CallsView) -> list[str]:
    return [calls.accounted(found), *([f"    under way: {calls.threads_of(found.out)}"] if found.out else [])]


def _record(record: RecordView) -> list[str]:
    """Return CPU, time if there is one, and the values. Further lines are marked, so that they look like no row."""
    time = "" if record.time is None else f" {record.time}"
    first, *more = record.text.rstrip(_NEWLINE).split(_NEWLINE)
    return [f"[{record.cpu}]{time}: {first}", *(f"    | {line}" for line in more)]


def _numbers(probes: Sequence[ProbeView]) -> str:
    first, last = probes[0].number, probes[-1].number
    return f"Probe {first}" if first == last else f"Probes {first}-{last}"
