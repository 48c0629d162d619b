"""The journal of an arena (maps/journal_format.py): another GDB reads in it what this one left in the guest.

    kind   key       value
    text   address   original bytes of a branch, whether the tracer was kept off     before the branch is written
    code   address   size, head, origins, exits of a detour                          before its first byte is written
    pads   address   -                                                               a page of them
    data   address   size
    counts number    of the first of many probes: see arena_contents.BlockRecord     before their first byte is written
    alone  number    of such a probe that has items of its own by now
    block  address   of code that such counts have left; of their own code, where an earlier version noted them
    out    address   of code of such a count as `alone`: no version writes it any more
    probe  number    recovery/adopt.py
    point  address   of return probes, the same
    calls  address   of the same table: whether its probes are deleted, and what was counted in older tables
    hits   address   of the same table: the address of a probe's hits, which are returns that it does not count
    uses   address   of code, what it may reference: see Arena.set_references      before its first byte is written
    table  number    address of the data of the only table of a kind, see TableKind: another GDB has its own there
    user   number    probes/user/trap_records.py
    room   -         the arena itself, by its maker                                  first of all
    more   address   of a word of data: see detours/lent_block.py                    before the guest is asked
    moved  -         where all items are now, and its size; this journal stays as it was then
    event  address   of code that is registered on a tracepoint, or was to be: probes/tracepoint_handlers.py
The removal of an item is written with the next change: until then it does no harm.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.maps import journal_format
from gdb_optprobe.maps.journal_format import Found, State

FULL = "full"
_LAST = 64  # bytes of the record that says that the journal is full
_PIECE = 1 << 13
_AGES = 1 << 16
_SHORT = 64  # bytes of the last record that are compared


class Item(StrEnum):
    """The kinds of items, as their keys begin: see above."""

    TEXT = "text"
    CODE = "code"
    PADS = "pads"
    DATA = "data"
    COUNTS = "counts"
    ALONE = "alone"
    BLOCK = "block"
    OUT = "out"
    PROBE = "probe"
    POINT = "point"
    CALLS = "calls"
    HITS = "hits"
    REFERENCES = "uses"
    TABLE = "table"
    USER = "user"
    ROOM = "room"
    MORE = "more"
    MOVED = "moved"
    EVENT = "event"


class TableKind(IntEnum):
    """Tables that exist once, by their numbers in the journal."""

    TRAPS = 1
    USER_TRAPS = 2
    USER_WRITES = 3
    USER_MAPPINGS = 4
    USER_CALLS = 5


@dataclass
class _Place:
    """The memory of a journal, and what was written there.

    seen:  how many bytes held fill before they were written.
    together: bytes of the record that had all items, when it was written last.
    """

    start: int
    size: int
    generation: int
    half: int
    seen: int
    tail: int = 0
    together: int = 0
    unpacked: journal_format.Unpacked = field(default_factory=journal_format.Unpacked)
    last_piece: bytes = b""


@dataclass
class Journal:
    """The items of `state`, and the memory that they are written to.

    memory, start, size: where it is kept at first; without `memory` nothing is written.
    fill:  the byte that this memory holds before and after.
    found: what an earlier GDB has left there.
    when_full: called once it holds no more: from then on another GDB reads only that.
    """

    memory: Memory | None = None
    start: int = 0
    size: int = 0
    fill: int = 0
    found: Found = field(default_factory=Found)
    when_full: Callable[[], None] = lambda: None
    state: State = field(init=False)
    _changes: State = field(default_factory=dict)
    _place: _Place = field(init=False)
    _home: _Place | None = None
    _open: bool = False
    _has_new: bool = False

    def __post_init__(self) -> None:
        self.state = dict(self.found.state)
        self._place = self._at_place(self.start, self.size, self.found)

    @staticmethod
    def _at_place(start: int, size: int, found: Found) -> _Place:
        return _Place(start, size, found.generation, found.half, size if found.generation else 0)

    def begin(self) -> None:
        """Write all items so far. Raises OptprobeError, the guest unchanged."""
        if self.memory is None:
            return
        if self._place.generation:
            other = self._at(1 - self._place.half)
            self._wipe(other, other + self._place.size // 2)
        elif journal_format.header(0) in (self._read(at, journal_format.HEADER) for at in (0, self._place.size // 2)):
            self._clear_all()
        if not self._place.generation:
            self._place.half = 1
            self._write(0, journal_format.header(0))
        self._open = True
        self._rewrite()

    def begin_at(self, start: int) -> None:
        """Write all items so far into memory that begins there. Raises OptprobeError, as `begin`."""
        self._place.start = start
        self.begin()

    def clear(self) -> None:
        """Remove the journal, when nothing else is left in the guest: its memory is restored."""
        self._open, self._changes = False, {}
        if self.memory is None:
            return
        if self._place.generation:
            other = self._at(1 - self._place.half)
            self._write(other, journal_format.header(0))
            self._fill(self._place.half, self._place.tail)
            self._fill(1 - self._place.half, journal_format.HEADER if self._place.tail else 0)
        else:
            self._clear_all()
        self._place.generation = self._place.tail = 0

    def lose(self) -> None:
        """Forget its memory, which the guest uses again: `begin` may be called with other memory."""
        self._open = False
        self._place.generation = self._place.half = self._place.tail = self._place.seen = 0
        self._changes = dict(self.state)

    # more room ---------------------------------------------------------------------------------------------------

    @property
    def has_moved(self) -> bool:
        """Return whether it is in other memory than at first."""
        return self._home is not None

    def adopt_moved(self, start: int, size: int, found: Found) -> None:
        """Use what an earlier GDB has moved the journal to."""
        self._home, self._place = self._place, self._at_place(start, size, found)
        self.state = dict(found.state)

    def move(self, start: int, size: int) -> None:
        """Have all items in larger memory, where nothing else is; what it holds is wiped.

        Raises OptprobeError with nothing moved.
        """
        assert self.memory is not None and self._home is None
        if not self._open:
            return
        self.flush()
        home, self._place = self._place, self._at_place(start, size, Found())
        try:
            self._wipe(0, size)
            self._place.half = 1
            self._rewrite()
            if not self._open:
                raise OptprobeError("the journal does not fit there")
        except OptprobeError:
            self._open, self._place = True, home
            raise
        there, self._place = self._place, home
        # From this write on what is there counts; what leads there stays.
        moved = {f"{Item.MOVED} 0": [start, size]}
        kept = {key: value for key, value in self.state.items() if key.partition(" ")[0] in (Item.ROOM, Item.MORE)}
        self._rewrite_as(kept | moved)
        self._home, self._place = home, there

    def move_back(self) -> None:
        """Have all items where they were at first: the other memory is given back. One that has become full there lists
        them again. Raises OptprobeError where there is no room for them, or a write fails; they stay then.
        """
        if self._home is None:
            return
        self.flush()
        before = self._place, self._home, self._open
        body = journal_format.body(self.state)
        if journal_format.HEADER + len(journal_format.record(body, 0)) + _LAST > self._home.size // 2:
            raise OptprobeError("the journal has no room where it was at first")
        try:
            self._place, self._home, self._open = self._home, None, True
            other = self._at(1 - self._place.half)
            self._wipe(other, other + self._place.size // 2)
            self._rewrite()
        except OptprobeError:
            self._place, self._home, self._open = before
            raise

    @property
    def is_open(self) -> bool:
        """Return whether changes are written: there is memory for it, and it has not become full."""
        return self._open

    def is_short_of(self, size: int) -> bool:
        """Return whether so many bytes of compressed items more may need the last eighth of the room for all.

        False where there is no larger memory to move to.
        """
        # What was written since the last time all was takes half as much when it is written together.
        used = max(self._place.together, self._place.tail // 2)
        return self._open and self._home is None and used + size > self._place.size // 2 * 7 // 8

    def is_in_place(self) -> bool:
        """Return whether the guest holds it as written last: not if another snapshot was loaded since."""
        if not self._open:
            return True
        at, last = self._at(self._place.half), self._place.last_piece
        held = self._read(at, journal_format.HEADER), self._read(at + self._place.tail - len(last), len(last))
        return held == (journal_format.header(self._place.generation), last)

    # items ------------------------------------------------------------------------------------------------------

    def put(self, item: Item, at: int, value: Any) -> None:
        """Set an item."""
        key = f"{item} {at:x}"
        if self.state.get(key) != value:
            self.state[key] = self._changes[key] = value
            self._has_new = True

    def has(self, item: Item, at: int, value: Any) -> bool:
        """Return whether the item has this value."""
        return bool(self.state.get(f"{item} {at:x}") == value)

    def drop(self, item: Item, at: int) -> None:
        """Remove an item, if there is one."""
        key = f"{item} {at:x}"
        if self.state.pop(key, None) is not None:
            self._changes[key] = None

    def text(self, address: int, original: bytes, traced: bool = False) -> None:
        """Record that text is about to be changed. traced: whether ftrace is kept off its site for it."""
        self.put(Item.TEXT, address, [original.hex(), traced])

    def code(self, slot: Slot, detour: Detour) -> None:
        """Record that `detour` is about to be written into `slot`."""
        origins = [[at - slot.address, original - detour.head] for at, original in detour.origins]
        exits = [[insn.address - slot.address, insn.data.hex()] for insn in detour.exits]
        self.put(Item.CODE, slot.address, [slot.size, detour.size, detour.head, origins, exits])

    def flush_new(self) -> None:
        """Write the changes since the last time if any sets an item: memory that it is about may change next."""
        if self._has_new:
            self.flush()

    def flush(self) -> None:
        """Write the changes since the last time."""
        self._has_new = False
        if not self._open or not self._changes:
            return
        body = journal_format.body(self._changes)
        data = journal_format.record(body, self._place.generation)
        if self._place.tail + len(data) + _LAST > self._place.size // 2 or not self._place.unpacked.holds(body, _LAST):
            self._rewrite()
            return
        self._changes.clear()
        self._place.unpacked.spend(body)
        self._append(data)

    # its memory --------------------------------------------------------------------------------------------------

    def _rewrite(self) -> None:
        self._rewrite_as(self.state)

    def _rewrite_as(self, state: State) -> None:
        """Write all of it into the other half. If that has too little room, write that it is full and close it.

        What is there already stays readable then; where nothing is there yet, a journal is written that only says so.
        """
        # Random, so that a generation from before a snapshot was loaded is not taken for one from after.
        generation, half = self._place.generation + 1 + random.randrange(_AGES), 1 - self._place.half
        body, unpacked = journal_format.body(state), journal_format.Unpacked()
        data = journal_format.record(body, generation)
        # A record that no reader accepts is as bad as one that has no room.
        if journal_format.HEADER + len(data) + _LAST > self._place.size // 2 or not unpacked.holds(body, _LAST):
            self._open = False
            body = journal_format.body({FULL: True})
            if self._place.generation:
                self._append(journal_format.record(body, self._place.generation))
                self.when_full()
                return
            data, unpacked = journal_format.record(body, generation), journal_format.Unpacked()
        at = self._at(half)
        self._write(at + journal_format.HEADER, data)
        self._write(at, journal_format.header(generation))
        if self._place.generation:
            self._fill(self._place.half, self._place.tail)
        self._place.generation, self._place.half, self._place.tail = generation, half, journal_format.HEADER + len(data)
        self._place.last_piece, self._place.together = data[-_SHORT:], len(data)
        unpacked.spend(body)
        self._place.unpacked = unpacked
        self._changes.clear()
        if not self._open:
            self.when_full()

    def _append(self, data: bytes) -> None:
        for offset, part in journal_format.in_order(self._at(self._place.half) + self._place.tail, data):
            self._write(offset, part)
        self._place.tail += len(data)
        self._place.last_piece = data[-_SHORT:]

    def _at(self, half: int) -> int:
        return half * (self._place.size // 2)

    def _read(self, offset: int, size: int) -> bytes:
        assert self.memory is not None
        return self.memory.read(self._place.start + offset, size)

    def _write(self, offset: int, data: bytes) -> None:
        """Write into unused memory. Raises OptprobeError if that memory, or what follows it, is in use."""
        assert self.memory is not None
        while self._place.seen < min(offset + len(data) + _LAST, self._place.size):
            piece = self._read(self._place.seen, min(_PIECE, self._place.size - self._place.seen))
            if piece.strip(bytes([self.fill])):
                at = self._place.start + self._place.seen
                raise OptprobeError(f"kernel memory at {at:#x} that should be unused holds something")
            self._place.seen += len(piece)
        self.memory.write(self._place.start + offset, data)

    def _fill(self, half: int, used: int) -> None:
        """Fill a half. used: the bytes written there; 0 if unknown."""
        at = self._at(half)
        if used:
            self._write(at, bytes([self.fill]) * used)
        else:
            self._wipe(at, at + self._place.size // 2)

    def _clear_all(self) -> None:
        """Clear both halves, the headers last: a header means that a journal was begun."""
        half = self._place.size // 2
        for start, end in ((journal_format.HEADER, half), (half + journal_format.HEADER, self._place.size)):
            self._wipe(start, end)
        for start in (0, half):
            self._wipe(start, start + journal_format.HEADER)
        self._place.seen = self._place.size

    def _wipe(self, start: int, end: int) -> None:
        """Write fill over everything else in this range."""
        assert self.memory is not None
        used = self._read(start, end - start).rstrip(bytes([self.fill]))
        self.memory.write(self._place.start + start, bytes([self.fill]) * len(used))
