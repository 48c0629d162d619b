"""What leads out of functions, in the cache on disk: later sessions and boots need not decode them.

    offset of a part in the text ──► its size, places of addresses, a hash of its other bytes, what leads out of it,
                                     and which calls through pointers a branch may displace alone (lone_plans.py)
A row counts where the guest has the same bytes now, but for operands that may be addresses of the image, which
randomization moves (Isa.addresses_in): then the instructions are the same, and what leads out of them. So a row cannot
be out of date, whatever rewrites the text. A file that is damaged, or has another format, counts as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from struct import error as StructError
from typing import Any

from gdb_optprobe.guest.cache import version_of
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.lasting_text import ShelvedText
from gdb_optprobe.guest.text import Place
from gdb_optprobe.isa.base import LONGEST as LONGEST_INSN
from gdb_optprobe.isa.base import Insn, Pointer
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.graph.callees import Exits, decoded, exits_of
from gdb_optprobe.probes.lone_plans import Lone

FORMAT = 2
FINDERS = "detours", "guest", "isa", "probes/graph/callees.py", "probes/lone_plans.py"
"""What finds exits: with another version of it nothing that was kept is used."""
COLUMNS = 6
MOST = 1 << 13
"""Rows. `do_exit` to a depth of 6 has some 2,500, with cold parts."""
LONGEST = 1 << 16
"""Bytes of a part that is kept."""
REACH = 1 << 31
"""How far a direct call leads."""
FIELD = Struct("<HB")
"""The offset of an address in a part, and its size."""

Row = list[Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a part of a function. lone: by address, calls through pointers that are displaced alone."""

    exits: Exits
    lone: Mapping[int, Lone] = field(default_factory=dict)


@dataclass
class KeptExits:
    """What is kept of a text."""

    of: ShelvedText
    isa: Isa
    _rows: dict[int, Row] | None = None
    _new: dict[int, Row] = field(default_factory=dict)

    def find(self, place: Place, code: bytes) -> Known | None:
        """Return what is known of a part with this code; None where nothing is."""
        row = self._known().get(place.start - self.of.base)
        if row is None or not self._is_own(place):
            return None
        try:
            _, size, fields, digest, calls, pointers = row
            if size != len(code) or _digest(code, [*FIELD.iter_unpack(bytes.fromhex(fields))]) != digest:
                return None
            exits = Exits(
                tuple((place.start + _distance(to), bool(is_call)) for to, is_call in calls),
                tuple((place.start + _within(at, size), self._pointer(*rest)) for at, *rest, _, _ in pointers),
            )
            alone = {place.start + at: self._lone(*rest) for at, _, _, *rest in pointers if rest[0]}
            return Known(exits, alone)
        except (ValueError, TypeError, StructError):
            return None

    def add(self, place: Place, code: bytes, insns: Sequence[Insn], exits: Exits) -> None:
        """Have it kept what leads out of a part with these instructions."""
        if not self._is_own(place) or len(code) > LONGEST:
            return
        fields = [
            (insn.address - place.start + at, size) for insn in insns for at, size in self.isa.addresses_in(insn)
        ]
        start = place.start
        self._new[start - self.of.base] = [
            start - self.of.base,
            len(code),
            b"".join(FIELD.pack(*each) for each in fields).hex(),
            _digest(code, fields),
            [[to - start, int(is_call)] for to, is_call in exits.calls],
            [[at - start, pointer.register, pointer.offset, 0, None] for at, pointer in exits.pointers],
        ]

    def add_lone(self, place: Place, found: Mapping[int, Lone]) -> None:
        """Have it kept which calls through pointers of a part, which is kept, are displaced alone."""
        at = place.start - self.of.base
        row = self._new.get(at) or self._known().get(at)
        if row is None or not self._is_own(place):
            return
        *others, pointers = row
        base = self.of.base
        facts = {
            address - place.start: [one.size, one.base - base if one.base is not None else None]
            for address, one in found.items()
        }
        self._new[at] = [*others, [[*each[:3], *facts.get(each[0], each[3:])] for each in pointers]]

    def store(self) -> None:
        """Write what was added."""
        if not self._new:
            return
        rows = {**self._new, **{at: row for at, row in self._known().items() if at not in self._new}}
        self._rows, self._new = dict([*rows.items()][:MOST]), {}
        self.of.shelf.store_rows(self.name, FORMAT, [*self._rows.values()])

    @property
    def name(self) -> str:
        return f"exits-{sha256(version_of(*FINDERS) + self.isa.name.encode()).hexdigest()}"

    def _known(self) -> Mapping[int, Row]:
        if self._rows is None:
            self._rows = {row[0]: row for row in self.of.shelf.rows(self.name, FORMAT, COLUMNS, MOST)}
        return self._rows

    def _is_own(self, place: Place) -> bool:
        return self.of.base <= place.start < place.end <= self.of.base + self.of.size

    def _pointer(self, register: object, offset: object) -> Pointer:
        if register not in self.isa.registers or not isinstance(register, str):
            raise ValueError(register)
        return Pointer(register, _distance(offset) if offset is not None else None)

    def _lone(self, size: object, base: object) -> Lone:
        return Lone(_within(size, LONGEST_INSN + 1), self.of.base + _distance(base) if base is not None else None)


