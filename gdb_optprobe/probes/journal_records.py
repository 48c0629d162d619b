"""A probe as the journal keeps it: what brings it back in another GDB, and where its memory is."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdb_optprobe.detours.arena_contents import ArenaContents, BlockRecord
from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.encoding import encode
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.maps.ring import RingPosition
from gdb_optprobe.maps.session_map import MOST
from gdb_optprobe.probes import fields
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.settings import size_of
from gdb_optprobe.probes.shared_maps import MOST_BITS, MapsRecord
from gdb_optprobe.probes.spec import Kind, Spec

FIELDS = frozenset(
    ("at", "location", "kind", "if", "do", "tier", "name", "glob", "entry if", "entry do", "maxactive", "overwrite")
) | frozenset(
    ("pending", "file", "pid", "home", "waits", "off", "python", "data", "program", "sizes", "since", "seen", "lost")
) | {"maps", "named maps", "bare", "routine"}
LOST_FIELDS = frozenset(("at", "location", "kind", "data", "home", "waits", "glob"))
"""The record of a probe that is lost."""
KINDS = frozenset(kind.value for kind in Kind)
NUMBERS = 1 << 32
"""What no probe's number reaches."""
BOUND = 1 << 31
"""What no count of calls, and no process's number, reaches."""
RECORDS, WORDS, ACTIONS, MAPS = 1 << 16, 1 << 16, 1 << 10, 1 << 10
"""Records of a ring that are being written, words of what was seen, actions, the session's maps: at most."""


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """What the journal keeps of a probe of any kind.

    home: where it is or was in a module. waits: whether it was at no site in the kernel; of a probe on a program, true.
    python: whether it had a handler in Python, or a script's. data: the address of its memory.
    maps: those that it shares.
    named: the session's maps that it uses, by name: their addresses, and how many keys they have room for.
    program: see `fingerprint`. bare: see Handler. routine: of a block, the address of what its detours call.
    sizes: the settings that it was made with, by name. seen: the head of what hits left that stopped the guest.
    lost: whether it was too large for a journal, so that only its place was written.
    """

    number: int
    address: int
    spec: Spec
    enabled: bool
    python: bool
    data: int | None
    program: int
    sizes: Mapping[str, int]
    since: RingPosition
    seen: tuple[int, ...]
    home: str = ""
    waits: bool = False
    lost: bool = False
    maps: MapsRecord | None = None
    named: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bare: bool = False
    routine: int | None = None


def write_probe(probe: Probe, journal: Journal) -> None:
    """Have the journal know `probe` as it is now."""
    value = probe_value(probe)
    if not journal.has(Item.PROBE, probe.number, value):
        journal.put(Item.PROBE, probe.number, _readable(probe, value))


def probe_value(probe: Probe) -> dict[str, Any]:
    """Return what the journal keeps of `probe`."""
    spec = probe.spec
    location = fields.kept(spec.location, probe.address, spec.in_program, spec.glob)
    value: dict[str, Any] = {"at": probe.address, "location": location}
    optional = {
        "kind": spec.kind.value if spec.kind is not Kind.KPROBE else "",
        "if": fields.tidy(spec.condition),
        "do": [*map(fields.tidy, spec.actions)] if spec.actions != ("count",) else [],
        "tier": _valid_or_empty(fields.tier, spec.tier),
        "name": _valid_or_empty(fields.name, spec.name),
        "glob": spec.glob,
        "entry if": fields.tidy(spec.entry_condition.text) if spec.entry_condition is not None else "",
        "entry do": [fields.tidy(action.text) for action in spec.entry_actions],
        "maxactive": min(spec.maxactive, BOUND - 1),
        "pending": spec.pending,
        "overwrite": spec.overwrite,
        "file": _valid_or_empty(fields.file, spec.file),
        "pid": min(spec.pid, BOUND - 1),
        "home": _valid_or_empty(fields.home, probe.home),
        "waits": not probe.is_in_kernel,
        "off": not probe.enabled,
        "python": probe.spec.has_python_handler or probe.spec.program is not None,
        "data": probe.counter.address if probe.counter is not None else 0,
        "maps": _maps_value(probe.handler),
        # A script's probes are not adopted, so nor are the maps of their gates, which have no names of a session's.
        "named maps": _named_value(probe) if spec.program is None else {},
        "bare": probe.handler.bare,
        "program": fingerprint(probe.handler) if not probe.handler.is_plain else 0,
        "sizes": dict(probe.sizes) if not probe.handler.is_plain else {},
        "since": [probe.since.following, *probe.since.pending] if probe.since.following else [],
        "seen": [*probe.seen.head] if probe.seen.head != probe.handler.head() else [],
    }
    return value | {name: given for name, given in optional.items() if given}


