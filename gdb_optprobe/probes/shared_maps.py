"""Hash maps that the probes of one `add` of a glob share: they grow with the functions that are hit, not with the glob.

    one piece of data   │ map of an action │ map of the next one │ …       key: function │ the columns that were typed
    each probe          │ hits │ faults │ … │ lost of each map │           handler.py
The function is a constant of each probe's program: its address when it was added. Of a block it is what the routine
knows, the detour that has called it (lower_routine.py). A probe's results are the keys that begin with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.handlers.ir import WORD, Cell, Column, Constant, Form, HashMap, Update
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.hash_map import HashMapLayout

FUNCTION = Column("function", Form.POINTER)
TIMES = 16
"""A map of a glob has room for as many times the keys that one of a single probe has, where its probes are as many."""
LEAST_BITS, MOST_BITS = 6, 20
Rows = Mapping[bytes, tuple[int, ...]]


class Space(Protocol):
    """Memory for maps. free: bytes in one piece. lent: bytes that the kernel would lend for `set optprobe table-keys`.
    """

    @property
    def free(self) -> int: ...

    @property
    def lent(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MapsRecord:
    """What the journal keeps of a probe's shared maps. function: its key in them. cells: see SharedMaps."""

    address: int
    bits: int
    cells: bool
    function: int


@dataclass(frozen=True, slots=True)
class MapsContents:
    """rows: of each map by function, the keys without it. lost: of each map, the values of blocks without room there.
    """

    rows: Mapping[int, tuple[Rows, ...]] = field(default_factory=dict)
    lost: tuple[int, ...] = ()


