"""The output of commands as JSON: exactly the keys that are documented, one value on one line.

Addresses are "0x…", bytes are hex digits in pairs. Text from the guest has been made printable before, as a C string
without its quotes (guest_text.py): the comm of a line end is the two characters `\\n`, here `"\\\\n"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from operator import itemgetter

from gdb_optprobe.commands.output import STOPS, Write, in_time_order, pairs, printable_lines, traps
from gdb_optprobe.maps import aggregate
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.views import (
    Address,
    CallsView,
    CodeLine,
    CollectorView,
    CountsView,
    DetourView,
    DoctorView,
    ExplainView,
    FacilityView,
    FrameView,
    GuestTraceView,
    LeftOutView,
    ObjectView,
    ProbeView,
    ReasonView,
    RecordView,
    SessionMapView,
    ShowView,
    parts_of,
)

_COUNTS = ("hits", "missed", "active", "dropped", "faults", "stops", "missed_together", "calls")
_REPORTED = ("number", "location", "address", "symbol", "tier", *_COUNTS)


_INTERRUPTED: tuple[Mapping[str, object], ...] = ({}, {"interrupted": True})


class Json:
    """One JSON value on one line; a line for each probe of a report."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def added(self, probes: Sequence[ProbeView], glob: bool = False) -> None:
        self.probes(probes)

    def probes(self, probes: Sequence[ProbeView]) -> None:
        texts = (text for part in parts_of(probes) for text in _texts(part, lambda probe: json.dumps(_probe(probe))))
        self._write(f"[{', '.join(texts)}]\n")

    def show(self, views: Sequence[ShowView]) -> None:
        self._one_or_list([_show(view) for view in views])

    def explanation(self, views: Sequence[ExplainView]) -> None:
        self._one_or_list([_explanation(view) for view in views])

    def timeline(self, probes: Sequence[ProbeView], more: bool = False) -> None:
        for probe, record in in_time_order(probes):
            self._value(_record_value(probe.number, record))

    def ran(self, text: str, follower: Follower | None = None) -> None:
        taken = {} if follower is None else {"records": follower.records, "lost": follower.lost}
        self._value({"type": "run", "number": None, "text": text, **taken})

    def report(self, probes: Sequence[ProbeView], whole: bool = True) -> None:
        self._write("".join(text for part in parts_of(probes) for text in _texts(part, _report_lines)))

    def maps(self, maps: Sequence[SessionMapView]) -> None:
        for each in maps:
            self._write(f'{{"type": "session_map", "number": null, "map": {each.line}}}\n')

    def guest_traces(self, traces: Sequence[GuestTraceView]) -> None:
        for trace in traces:
            self._value(_guest_trace(trace))

    def collector(self, found: CollectorView) -> None:
        self._value(_collector(found))

    def quarantine(self, found: CollectorView) -> None:
        """Print nothing: a list is a list of probes. The report has it."""

    def doctor(self, found: DoctorView) -> None:
        self._value(_doctor(found))

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(f"{printable_lines(line)}\n")

    def _one_or_list(self, values: list[dict[str, object]]) -> None:
        self._value(values[0] if len(values) == 1 else values)

    def _value(self, value: object) -> None:
        self._write(json.dumps(value) + "\n")


# Marks, in the text of one row, where each member of a CountsView has something of its own.
_NUMBER, _HITS = 0x1EE7_0001_0001, 0x1EE7_0002_0002
_AT, _DETOUR = 0x1EE7_0003_0003, 0x1EE7_0004_0004
_NAME, _BRANCH, _BEFORE = "1ee7_0005_0005", bytes.fromhex("1ee700060006"), bytes.fromhex("1ee700070007")
_MARKS = (str(_NUMBER), str(_HITS), hex(_AT), hex(_DETOUR), json.dumps(_NAME), pairs(_BRANCH), pairs(_BEFORE))
_OWN = re.compile("|".join(_MARKS))