def _maps_value(handler: Handler) -> list[int]:
    """Return the address of the maps that `handler` shares, their bits, whether cells are in them, and its key there.
    """
    maps = handler.shared
    if maps is None or maps.memory is None:
        return []
    return [maps.memory.address, maps.bits, int(maps.cells), handler.function]


def _named_value(probe: Probe) -> dict[str, list[int]]:
    """Return the address of each of the session's maps that a probe uses, and its room for keys, by name."""
    maps = probe.handler.maps
    return {} if maps is None else {name: [*place] for name, place in maps.of_probe(probe.number).items()}


def _read_named(value: Any) -> Mapping[str, tuple[int, int]]:
    """Raises ValueError."""
    if not isinstance(value, dict) or len(value) > MAPS:
        raise ValueError("its named maps")
    found: dict[str, tuple[int, int]] = {}
    for name, place in value.items():
        address, most = validate.row(place, 2)
        found[fields.map_name(validate.text(name))] = validate.number(address), validate.number(most, MOST + 1, 1)
    return found


def _read_maps(value: Any) -> MapsRecord:
    """Raises ValueError."""
    address, bits, cells, function = validate.row(value, 4)
    return MapsRecord(
        validate.number(address),
        validate.number(bits, MOST_BITS + 1, 1),
        bool(validate.number(cells, 2)),
        validate.number(function),
    )


def _readable(probe: Probe, value: dict[str, Any]) -> dict[str, Any]:
    """Return `value`, or what a reader takes of it: one that is refused would have all refused."""
    cut = probe.spec.in_program and value["location"] != probe.spec.location.strip()
    if not cut and _is_readable(probe.number, value):
        return value
    return {name: kept for name, kept in value.items() if name in LOST_FIELDS} | {"lost": True}


def _is_readable(number: int, value: Mapping[str, Any]) -> bool:
    try:
        _decode(number, value)
    except (ValueError, KeyError):
        return False
    return True


def _valid_or_empty(check: Callable[[str], str], text: str) -> str:
    """Return what a later GDB takes, "" else: Python may have given anything."""
    try:
        return check(text)
    except fields.NotAField:
        return ""


def read_probe(number: int, value: Any, left: ArenaContents) -> ProbeRecord:
    """Raise Damaged where `value` cannot be of a probe with its memory in `left`."""
    try:
        validate.number(number, NUMBERS, 1)
        if not isinstance(value, dict) or not value.keys() <= FIELDS:
            raise ValueError("what is noted of it")
        one = _decode(number, value)
        _check_places(one, left)
        return one
    except (ValueError, KeyError) as wrong:
        raise Damaged(f"probe {number}: {wrong}") from None


def read_block(block: BlockRecord, left: ArenaContents) -> ProbeRecord:
    """Return the record of the first probe of a block. Raises Damaged."""
    one = read_probe(block.first, {**block.probe, "at": block.sites[0]}, left)
    timed = one.spec.is_plain_latency and block.times is not None and left.data_at(block.times[0]) is not None
    is_plain = (timed or one.spec.is_plain_count) and not one.program and one.routine is None
    calls_one = one.bare and one.program and one.routine is not None
    is_called = calls_one and (one.spec.counts_hits or one.maps is not None)
    is_graph = one.python and (one.routine is None if one.spec.is_return else calls_one)  # not adopted, but taken out
    if one.waits or one.home or not (is_plain or is_called or is_graph):
        raise Damaged(f"the block at {block.code.address:#x} is not of counts")
    return one