@dataclass
class KnownExits:
    """What leads out of functions of a guest, as long as their code is the same: of this session, and what is kept."""

    _known: dict[int, tuple[bytes, Known]] = field(default_factory=dict)
    _kept: KeptExits | None = None

    def of(self, place: Place, code: bytes, guest: Guest) -> Exits:
        """Return what leads out of a part of a function with this code."""
        known = self._known.get(place.start)
        if known is None or known[0] != code:
            kept = self._kept_of(guest)
            found = kept.find(place, code) if kept is not None else None
            if found is None:
                insns, own = decoded(code, place.start, guest.isa)
                found = Known(exits_of(insns, place, lambda insn: None if insn.address in own else guest.pointer(insn)))
                if kept is not None:
                    kept.add(place, code, insns, found.exits)
            known = self._known[place.start] = code, found
        return known[1].exits

    def lone(self, sites: Collection[int]) -> dict[int, Lone]:
        """Return those calls through pointers, of those that `of` has returned, that are displaced alone."""
        return {at: one for _, known in self._known.values() for at, one in known.lone.items() if at in sites}

    def add_lone(self, found: Mapping[int, Lone]) -> None:
        """Take note of calls through pointers that are displaced alone."""
        for start, (code, known) in self._known.items():
            new = {at: found[at] for at, _ in known.exits.pointers if at in found and known.lone.get(at) != found[at]}
            if new:
                self._known[start] = code, Known(known.exits, {**known.lone, **new})
                if self._kept is not None:
                    self._kept.add_lone(Place("", start, start + len(code)), new)

    def keep(self) -> None:
        """Keep what was found for later sessions."""
        if self._kept is not None:
            self._kept.store()

    def _kept_of(self, guest: Guest) -> KeptExits | None:
        if self._kept is None and (text := guest.shelved_text()) is not None:
            self._kept = KeptExits(text, guest.isa)
        return self._kept


def _digest(code: bytes, fields: Sequence[tuple[int, ...]]) -> str:
    """Return the hash of code with zeros in these places. Raises ValueError for a place beyond it."""
    data = bytearray(code)
    for at, size in fields:
        data[at : at + size] = bytes(size)
    if len(data) != len(code):
        raise ValueError(fields)
    return sha256(data).hexdigest()


def _distance(value: object) -> int:
    if type(value) is not int or abs(value) > REACH:
        raise ValueError(value)
    return value


def _within(value: object, size: int) -> int:
    if type(value) is not int or not 0 <= value < size:
        raise ValueError(value)
    return value
