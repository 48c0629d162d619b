"""The maps of a session (maps/session_map.py): by name, in guest memory while a probe uses them or they are kept.

    probe ──reserve──► its maps are in memory ──► native code has their addresses
          ──release──► those that no probe uses are freed, but for what is kept
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.handlers.ir import Column, Map
from gdb_optprobe.handlers.lower_session_maps import session_layout
from gdb_optprobe.maps.session_map import MOST, SessionMap, SessionMapLayout

Contents = Mapping[bytes, tuple[int, ...]]
"""The words of each key of a map."""
LEAST = 256
"""Keys that a map has room for, at least, if more are asked for."""


@dataclass(frozen=True, slots=True)
class GuestBytes:
    """Bytes of the guest, read and written where they are: a slice from an offset to another."""

    memory: Memory
    slot: Slot

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(self.slot.size)
        at = self.slot.address
        spans = [(at + one, at + min(one + runs.LONGEST, stop)) for one in range(start, stop, runs.LONGEST)]
        return b"".join(runs.read_spans(spans, self.memory))

    def __setitem__(self, part: slice, data: bytes, /) -> None:
        self.memory.write(self.slot.address + part.indices(self.slot.size)[0], data)


@dataclass(eq=False)
class PlacedMap:
    """users: the numbers of the probes with programs that use it. kept: it stays where none does.

    asked: as programs have it. target: the same, with no more room for keys than there is memory for.
    """

    asked: Map
    target: Map
    memory: Slot | None = None
    users: set[int] = field(default_factory=set)
    kept: bool = False


@dataclass(eq=False)
class SessionMaps:
    """All maps of a session. memory: the guest's. first: by name, what a map begins with that is placed from now on."""

    memory: Memory
    first: Mapping[str, Contents] = field(default_factory=dict)
    _maps: dict[str, PlacedMap] = field(default_factory=dict)

    def declare(self, maps: Iterable[Map]) -> None:
        """Check that each is what its name already means. Raises OptprobeError."""
        for target in maps:
            if not 0 < target.most <= MOST:
                raise OptprobeError(f"@{target.name} cannot have room for {target.most} keys", f"at most {MOST}")
            known = self._maps.get(target.name)
            if known is not None and _shape(known.asked) != _shape(target):
                raise OptprobeError(
                    f"@{target.name} has keys or values of another type here than in other probes",
                    "use another name, or delete those probes",
                )

    def reserve(self, number: int, maps: Sequence[Map], near: int, reach: int, arena: Arena) -> None:
        """Have these maps in memory that code at `near` addresses by distance, for one more probe. Raises Refused."""
        self.declare(maps)
        for target in maps:
            placed = self._maps.get(target.name) or PlacedMap(target, target)
            if placed.memory is None:
                placed.target = _fitting(target, near, reach, arena)
                layout = session_layout(placed.target)
                with arena.new_data(layout.size, near, reach) as slot:
                    self.memory.write(slot.address, layout.initial())
                    begun = SessionMap(layout, GuestBytes(self.memory, slot))
                    for key, words in self.first.get(target.name, {}).items():
                        begun.put(key, words)
                placed.memory = slot
            self._maps[target.name] = placed
            placed.users.add(number)

    def adopt(self, number: int, asked: Map, most: int, memory: Slot) -> None:
        """Have a map where an earlier session had it, with room for so many keys.

        Raises OptprobeError where that memory is too small for it.
        """
        self.declare([asked])
        target = replace(asked, most=most)
        if not 0 < most <= asked.most or memory.size < session_layout(target).size:
            raise OptprobeError(f"@{asked.name} was another map there")
        self._maps.setdefault(asked.name, PlacedMap(asked, target, memory)).users.add(number)

    def keep(self, names: Iterable[str], kept: bool = True) -> None:
        """Have maps stay where no probe uses them; or no longer, which `release` of a probe makes true."""
        for name in names:
            self._maps[name].kept = kept

    def release(self, number: int, arena: Arena) -> None:
        """Free what only this probe used, together with the code that may still write there."""
        for name, placed in [*self._maps.items()]:
            placed.users.discard(number)
            if not placed.users and not placed.kept:
                if placed.memory is not None:
                    arena.data.release(placed.memory)
                del self._maps[name]

    def addresses(self, maps: Iterable[Map], otherwise: int) -> Mapping[str, int]:
        """Return where maps are, by name. otherwise: for those that are nowhere yet, where only costs are asked for."""
        placed = {target.name: self._maps.get(target.name) for target in maps}
        return {
            name: one.memory.address if one is not None and one.memory is not None else otherwise
            for name, one in placed.items()
        }

    def rooms(self, maps: Iterable[Map]) -> Mapping[str, int]:
        """Return how many keys maps have room for, by name, where it is less than is asked for."""
        placed = (self._maps.get(target.name) for target in maps)
        return {one.asked.name: one.target.most for one in placed if one is not None and one.target != one.asked}

    def of_probe(self, number: int) -> Mapping[str, tuple[int, int]]:
        """Return the addresses of the maps that a probe uses, and the keys that they have room for, by name."""
        return {
            name: (one.memory.address, one.target.most)
            for name, one in sorted(self._maps.items())
            if number in one.users and one.memory is not None
        }

    def users(self, names: Iterable[str]) -> set[int]:
        """Return the numbers of the probes that use some of these maps."""
        return {number for name in names for number in self._maps[name].users}

    def used_by(self, numbers: Collection[int]) -> Iterator[str]:
        """Yield the names of the maps that some of these probes use."""
        return (name for name, one in self._maps.items() if not one.users.isdisjoint(numbers))

    def used_alone_by(self, numbers: Collection[int]) -> Iterator[str]:
        """Yield the names of the maps that no other probes than these use."""
        return (name for name, one in self._maps.items() if one.users <= {*numbers})

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Return the memory of all."""
        return tuple(one.memory for one in self._maps.values() if one.memory is not None)

    def by_name(self) -> Mapping[str, SessionMap]:
        """Return the maps that are in memory, to be read and changed while the guest is stopped."""
        return {
            name: SessionMap(session_layout(one.target), GuestBytes(self.memory, one.memory))
            for name, one in self._maps.items()
            if one.memory is not None
        }

    def placed(self, names: Iterable[str]) -> Mapping[str, tuple[SessionMapLayout, Slot]]:
        """Return the layout and the memory of some maps, those of them that are in memory, by name."""
        known = ((name, self._maps[name]) for name in names if name in self._maps)
        return {name: (session_layout(one.target), one.memory) for name, one in known if one.memory is not None}

    def target(self, name: str) -> Map:
        """Return what a name means. Raises KeyError."""
        return self._maps[name].target


def _fitting(target: Map, near: int, reach: int, arena: Arena) -> Map:
    """Return a map with room for fewer keys where neither the arena nor what its kernel would lend has room for all.

    It leaves as much of the arena as it takes: other maps follow, and what the probes themselves count in.
    """
    lent = arena.lender.most(0, 1 << 64) if arena.lender is not None else 0
    while target.columns and target.most > LEAST and (size := session_layout(target).size) > lent:
        try:
            arena.check_room(2 * size, near, reach)
            break
        except Refused:
            target = replace(target, most=max(LEAST, target.most // 2))
    return target


def _shape(target: Map) -> object:
    """Return what two maps of one name must have in common."""
    value = target.value if not isinstance(target.value, tuple) else _types(target.value)
    return _types(target.columns), value, target.most


def _types(columns: tuple[Column, ...]) -> tuple[object, ...]:
    return tuple((column.form, column.size) for column in columns)