def _texts(part: ProbeView | CountsView, text_of: Callable[[ProbeView], str]) -> Iterable[str]:
    """Return the text of a row, or of those of many counts: it is made once, and the columns are put in."""
    if isinstance(part, ProbeView):
        return [text_of(part)]
    first, detour = part.first, part.first.detour
    model = replace(
        first,
        number=_NUMBER,
        hits=_HITS,
        address=_AT,
        symbol=_NAME,
        original_bytes=_BEFORE,
        patched_bytes=_BRANCH if part.branches else b"",
        detour=replace(detour, address=_DETOUR) if detour is not None else None,
    )
    start = detour.address if detour is not None else 0
    columns: dict[str, Iterable[str]] = {
        str(_NUMBER): map(str, count(first.number)),
        str(_HITS): map(str, part.hits),
        hex(_AT): map(hex, part.addresses),
        hex(_DETOUR): map(hex, count(start, part.step)),
        json.dumps(_NAME): map(json.dumps, part.symbols),
        pairs(_BRANCH): map(pairs, part.branches),
        pairs(_BEFORE): map(pairs, part.originals),
    }
    text = text_of(model)
    form = _OWN.sub("%s", text.replace("%", "%%"))
    # A column may be in it twice.
    own = [[*islice(columns[name], len(part))] for name in dict.fromkeys(_OWN.findall(text))]
    places = {name: place for place, name in enumerate(dict.fromkeys(_OWN.findall(text)))}
    order = itemgetter(*(places[name] for name in _OWN.findall(text)))
    return [form % order(row) for row in zip(*own, strict=True)]


def _report_lines(probe: ProbeView) -> str:
    """Return the lines of a report on one probe."""
    values = [
        _report(probe),
        *(_map(probe.number, found) for found in probe.objects),
        *(_record_value(probe.number, record) for record in probe.records),
        _hit_cost(probe),
    ]
    return "".join(f"{json.dumps(value)}\n" for value in values)


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
        "reason": _reason(probe.reason),
        "patch_size": probe.patch_size,
        "original_bytes": pairs(probe.original_bytes),
        "patched_bytes": pairs(probe.patched_bytes),
        "detour": _detour(probe.detour),
        "condition": probe.condition,
        "actions": list(probe.actions),
        "hits": probe.hits,
        "missed": probe.missed,
        "active": probe.active,
        "dropped": probe.dropped,
        "faults": probe.faults,
        "stops": probe.stops,
        **({"missed_together": probe.missed_together} if probe.missed_together else {}),
        **({"calls": _calls_value(probe.calls)} if probe.calls is not None else {}),
        **({"entry": probe.entry} if probe.kind in ("kretprobe", "uretprobe") else {}),
        **({"note": probe.note} if probe.note else {}),
        **({"left_out": [_left_out(one) for one in probe.left_out]} if probe.left_out else {}),
    }


def _left_out(one: LeftOutView) -> dict[str, object]:
    return {"address": hex(one.address), "symbol": one.symbol, "text": one.text}


def _calls_value(found: CallsView) -> dict[str, object]:
    return {
        "entries": found.entries,
        "returns": found.returns,
        "active": found.active,
        "missed": found.missed,
        "dropped": found.dropped,
        "out": [{"who": one.thread, "pid": one.pid, "comm": one.comm} for one in found.out],
    }


def _report(probe: ProbeView) -> dict[str, object]:
    return {"type": "probe", **{key: value for key, value in _probe(probe).items() if key in _REPORTED}}


def _hit_cost(probe: ProbeView) -> dict[str, object]:
    """Return the line of a hit's cost. instructions: null where a hit stops the guest; least: see DetourView."""
    stops, code = {"twice": 2, "once": 1}.get(STOPS.get(probe.tier, ""), 0), probe.detour
    runs = {"instructions": code.added, "least": code.least} if code and not stops else {"instructions": None}
    own = {"own": code.own, "own_least": code.own_least} if code and not stops else {}
    return {"type": "cost", "number": probe.number, **runs, "traps": traps(probe), "stops": stops, **own}


def _map(number: int, found: ObjectView) -> dict[str, object]:
    """Return the line of an action's result. Without a key there is one entry, with an empty key."""
    values = [(row.key, aggregate.value(found.aggregate, row.words)) for row in found.rows]
    unit = {"unit": found.unit} if found.unit else {}
    entries = [{"key": _plain(key), "value": _aggregate(value)} for key, value in values]
    lost = {"lost": found.lost, **({"lost_together": found.lost_together} if found.lost_together else {})}
    return {"type": "map", "number": number, "action": found.action, "entries": entries, **lost, **unit}


