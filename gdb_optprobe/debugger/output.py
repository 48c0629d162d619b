r"""The output of commands, as text or as JSON, behind one interface.

Nothing here uses GDB: `write` and `colour` are passed in. JSON has exactly the contract's keys (DESIGN.md, "The command
line"), one value on one line; addresses are "0x…", bytes are hex digits in pairs. Text from the guest has the
same form in both, that of a C string without its quotes (guest_text.py): the comm of a line end is the two characters
`\n`, in JSON `"\\n"`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gdb_optprobe.debugger import aggregates, calls, collected, explained, facilities, words
from gdb_optprobe.debugger.table import indented, table
from gdb_optprobe.guest_text import lines
from gdb_optprobe.probes.views import (
    Address,
    CallsView,
    CodeLine,
    CollectorView,
    DetourView,
    DoctorView,
    ExplainView,
    FrameView,
    ObjectView,
    ProbeView,
    RecordView,
    ShowView,
)

Write = Callable[[str], object]
Colour = Callable[[str], str]

# `add` of a glob prints a line for each probe up to this many, then counts them.
_MANY = 10
_STOPS = explained.STOPS
_BEST = explained.BEST
_STOP = "stop"
_NEWLINE = "\n"


class Output(Protocol):
    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        """Print new probes. glob: whether to print how many addresses the location matched."""

    def probes(self, probes: Sequence[ProbeView]) -> None: ...

    def show(self, views: Sequence[ShowView]) -> None: ...

    def explanation(self, views: Sequence[ExplainView]) -> None: ...

    def report(self, probes: Sequence[ProbeView]) -> None: ...

    def collector(self, found: CollectorView) -> None: ...

    def quarantine(self, found: CollectorView) -> None:
        """Print a line for memory that is never used again, if there is any."""

    def doctor(self, found: DoctorView) -> None: ...

    def lines(self, lines: Sequence[str]) -> None:
        """Print text that has no JSON form."""


class Json:
    """One JSON value on one line; a line for each probe of a report."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        self.probes(probes)

    def probes(self, probes: Sequence[ProbeView]) -> None:
        self._value([_probe(probe) for probe in probes])

    def show(self, views: Sequence[ShowView]) -> None:
        self._one_or_list([_show(view) for view in views])

    def explanation(self, views: Sequence[ExplainView]) -> None:
        self._one_or_list([explained.value(view) for view in views])

    def report(self, probes: Sequence[ProbeView]) -> None:
        for probe in probes:
            self._value(_report(probe))
            for found in probe.objects:
                self._value(_map(probe.number, found))
            for record in probe.records:
                self._value(_record_value(probe.number, record))
            self._value(_hit_cost(probe))

    def collector(self, found: CollectorView) -> None:
        self._value(collected.value(found))

    def quarantine(self, found: CollectorView) -> None:
        """Print nothing: a list is a list of probes. The report has it."""

    def doctor(self, found: DoctorView) -> None:
        self._value(facilities.value(found))

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(f"{_shown(line)}\n")

    def _one_or_list(self, values: list[dict[str, object]]) -> None:
        self._value(values[0] if len(values) == 1 else values)

    def _value(self, value: object) -> None:
        self._write(json.dumps(value) + "\n")


class Text:
    """Text as GDB prints it."""

    def __init__(self, write: Write, colour: Colour = str) -> None:
        self._write = write
        self._colour = colour

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(f"{_shown(line)}\n")

    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        many = len(probes) > _MANY
        if glob or many:
            self.lines([_summary(probes)])
        told = [probe for probe in probes if not many or (probe.tier != _BEST and probe.state != "optimizing")]
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
                self._section("the branch displaces" if view.tier == _BEST else "the instruction", view.displaced)

    def _section(self, title: str, code: Sequence[CodeLine]) -> None:
        if not code:
            return
        self.lines([f"{title}:"])
        digits = min(max(len(line.data) for line in code), 15) * 3 - 1
        for line in code:
            if line.note:
                self.lines([f"    ; {line.note}"])
            text = self._colour(_shown(line.text))
            self._write(f"    {line.address:#x}  {words.pairs(line.data):<{digits}}  {text}\n")


def _shown(text: str) -> str:
    """Return text without control characters, which a user may have typed. Text from the guest has none."""
    return lines(text.expandtabs())


# text ---------------------------------------------------------------------------------------------------------------


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
    if probe.tier == _BEST:
        return f"{where}: optimized, {_patched(probe)}{_cost(probe)}"
    if probe.tier not in _STOPS:
        return f"{where}: {probe.tier}{_cost(probe)}"
    until = " until it is optimized" if probe.state == "optimizing" else ""
    why = f": why not optimized: {probe.reason.text}" if probe.reason else ""
    return f"{where}: {probe.tier}; a hit stops the guest {_STOPS[probe.tier]}{until}{why}"


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
    return ("", " and a trap", " and two traps")[_traps(probe)]


