"""The maps of a session (maps/session_map.py): by name, in guest memory while a probe uses them or they are kept.

    probe ──reserve──► its maps are in memory ──► native code has their addresses
          ──release──► those that no probe uses are freed, but for what is kept
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.handlers.ir import Column, Map
from gdb_optprobe.handlers.lower_session_maps import session_layout
from gdb_optprobe.maps.session_map import MOST, SessionMap


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
    """users: the numbers of the probes whose programs use it. kept: it stays where none does."""

    target: Map
    memory: Slot | None = None
    users: set[int] = field(default_factory=set)
    kept: bool = False


@dataclass(eq=False)
class SessionMaps:
    """All maps of a session. memory: the guest's."""

    memory: Memory
    _maps: dict[str, PlacedMap] = field(default_factory=dict)

    def declare(self, maps: Iterable[Map]) -> None:
        """Check that each is what its name already stands for. Raises OptprobeError."""
        for target in maps:
            if not 0 < target.most <= MOST:
                raise OptprobeError(f"@{target.name} cannot have room for {target.most} keys", f"at most {MOST}")
            known = self._maps.get(target.name)
            if known is not None and _shape(known.target) != _shape(target):
                raise OptprobeError(
                    f"@{target.name} has keys or values of another type here than in other probes",
                    "use another name, or delete those probes",
                )

    def reserve(self, number: int, maps: Sequence[Map], near: int, reach: int, arena: Arena) -> None:
        """Have these maps in memory that code at `near` addresses by distance, for one more probe. Raises Refused."""
        self.declare(maps)
        for target in maps:
            placed = self._maps.setdefault(target.name, PlacedMap(target))
            if placed.memory is None:
                layout = session_layout(target)
                with arena.new_data(layout.size, near, reach) as slot:
                    self.memory.write(slot.address, layout.initial())
                placed.memory = slot
            placed.users.add(number)

    def adopt(self, number: int, target: Map, memory: Slot) -> None:
        """Have a map where an earlier session had it. Raises OptprobeError where that is too small for it."""
        self.declare([target])
        if memory.size < session_layout(target).size:
            raise OptprobeError(f"@{target.name} was smaller there")
        placed = self._maps.setdefault(target.name, PlacedMap(target, memory))
        placed.users.add(number)

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

    def of_probe(self, number: int) -> Mapping[str, Slot]:
        """Return the memory of the maps that a probe uses, by name."""
        used = ((name, one.memory) for name, one in sorted(self._maps.items()) if number in one.users)
        return {name: memory for name, memory in used if memory is not None}

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

    def target(self, name: str) -> Map:
        """Return what a name stands for. Raises KeyError."""
        return self._maps[name].target


def _shape(target: Map) -> object:
    """Return what two maps of one name must have in common."""
    value = target.value if not isinstance(target.value, tuple) else _types(target.value)
    return _types(target.columns), value, target.most


def _types(columns: tuple[Column, ...]) -> tuple[object, ...]:
    return tuple((column.form, column.size) for column in columns)