def _aggregate(value: int | tuple[aggregate.Bucket, ...] | None) -> object:
    if not isinstance(value, tuple):
        return value
    return [{"low": one.low, "high": one.high, "count": one.count} for one in value]


def _plain(values: Iterable[int | str]) -> list[int | str]:
    return [f"{value:#x}" if isinstance(value, Address) else value for value in values]


def _record_value(number: int, record: RecordView) -> dict[str, object]:
    kept = {"cpu": record.cpu, "time": record.time, "values": _plain(record.values), "text": record.text}
    since = {} if record.since_boot is None else {"since_boot": record.since_boot}
    all_lost = {"lost_before": record.lost_before, "lost_after": record.lost_after}
    lost = {key: count for key, count in all_lost.items() if count}
    return {"type": "record", "number": number, **kept, **since, **lost, **(_stack(record) if record.stack else {})}


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
        **({"trampoline": [_noted(line) for line in view.trampoline]} if view.trampoline else {}),
    }


def _detour(detour: DetourView | None) -> dict[str, object] | None:
    if detour is None:
        return None
    return {"address": hex(detour.address), "size": detour.size, "instructions": detour.instructions}


def _noted(line: CodeLine) -> dict[str, object]:
    return {**_code(line), "note": line.note, **({"part": line.part} if line.part else {})}


def _explanation(view: ExplainView) -> dict[str, object]:
    """Return the JSON for one address."""
    noted = {"note": view.note} if view.note else {}
    return {
        "address": hex(view.address),
        "symbol": view.symbol,
        "tier": view.tier,
        "reason": _reason(view.reason),
        "displaced": [_code(line) for line in view.displaced],
        "refused": [{"tier": refused.tier, "code": refused.code, "text": refused.text} for refused in view.refused],
        **noted,
    }


def _guest_trace(found: GuestTraceView) -> dict[str, object]:
    """Return the JSON of a report line. It belongs to no probe."""
    return {
        "type": "guest_trace",
        "number": None,
        "pid": found.pid,
        "comm": found.name,
        "cpu": found.cpu,
        "frames": [{**_frame(frame), **_INTERRUPTED[frame.is_interrupted]} for frame in found.frames],
        "cut": found.is_cut,
        **({"left_out": found.left_out} if found.left_out else {}),
    }


def _collector(found: CollectorView) -> dict[str, object]:
    """Return the JSON of a report line. It belongs to no probe."""
    return {
        "type": "collector",
        "number": None,
        "runs": dict(found.runs),
        "failed": found.failed,
        "slots": found.slots,
        "bytes": found.bytes,
        "stacks": found.stacks,
        "garbage_slots": found.garbage_slots,
        "garbage_bytes": found.garbage_bytes,
        "quarantined": found.quarantined,
        "held_seconds": {"longest": found.longest, "total": found.total},
    }


def _doctor(found: DoctorView) -> dict[str, object]:
    """Return the JSON."""
    guest = found.guest
    return {
        "version": found.version,
        "gdb": found.gdb,
        "python": found.python,
        "qemu": found.qemu,
        "guest": {"architecture": guest.architecture, "vcpus": guest.vcpus, "banner": guest.banner},
        "facilities": [_facility(facility) for facility in found.facilities],
    }


def _facility(facility: FacilityView) -> dict[str, object]:
    reason = facility.reason
    return {
        "name": facility.name,
        "state": "works" if reason is None else "refused",
        "detail": facility.detail,
        "code": reason.code if reason is not None else "",
        "reason": reason.text if reason is not None else "",
        "hint": reason.hint if reason is not None else "",
    }


def _reason(reason: ReasonView | None) -> dict[str, object] | None:
    return {"code": reason.code, "text": reason.text} if reason else None


def _code(line: CodeLine) -> dict[str, object]:
    return {"address": hex(line.address), "bytes": pairs(line.data), "text": line.text}
