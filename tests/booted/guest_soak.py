"""Sourced into GDB by soak.py: what this GDB knows, as JSON on one line.

    soak-map NAME…   where text and memory for detours are in the guest's RAM, and the places of each function that
                     run as often as its entry
    soak-state       probes, patches, memory, calls under way, and what the guest's own events have counted
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.views import ProbeView
from tests.booted import guest_events, hot_code

MARK = "@@soak "


def linux() -> LinuxGuest:
    assert attachments.current is not None and attachments.current.linux is not None
    return attachments.current.linux


def map_of(names: list[str]) -> dict[str, Any]:
    session = current_session()
    kernel = linux().kernel
    source = session.target.arena_source
    assert isinstance(source, LinuxArena)
    room = source.room or linux().arch.room(linux().machine, kernel)
    areas = {"text": [kernel.range("_stext", "_etext")], "room": [*room.code, room.journal]}
    if source.room is not None:
        # They are mapped when the first probe is there.
        areas["data"] = [room.data]
    found = {name: [[at, *_place(at, end)] for at, end in ranges if at < end] for name, ranges in areas.items()}
    return {
        "areas": found | {"tables": [[0, change.address, len(change.new)] for change in room.mapping]},
        "fill": room.fill,
        "lines": {name: _line(name, session) for name in names},
    }


def _place(start: int, end: int) -> tuple[int, int]:
    """Where the range is in physical memory, in one piece, and its size."""
    runs = list(linux().memory.extents(start, end - start))
    at = runs[0][0]
    for place, size in runs:
        assert place == at, "in one piece"
        at += size
    return runs[0][0], end - start


def _line(name: str, session: Session) -> list[int]:
    code = hot_code.function(name)
    entry = hot_code.entry(code.start)
    lines = hot_code.straight_lines(code, session.target.guest.text)
    return next([insn.address for insn in line if insn.address >= entry] for line in lines if line[-1].address >= entry)


def state() -> dict[str, Any]:
    """What must hold is not looked at here."""
    session = current_session()
    optimizer = session.optimizer
    views = session.views()
    return {
        "probes": [_probe(view) for view in views],
        "patches": [[change.address, len(change.new)] for change in _patches(session)] + _left(session),
        "problems": list(session.check()),
        "waits": {hex(site.address): site.blocked_by for site in optimizer.registry.sites() if site.blocked_by},
        "memory": _memory(session),
        "events": _or_none(guest_events.hits),
    }


def _or_none(ask: Callable[[], dict[str, int]]) -> dict[str, int] | None:
    """None where the kernel's types do not tell."""
    try:
        return ask()
    except OptprobeError:
        return None


def _probe(view: ProbeView) -> dict[str, Any]:
    names = ("number", "kind", "location", "symbol", "tier", "state", "enabled", "needs_gdb", "hits", "stops", "faults")
    calls = view.calls
    return {name: getattr(view, name) for name in names} | {
        "calls": [calls.entries, calls.returns, calls.active, calls.missed, calls.dropped] if calls else None,
        "lost": sum(each.lost for each in view.objects),
    }


def _patches(session: Session) -> Iterator[Patch]:
    yield from (branch.patch for branch in session.registry.branches())
    yield from (branch.patch for branch in session.optimizer._lost_branches.branches)
    yield from session.optimizer.traps.dispatcher.patches
    yield from session.registry.hooks
    yield from session.uprobes.traps.dispatcher.patches


def _left(session: Session) -> list[list[int]]:
    """What an earlier session had to leave in the text: calls under way, or traps, may still come to its code."""
    left = session.target.arena_source.left()
    return [[text.address, len(text.original)] for text in left.texts] if left is not None and not left.probes else []


def _memory(session: Session) -> dict[str, Any]:
    """unowned: pieces of data that nothing of the session's accounts for, while no program is probed.

    over: tables of functions without return probes whose calls have all returned.
    """
    optimizer = session.optimizer
    arena = optimizer.arena
    if arena is None:
        return {"code": 0, "data": 0, "free": None, "dirty": 0, "unowned": [], "over": [], "tables": {}}
    points = optimizer.rethooks.known
    owned = {probe.counter.address for probe in session.registry.probes() if probe.counter is not None}
    owned |= {slot.address for slot in optimizer.traps.dispatcher.memory} | {point.memory.address for point in points}
    kept = optimizer._lost_branches.kept.values()
    owned |= {probe.counter.address for probe in kept if probe.counter is not None}
    if arena._tickets is not None:
        owned.add(arena._tickets.address)
    # Memory that another session needs to take over from this one.
    if arena._reserve is not None:
        owned.add(arena._reserve[1].address)
    used = [slot for slots in arena.data.slots for slot in slots.used]
    dirty = [slot for slots in arena.data.slots for slot in slots.dirty]
    with_programs = bool(session.uprobes.traps.dispatcher.patches)
    tables: dict[str, list[int]] = {}
    for point in points:
        row = tables.setdefault(session.target.guest.text.spell(point.address), [0, 0, 0])
        row[0] += 1
        row[1] += point.memory.size
        row[2] += len(point.read_calls(session.target.guest).active)
    served = {
        id(table) for site in session.registry.sites() if site.rethook is not None for table in site.rethook.tables
    }
    served |= {id(site.next_rethook) for site in session.registry.sites() if site.next_rethook is not None}
    over = [p for p in points if id(p) not in served and not p.read_calls(session.target.guest).active]
    return {
        "code": arena.code.used,
        "data": arena.data.used,
        "free": [arena.code.largest, arena.data.largest],
        "dirty": len(arena.dirty()) + len(dirty),
        "unowned": [] if with_programs else [[s.address, s.size] for s in used if s.address not in owned],
        "over": [[session.target.guest.text.spell(p.address), p.memory.size] for p in over],
        "tables": tables,
    }


class SoakMap(gdb.Command):
    """soak-map NAME…"""

    def __init__(self) -> None:
        super().__init__("soak-map", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        gdb.write(f"\n{MARK}{json.dumps(map_of(argument.split()))}\n")


class SoakState(gdb.Command):
    """soak-state"""

    def __init__(self) -> None:
        super().__init__("soak-state", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        gdb.write(f"\n{MARK}{json.dumps(state())}\n")


SoakMap()
SoakState()