@dataclass(eq=False)
class SharedMaps:
    """keys: of a map of a single probe. probes: that are to share them.

    space:  None where bits and cells are known, as of an earlier GDB's.
    bits:   see HashMapLayout. cells: whether what has no key by itself is in a map too.
    shapes: of the maps: a probe with others has its own. memory: of all maps, once a probe needs them.
    users:  the numbers of the probes that write there. blocks: the addresses of the code of blocks that do.
    """

    keys: int
    probes: int
    space: Space | None = None
    bits: int = 0
    cells: bool = False
    shapes: tuple[HashMapLayout, ...] = ()
    memory: Slot | None = None
    users: set[int] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)

    def decide(self, cells: Sequence[Cell]) -> None:
        """Decide whether cells become maps: where one of each for every probe takes more than half of the memory."""
        if self.space is not None and not self.shapes:
            size = sum(aggregate.size(cell.aggregate) for cell in cells)
            self.cells = self.cells or size * self.probes > self.space.free // 2

    def takes(self, shapes: Sequence[HashMapLayout]) -> bool:
        """Return whether a probe with such maps shares these; the first one says what they are."""
        if not self.shapes and self.space is not None:
            self.bits = self._fitting(shapes, self.space)
        wanted = _with_bits(shapes, self.bits)
        if not self.shapes and (self.memory is None or sum(one.size for one in wanted) <= self.memory.size):
            self.shapes = wanted
        return bool(wanted) and wanted == self.shapes

    def _fitting(self, shapes: Sequence[HashMapLayout], space: Space) -> int:
        """Return the bits of maps that take half of the free memory at most, or all that may be lent."""
        times = min(self.probes, TIMES)
        wanted = self.keys * times
        if all(one.key_words == 1 for one in shapes):
            wanted = min(wanted, 2 * self.probes)  # a key for each function
        bits = max(LEAST_BITS, min((wanted - 1).bit_length(), MOST_BITS))
        room = max(space.free // 2, space.lent)
        while bits > LEAST_BITS and sum(one.size for one in _with_bits(shapes, bits)) > room:
            bits -= 1
        return bits

    @property
    def size(self) -> int:
        return sum(one.size for one in self.shapes)

    def by_function(self, update: Update, function: int) -> Update:
        """Return an update with what it fills in a map that all functions share; one of a session's map as it is."""
        match update.target:
            case HashMap(name, columns, kind):
                table = HashMap(name, (FUNCTION, *columns), kind)
                return Update(table, update.value, (Constant(function), *update.by))
            case Cell(name, kind) if self.cells:
                return Update(HashMap(name, (FUNCTION,), kind), update.value, (Constant(function),))
            case _:
                return update

    # memory ----------------------------------------------------------------------------------------------------------

    def reserve(self, number: int, near: int, reach: int, arena: Arena, memory: Memory) -> None:
        """Have the maps in memory that code at `near` addresses by distance, for one more probe. Raises Refused."""
        self._allocate(near, reach, arena, memory)
        self.users.add(number)

    def reserve_block(self, code: int, near: int, reach: int, arena: Arena, memory: Memory) -> None:
        """Do the same for the block with its code at `code`. Raises Refused."""
        self._allocate(near, reach, arena, memory)
        self.blocks.add(code)

    def _allocate(self, near: int, reach: int, arena: Arena, memory: Memory) -> None:
        if self.memory is None:
            with arena.new_data(self.size, near, reach) as slot:
                memory.write(slot.address, b"".join(one.initial() for one in self.shapes))
            self.memory = slot

    def release(self, number: int, arena: Arena) -> None:
        """A probe has gone. The memory is freed with the last one, and with the code that may still write there."""
        if number in self.users:
            self.users.discard(number)
            self.release_unused(arena)

    def release_block(self, code: int, arena: Arena) -> None:
        """Do the same for a block: none of its members is in it any more."""
        if code in self.blocks:
            self.blocks.discard(code)
            self.release_unused(arena)

    def release_unused(self, arena: Arena) -> None:
        """Release the memory where nothing writes there any more."""
        if not (self.users or self.blocks) and self.memory is not None:
            arena.data.release(self.memory)
            self.memory = None

    def _read(self, memory: Memory) -> list[bytes]:
        """Return what each map holds."""
        assert self.memory is not None, "a probe needed it"
        start, end = self.memory.address, self.memory.address + self.size
        spans = [(at, min(at + runs.LONGEST, end)) for at in range(start, end, runs.LONGEST)]
        data = b"".join(runs.read_spans(spans, memory))
        found = []
        for one in self.shapes:
            found.append(data[: one.size])
            data = data[one.size :]
        return found

    def read(self, memory: Memory, runs: bool = False) -> MapsContents:
        """Return what the maps hold. What was cleared and not hit since is left out. runs: whether the guest does."""
        found: dict[int, tuple[dict[bytes, tuple[int, ...]], ...]] = {}
        if self.memory is None:
            return MapsContents()  # all hits stopped the guest
        lost: list[int] = []
        before = self._read(memory) if runs else [None] * len(self.shapes)
        for number, (layout, data, earlier) in enumerate(zip(self.shapes, self._read(memory), before, strict=True)):
            cleared = aggregate.initial(layout.aggregate) if not isinstance(layout.aggregate, aggregate.Sum) else None
            contents = layout.decode(data, earlier)
            lost.append(contents.overflow)
            for key, words in contents.by_key.items():
                function = int.from_bytes(key[:WORD], "little")
                if words != cleared:
                    found.setdefault(function, tuple({} for _ in self.shapes))[number][key[WORD:]] = words
        return MapsContents(found, tuple(lost))

    def clear(self, has: Callable[[int], bool] | None, memory: Memory) -> None:
        """Set the values of some functions' keys to what they were before the first hit.

        has: whether a function is one of them; None for all, where no thread is in a program that writes there: the
        keys go too.
        """
        if self.memory is None:
            return
        at = self.memory.address
        if has is None:
            memory.write(at, b"".join(one.initial() for one in self.shapes))
            return
        for layout, data in zip(self.shapes, self._read(memory), strict=True):
            memory.write(at, layout.cleared(data, lambda key: has(int.from_bytes(key[:WORD], "little"))))
            at += layout.size


def _with_bits(shapes: Sequence[HashMapLayout], bits: int) -> tuple[HashMapLayout, ...]:
    return tuple(HashMapLayout(one.key_words, one.aggregate, bits) for one in shapes)