def _traps(probe: ProbeView) -> int:
    if probe.tier != "trapped":
        return 0
    return 2 if probe.kind == "uretprobe" else 1


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


_NEEDS_GDB = "needs GDB: without one, the guest waits at the next hit"


def _row(probe: ProbeView) -> tuple[str, ...]:
    number = str(probe.number or "-")
    if not probe.tier:
        return number, "-", str(probe.hits), f"({probe.state})", _what(probe)
    return number, probe.tier, str(probe.hits), f"{probe.address:#018x}", _what(probe)


def _what(probe: ProbeView) -> str:
    tags = [f"[{tag}]" for tag in probe.tags if tag != "OPTIMIZED" or probe.tier != _BEST]
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
    if probe.reason and probe.tier != _BEST:
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
    cost = _STOPS.get(probe.tier)
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


_COUNTS = ("hits", "missed", "active", "dropped", "faults", "stops", "calls")
_REPORTED = ("number", "location", "address", "symbol", "tier", *_COUNTS)

# JSON ---------------------------------------------------------------------------------------------------------------


def _probe(probe: ProbeView) -> dict[str, object]:
    return {
        "number": probe.number,
        "kind": probe.kind,
        "location": probe.location,
        "address": hex(probe.address),
        "symbol": probe.symbol,
        "tier": probe.tier,
        "state": probe.state,
        "tags": list(probe.tags),
        "enabled": probe.enabled,
        "needs_gdb": probe.needs_gdb,
        "reason": words.reason(probe.reason),
        "patch_size": probe.patch_size,
        "original_bytes": words.pairs(probe.original_bytes),
        "patched_bytes": words.pairs(probe.patched_bytes),
        "detour": _detour(probe.detour),
        "condition": probe.condition,
        "actions": list(probe.actions),
        "hits": probe.hits,
        "missed": probe.missed,
        "active": probe.active,
        "dropped": probe.dropped,
        "faults": probe.faults,
        "stops": probe.stops,
        **({"calls": _calls_value(probe.calls)} if probe.calls is not None else {}),
        **({"entry": probe.entry} if probe.kind in ("kretprobe", "uretprobe") else {}),
        **({"note": probe.note} if probe.note else {}),
    }


def _calls_value(found: CallsView) -> dict[str, object]:
    return {
        "entries": found.entries,
        "returns": found.returns,
        "active": found.active,
        "missed": found.missed,
        "dropped": found.dropped,
        "out": [{"who": one.who, "pid": one.pid, "comm": one.comm} for one in found.out],
    }


def _report(probe: ProbeView) -> dict[str, object]:
    return {"type": "probe", **{key: value for key, value in _probe(probe).items() if key in _REPORTED}}


def _hit_cost(probe: ProbeView) -> dict[str, object]:
    """Return the line of a hit's cost. instructions: null where a hit stops the guest; least: see DetourView."""
    stops, code = {"twice": 2, "once": 1}.get(_STOPS.get(probe.tier, ""), 0), probe.detour
    runs = {"instructions": code.added, "least": code.least} if code and not stops else {"instructions": None}
    return {"type": "cost", "number": probe.number, **runs, "traps": _traps(probe), "stops": stops}


def _map(number: int, found: ObjectView) -> dict[str, object]:
    """Return the line of an action's result. Without a key there is one entry, with an empty key."""
    entries = [{"key": _plain(row.key), "value": aggregates.value(found.aggregate, row.words)} for row in found.rows]
    return {"type": "map", "number": number, "action": found.action, "entries": entries, "lost": found.lost}


def _plain(values: Iterable[int | str]) -> list[int | str]:
    return [f"{value:#x}" if isinstance(value, Address) else value for value in values]


def _record_value(number: int, record: RecordView) -> dict[str, object]:
    kept = {"cpu": record.cpu, "time": record.time, "values": _plain(record.values), "text": record.text}
    return {"type": "record", "number": number, **kept, **(_stack(record) if record.stack else {})}


def _stack(record: RecordView) -> dict[str, object]:
    frames = [_frame(frame) for frame in record.stack if frame.address]
    return {"stack": frames, "cut": len(frames) < len(record.stack)}


def _frame(frame: FrameView) -> dict[str, object]:
    """Return a frame. Key sure: false where the frame may be left from an earlier call; else missing."""
    return {"address": f"{frame.address:#x}", "symbol": frame.symbol, **({} if frame.sure else {"sure": False})}


def _show(view: ShowView) -> dict[str, object]:
    return {
        "probe": _probe(view.probe),
        "original": [_noted(line) for line in view.original],
        "patched": [_noted(line) for line in view.patched],
        "detour": [_noted(line) for line in view.detour],
    }


def _detour(detour: DetourView | None) -> dict[str, object] | None:
    if detour is None:
        return None
    return {"address": hex(detour.address), "size": detour.size, "instructions": detour.instructions}


def _noted(line: CodeLine) -> dict[str, object]:
    return {**words.code(line), "note": line.note}
