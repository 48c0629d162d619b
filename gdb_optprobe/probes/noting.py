"""A probe as the journal keeps it: what brings it back in another GDB, and where its memory is."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.objects.journal import Damaged
from gdb_optprobe.objects.ring import Position
from gdb_optprobe.probes import fields
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.spec import Kind, Spec


@dataclass(frozen=True, slots=True)
class Noted:
    """home, waits: where in a module it is, or was; whether it was nowhere in the guest.

    python: whether it had a handler of Python's. data: address of its memory. program: see `fingerprint`.

    sizes: settings it was made with, by name. seen: the head of what hits left that stopped the guest.
    """

    number: int
    address: int
    spec: Spec
    enabled: bool
    python: bool
    data: int | None
    program: int
    sizes: Mapping[str, int]
    since: Position
    seen: tuple[int, ...]
    home: str = ""
    waits: bool = False


def note(probe: Probe, journal: Journal) -> None:
    """Have the journal know `probe` as it is now."""
    spec = probe.spec
    location = fields.kept(spec.location, probe.address, spec.in_program, spec.glob)
    value: dict[str, Any] = {"at": probe.address, "location": location}
    optional = {
        "kind": spec.kind.value if spec.kind is not Kind.KPROBE else "",
        "if": fields.tidy(spec.condition),
        "do": [*map(fields.tidy, spec.actions)] if spec.actions != ("count",) else [],
        "tier": _allowed(fields.tier, spec.tier),
        "name": _allowed(fields.name, spec.name),
        "glob": spec.glob,
        "entry if": fields.tidy(spec.entry_condition.text) if spec.entry_condition is not None else "",
        "entry do": [fields.tidy(action.text) for action in spec.entry_actions],
        "maxactive": spec.maxactive,
        "pending": spec.pending,
        "file": _allowed(fields.file, spec.file),
        "pid": spec.pid,
        "home": _allowed(fields.home, probe.home),
        "waits": probe.waits is not None,
        "off": not probe.enabled,
        "python": probe.spec.has_python_handler,
        "data": probe.counter.address if probe.counter is not None else 0,
        "program": fingerprint(probe.handler) if not probe.handler.is_plain else 0,
        "sizes": dict(probe.sizes) if not probe.handler.is_plain else {},
        "since": [probe.since.following, *probe.since.pending] if probe.since.following else [],
        "seen": [*probe.seen.head] if probe.seen.head != probe.handler.head() else [],
    }
    journal.put(Item.PROBE, probe.number, value | {name: given for name, given in optional.items() if given})


def _allowed(check: Callable[[str], str], text: str) -> str:
    """What a later GDB takes, "" else: Python may have given anything."""
    try:
        return check(text)
    except fields.NotAField:
        return ""


def noted(number: int, value: Any) -> Noted:
    """Raises Damaged."""
    try:
        following, *pending = map(int, value.get("since", [0]))
        kind, glob = Kind(value.get("kind", Kind.KPROBE.value)), bool(value.get("glob"))
        entry_if = fields.condition(value.get("entry if", ""))
        entry_do = [fields.action(action) for action in value.get("entry do", [])]
        fields.number(number, 1 << 32, least=1)
        spec = Spec(
            location=fields.place(value.get("location", ""), kind in (Kind.UPROBE, Kind.URETPROBE), glob),
            kind=kind,
            condition=fields.condition(value.get("if", "")),
            actions=tuple(fields.action(action) for action in value.get("do", ["count"])),
            tier=fields.tier(value.get("tier", "")),
            name=fields.name(value.get("name", "")),
            glob=glob,
            pending=bool(value.get("pending")),
            entry_condition=Fragment.whole(entry_if) if entry_if else None,
            entry_actions=tuple(Fragment.whole(action) for action in entry_do),
            maxactive=int(value.get("maxactive", 0)),
            file=fields.file(value.get("file", "")),
            pid=int(value.get("pid", 0)),
        )
        return Noted(
            number=number,
            address=int(value["at"]),
            spec=spec,
            enabled=not value.get("off"),
            python=bool(value.get("python")),
            data=int(value["data"]) if "data" in value else None,
            program=int(value.get("program", 0)),
            sizes={str(name): int(size) for name, size in value.get("sizes", {}).items()},
            since=Position(following, tuple(pending)),
            seen=tuple(int(word) for word in value.get("seen", [])),
            home=fields.home(value.get("home", "")),
            waits=bool(value.get("waits")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as wrong:
        raise Damaged(f"probe {number}: {wrong}") from None


def fingerprint(handler: Handler) -> int:
    """The same for handlers that do the same with memory that is laid out alike."""
    return zlib.crc32(repr((handler.program, handler.entry, handler.table_bits, handler.ring_bits)).encode()) or 1