def restored_probe(one: ProbeRecord, address: int, handler: Handler, data: Slot | None) -> Probe:
    """Return the probe of a record, of any kind, with the memory that it had.

    Raises OptprobeError where `handler` would do something else with that memory.
    """
    fits = data is None or handler.size <= data.size
    if not fits or (not handler.is_plain and fingerprint(handler) != one.program):
        raise OptprobeError("it would not do here what it did there")
    probe = Probe(one.number, one.spec, address, handler, one.sizes, one.enabled, data, since=one.since, home=one.home)
    if len(one.seen) == len(handler.head()):
        probe.seen = replace(probe.seen, head=one.seen)
    return probe


def _check_places(one: ProbeRecord, left: ArenaContents) -> None:
    """Raises ValueError."""
    if not (one.waits or one.home or one.spec.in_program or left.bounds.has(one.address)):
        raise ValueError(f"no code is at {one.address:#x}")
    if one.spec.in_program and one.address >> 63:
        raise ValueError(f"no program is at {one.address:#x}")
    if one.data is not None and left.data_at(one.data) is None:
        raise ValueError(f"it has no memory at {one.data:#x}")
    if one.maps is not None and left.data_at(one.maps.address) is None:
        raise ValueError(f"it has no maps at {one.maps.address:#x}")
    for name, (at, _) in one.named.items():
        if left.data_at(at) is None:
            raise ValueError(f"it has no map @{name} at {at:#x}")


def _decode(number: int, value: Mapping[str, Any]) -> ProbeRecord:
    """Raises ValueError, KeyError."""

    def flag(name: str) -> bool:
        return validate.flag(value.get(name, False))

    spec, waits, home = _spec(value, flag), flag("waits"), fields.home(validate.text(value.get("home", "")))
    if not isinstance(sizes := value.get("sizes", {}), dict):
        raise ValueError("its sizes")
    following, *pending = validate.numbers(value.get("since", [0]), 1 + RECORDS)
    return ProbeRecord(
        number=number,
        address=validate.number(value["at"]),
        spec=spec,
        enabled=not flag("off"),
        python=flag("python"),
        data=validate.number(value["data"]) if "data" in value else None,
        maps=_read_maps(value["maps"]) if "maps" in value else None,
        named=_read_named(value.get("named maps", {})),
        bare=flag("bare"),
        routine=validate.number(value["routine"]) if "routine" in value else None,
        program=validate.number(value.get("program", 0), 1 << 32),
        sizes={name: size_of(name, size) for name, size in sizes.items()},
        since=RingPosition(following, tuple(pending)),
        seen=validate.numbers(value.get("seen", []), WORDS, least=-(1 << 63)),
        home=home,
        waits=waits,
        lost=flag("lost"),
    )


def _spec(value: Mapping[str, Any], flag: Callable[[str], bool]) -> Spec:
    """Raises ValueError."""

    def text(name: str) -> str:
        return validate.text(value.get(name, ""))

    named, glob = text("kind") or Kind.KPROBE.value, flag("glob")
    if named not in KINDS:
        raise ValueError(f"{ascii(named)[:40]} is no kind of probe")
    kind = Kind(named)
    entry_if = fields.condition(text("entry if"))
    entry_do = [fields.action(validate.text(each)) for each in validate.items(value.get("entry do", []), ACTIONS)]
    actions = [validate.text(each) for each in validate.items(value.get("do", ["count"]), ACTIONS)]
    if not actions:
        raise ValueError("no action")
    return Spec(
        location=fields.place(text("location"), kind.in_program, glob),
        kind=kind,
        condition=fields.condition(text("if")),
        actions=tuple(fields.action(action) for action in actions),
        tier=fields.tier(text("tier")),
        name=fields.name(text("name")),
        glob=glob,
        pending=flag("pending"),
        entry_condition=Fragment.whole(entry_if) if entry_if else None,
        entry_actions=tuple(Fragment.whole(action) for action in entry_do),
        maxactive=validate.number(value.get("maxactive", 0), BOUND),
        overwrite=flag("overwrite"),
        file=fields.file(text("file")),
        pid=validate.number(value.get("pid", 0), BOUND),
    )


def fingerprint(handler: Handler) -> int:
    """Return the same for handlers that do the same with memory that is laid out alike."""
    overwrites = (True,) if handler.overwrites else ()
    text = encode((handler.program, handler.entry, handler.table_bits, handler.ring_bits, *overwrites))
    return zlib.crc32(text.encode()) or 1
