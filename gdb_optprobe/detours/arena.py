"""Guest memory for detours: ranges of code, and ranges of data that no code is run from (W^X).

    code ranges (executable, read-only to the guest)      data ranges (writable, not executable)
    ┌────────┬────────┬────────┬───────────────┐          ┌─┬─┬─┬─┬─┬──────────────────────────┐
    │ detour │ detour │ boost  │ free: `fill`  │          │c│c│c│c│c│ free                     │
    └────────┴────────┴────────┴───────────────┘          └─┴─┴─┴─┴─┴──────────────────────────┘
     steps of 8 bytes, or of the                           8-byte steps, lowest first: counters lie
     instructions' alignment                               side by side and are read in one packet
Pads (stop_pad.py) have pages of the code to themselves.
The ranges come from the guest's arch, or from `set optprobe arena`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from gdb_optprobe.detours import stop_pad
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item, Journal, TableKind
from gdb_optprobe.detours.patch import Patch, TextChanged
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import ANYWHERE, Alignment, Slot, Slots
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.isa.record import Isa

CODE_STEP = 8
DATA_STEP = 8
RESERVE_CODE, RESERVE_DATA = 8192, 1024
"""Bytes of the reserve for a session that adopts this arena: the trap handler and its table; counts of active calls."""

LEAST_IN_BOUNDS = 1 << 22
"""Bytes of code, lent or not, that are enough near a module."""
SPARE = 512
"""Bytes of code that a call of the kernel's allocator may take."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """The memory of an arena, as (start, end) pairs.

    fill: the byte that free code memory holds; None if it may hold anything. Data memory may hold anything.
    """

    code: tuple[Range, ...]
    data: tuple[Range, ...]
    fill: int | None = None


@dataclass(frozen=True, slots=True)
class Lack:
    """Data, or code, that found no room: `size` bytes inside [low, high).

    is_for_journal: the journal is to have a part of it.
    """

    size: int
    low: int
    high: int
    is_code: bool = False
    is_for_journal: bool = False


class Lender(Protocol):
    """Gets an arena more data, and more code, from the guest's kernel, for which the guest runs."""

    def avoids(self, may_stop_at: Callable[[int], bool]) -> None:
        """Call the kernel nowhere where the guest may stop for another reason."""

    @property
    def lent(self) -> int:
        """Return how many bytes are lent now."""

    @property
    def left(self) -> int:
        """Return how many bytes more can be lent in all, as far as is known."""

    def why_not(self) -> str:
        """Return why nothing can be lent, in words; "" where something can."""

    def most(self, low: int, high: int) -> int:
        """Return how many bytes more can be lent in one piece inside [low, high), as far as is known."""

    def max_memory_for(self, size: int) -> int:
        """Return the `max-memory` with which so many bytes more could be lent in one piece; 0 where none is enough."""

    @property
    def journal_lack(self) -> Lack | None:
        """Return what to lend for a larger journal; None where there is none to be had, or that was tried."""

    def code_place(self, low: int, high: int) -> Range:
        """Return where inside [low, high) more code would be lent in one piece, as far as is known; (0, 0) for nowhere.
        """

    @property
    def code_range(self) -> Range:
        """Return where lent code is, but that near modules; (0, 0) where none is ever lent."""

    def lend(self, lack: Lack, more: int) -> None:
        """Make room for what found none, and `more` bytes besides. Raises OptprobeError with nothing lent."""

    def give_back(self) -> None:
        """Give all back, if nothing uses it. Raises OptprobeError where some stays lent."""


class Arena:
    """All memory for detours of one guest.

    alignment:  of instructions; if they may begin anywhere, detours begin at multiples of 8 nevertheless.
    probe_reads: code that detours call (probes/probe_read.py), each within reach of some of them.
    journal:    lists what is in the arena, for another GDB.
    earlier:    what an earlier GDB's journal said is in the arena; None if nothing was adopted.
    lender:     lends more memory; None where none can be had.
    own:        how many of the ranges of code are not lent; None for all.
    unit:       of addresses and sizes of new code; an earlier GDB's has those of the alignment.
    wipes:      how often code was wiped: what was read before may be free now, and hold something else.
    """

    def __init__(
        self,
        ranges: Ranges,
        alignment: int = 1,
        journal: Journal | None = None,
        own: int | None = None,
        unit: int = 1,
    ) -> None:
        self.ranges = ranges
        self.journal = journal or Journal()
        self.earlier: ArenaContents | None = None
        self.lender: Lender | None = None
        self._cells: set[Slot] = set()
        self._granularity = alignment if alignment > 1 else CODE_STEP
        self._step = max(self._granularity, unit)
        self.code = _Pool([self._code_slots(start, end) for start, end in ranges.code], is_code=True)
        self._own = own if own is not None else len(ranges.code)
        self._spare: Slot | None = None
        self._is_leaving = False
        self.data = _Pool([Slots(start, end, DATA_STEP) for start, end in ranges.data])
        self.probe_reads: list[tuple[Slot, Detour]] = []
        self.pads = _Pool([])
        self._pages: list[Slot] = []
        self._tickets: Slot | None = None
        self._retired: dict[Slot, Detour] = {}
        self._dispatchers: set[Slot] = set()
        self._called: set[Slot] = set()
        # Counts the retirements. Data allocated after one cannot be used by code that was retired before.
        self._retirements = 0
        self._retired_as: dict[Slot, int] = {}
        self._allocated_after: dict[int, int] = {}
        self._overwritten: dict[Slot, bytes] = {}
        self.wipes = 0
        self._references: dict[int, frozenset[int]] = {}
        self._tables: dict[TableKind, Slot] = {}
        self._adopted_tables: set[Slot] = set()
        self._reserve: tuple[Slot, Slot] | None = None
        self._reserve_near: Range | None = None

    def allocate_code(self, size: int, near: int, reach: int, aligned: Alignment = ANYWHERE) -> Slot:
        """Allocate `size` bytes for code that a branch at `near` reaches and that can branch back.

        Raises Refused: ARENA_FULL, ARENA_OUT_OF_REACH.
        """
        low, high = self._code_range(near, reach, size)
        return self.code.allocate(size, low, high, near, aligned)

    def allocate_pad(self, near: int, reach: int) -> Slot:
        """Allocate memory for a stop pad of a probe at `near`. Raises Refused, as `allocate_code`."""
        low, high = self._code_range(near, reach, stop_pad.PAGE)
        if all(slots.find(stop_pad.SIZE, low, high) is None for slots in self.pads.slots):
            # The lowest free page, so that later slots stay in reach.
            self._add_pad_page(self.code.allocate(stop_pad.PAGE, low, high, near, Alignment(stop_pad.PAGE)))
        return self.pads.allocate(stop_pad.SIZE, low, high, near)

    def tickets(self, near: int, reach: int) -> Slot:
        """Return the word that counts the hits that stop in programs; it is there as long as pads. Raises Refused."""
        if self._tickets is None:
            self._tickets = self.allocate_data(8, near, reach)
        return self._tickets

    def counts_that_fit(self, code: int, data: int) -> int:
        """Return how many counts, each of so many bytes of code and data, one block of each has room for."""
        return min(self.code.largest // code, self.data.largest // data)

    def lacks_counts(self, count: int, code: int, data: int, text: Range, reach: int, data_reach: int) -> bool:
        """Return whether `allocate_counts` has no room; the lack is noted."""
        first, last = text
        (low, _), (_, high) = self._code_range(last, reach, code), self._code_range(first, reach, code)
        try:
            self.code.find(count * code, low, high, first)
            self.check_data(count * data, first, data_reach)
        except Refused:
            return True
        return False

    def allocate_counts(
        self, count: int, code: int, data: int, text: Range, reach: int, data_reach: int
    ) -> tuple[Slot, Slot]:
        """Allocate code for `count` detours of `code` bytes within reach of all of `text`, and data of `data` for each.

        The journal lists neither (`Item.COUNTS` does). The code memory's content is not checked.
        Raises Refused where no piece has room for all.
        """
        first, last = text
        (low, _), (_, high) = self._code_range(last, reach, code), self._code_range(first, reach, code)
        block = self.code.allocate(count * code, low, high, first)
        try:
            (low, _), (_, high) = (data_range(at, data_reach, count * data) for at in (block.end, block.address))
            counters = self.data.allocate(count * data, low, high, first)
        except BaseException:
            self.code.free(block)
            raise
        self._allocated_after[counters.address] = self._retirements
        return block, counters

    def free_code(self, near: int, reach: int, aligned: Alignment = ANYWHERE) -> int:
        """Return the start of free memory for code that a branch at `near` reaches; nothing is allocated.

        Raises Refused: ARENA_FULL, ARENA_OUT_OF_REACH.
        """
        return self._find_code(self._step, near, reach, aligned)

    def free_code_of_all(self, first: int, last: int, reach: int) -> int | None:
        """Return what `free_code` does for a branch at `first`, at `last` and at all between; None where they differ.

        Raises Refused.
        """
        # `free_code` finds the lowest piece in reach. One that both find is in reach of all between, and is the lowest.
        found = self.free_code(first, reach)
        return found if last - first < reach and self.free_code(last, reach) == found else None

    def allocate_data(
        self, size: int, near: int | None = None, reach: int = 1 << 64, aligned: Alignment = ANYWHERE
    ) -> Slot:
        """Allocate `size` bytes of data; `near` and `reach` if code addresses it by distance. Raises Refused."""
        if near is None:
            slot = self.data.allocate(size, 0, 1 << 64, 0, aligned)
        else:
            slot = self.data.allocate(size, *data_range(near, reach, size), near, aligned)
        self._allocated_after[slot.address] = self._retirements
        self.journal.put(Item.DATA, slot.address, slot.size)
        return slot

    @contextmanager
    def new_data(
        self, size: int, near: int | None = None, reach: int = 1 << 64, aligned: Alignment = ANYWHERE
    ) -> Iterator[Slot]:
        """Allocate data as `allocate_data`, and free it again where the block raises: nothing has used it."""
        slot = self.allocate_data(size, near, reach, aligned)
        try:
            yield slot
        except BaseException:
            self.free_data(slot)
            raise

    def free_data(self, slot: Slot) -> None:
        """Free data that `allocate_data` has allocated: nothing has used it."""
        self.data.free(slot)
        self._allocated_after.pop(slot.address, None)
        self.journal.drop(Item.DATA, slot.address)

    def allocate_table(
        self, table: TableKind, size: int, near: int, reach: int, aligned: Alignment = ANYWHERE
    ) -> Slot:
        """Allocate data for the current table of a kind. Raises Refused."""
        slot = self.allocate_data(size, near, reach, aligned)
        self.journal.put(Item.TABLE, table, slot.address)
        return slot

    def earlier_table(self, table: TableKind) -> Slot | None:
        """Return the memory of an earlier session's table that is not adopted yet; None where there is none."""
        return self._tables.get(table)

    def adopt_table(self, table: TableKind, fits: Callable[[int], bool]) -> Slot | None:
        """Take over the memory of an earlier session's table, once, if its size `fits`; its content is not checked."""
        slot = self._tables.get(table)
        if slot is None or not fits(slot.size):
            return None
        self._adopted_tables.add(self._tables.pop(table))
        return slot

    def release_table(self, table: TableKind, slot: Slot) -> None:
        """Release the table at `slot`: only retired code may still use it. There may be a newer table."""
        if self.journal.state.get(f"{Item.TABLE} {table:x}") == slot.address:
            self.journal.drop(Item.TABLE, table)
        self.data.release(slot)

    def reserve(self, near: int, reach: int) -> None:
        """Hold back memory that another session needs to adopt this arena; the journal does not list it.

        What this session adopts may need that very memory: then `refill_reserve` takes it when some is free again.
        Raises Refused.
        """
        if self.journal.memory is None:
            return  # no other session can adopt anything
        if self.earlier is None:
            self.check_reserve(near, reach)
        self._reserve_near = near, reach
        self.refill_reserve()

    def refill_reserve(self) -> None:
        """Allocate the reserve again after `release_reserve`, if there is room."""
        if self._is_leaving:
            return
        if self._has_bounds:
            self.keep_spare()
        if self._reserve is not None or self._reserve_near is None:
            return
        near, reach = self._reserve_near
        try:
            self.check_reserve(near, reach)
        except Refused:
            return
        code = self.code.allocate(RESERVE_CODE, *self._code_range(near, reach, RESERVE_CODE), near)
        self._reserve = code, self.data.allocate(RESERVE_DATA, *data_range(near, reach, RESERVE_DATA), near)

    def check_reserve(self, near: int, reach: int, data: int = RESERVE_DATA) -> None:
        """Check that there is room for the code of a reserve and so many bytes of data. Raises Refused."""
        if self._reserve is None:
            self.code.find(RESERVE_CODE, *self._code_range(near, reach, RESERVE_CODE), near)
            if data:
                self.check_data(data, near, reach)

    def release_reserve(self) -> None:
        """Free the memory of the reserve for any use, and what is held back for calls."""
        self.free_spare()
        if self._reserve is not None:
            (code, data), self._reserve = self._reserve, None
            self.code.free(code)
            self.data.free(data)

    def check_code(self, size: int, near: int, reach: int) -> None:
        """Raise Refused if `allocate_code` would and the kernel lends no more; nothing is allocated."""
        self._find_code(size, near, reach)

    def _find_code(self, size: int, near: int, reach: int, aligned: Alignment = ANYWHERE) -> int:
        """Return where code of `size` bytes would be, in memory that the kernel would lend where there is no other."""
        low, high = self._code_range(near, reach, size)
        try:
            return self.code.find(size, low, high, near, aligned)[1]
        except Refused:
            start, end = self.lender.code_place(low, high) if self.lender is not None else (0, 0)
            if end - start < size:
                raise
            return start

    def check_data(self, size: int, near: int, reach: int, aligned: Alignment = ANYWHERE) -> int:
        """Return where `allocate_data` would; nothing is allocated. Raises Refused as that does."""
        return self.data.find(size, *data_range(near, reach, size), near, aligned)[1]

    def check_room(self, size: int, near: int, reach: int, aligned: Alignment = ANYWHERE) -> int:
        """Return where data of `size` bytes would be, in memory that the kernel would lend where there is no other.

        Raises Refused where there is none.
        """
        try:
            return self.check_data(size, near, reach, aligned)
        except Refused as refused:
            low, high = data_range(near, reach, size)
            if refused.reason.code != Refusal.ARENA_FULL.code or self.lender is None:
                raise
            if size > self.lender.most(low, high):
                raise
            return aligned.down(self.ranges.data[0][0] - size)

    # memory that is lent ---------------------------------------------------------------------------------------------

    def allocate_cell(self, size: int) -> Slot:
        """Allocate data for the address of a block that is lent; never in such a block. Raises Refused."""
        (first, *_) = self.data.slots
        at = first.find(size)
        slot = first.claim(at, size) if at is not None else None
        if slot is None:
            raise Refused(Refusal.ARENA_FULL.because(used=self.data.used, size=self.data.size))
        self._allocated_after[slot.address] = self._retirements
        self._cells.add(slot)
        self.journal.put(Item.DATA, slot.address, slot.size)
        return slot

    def release_cell(self, slot: Slot) -> None:
        """Release what `allocate_cell` has allocated: code that was retired may still write there."""
        self._cells.discard(slot)
        self.data.release(slot)

    def may_use(self, slot: Slot) -> bool:
        """Return whether retired code may write there."""
        return self._is_referenced(slot.address, self.code.dirty)

    @property
    def lacks(self) -> Sequence[Lack]:
        """Return what found no room since `forget_lacks`."""
        return [lack for lack in (self.code.lacked, self.data.lacked) if lack is not None]

    def forget_lacks(self) -> None:
        self.code.lacked = self.data.lacked = None

    def add_code(self, start: int, end: int) -> None:
        """Hand out code of [start, end), too."""
        self.ranges = replace(self.ranges, code=(*self.ranges.code, (start, end)))
        self.code.slots.append(self._code_slots(start, end))

    @property
    def code_bounds(self) -> Range:
        """Return a range with all code but that near modules, and with none of the kernel's, also if more is lent."""
        own = self.ranges.code[: self._own]
        lent = self.lender.code_range if self.lender is not None else (0, 0)
        all_of_it = [*own, *([lent] if lent[1] else [])]
        return min(start for start, _ in all_of_it), max(end for _, end in all_of_it)

    def trampolines_near(self, near: int, reach: int) -> int:
        """Return near which address the trampoline of a function at `near` is to be, so that it is in `code_bounds`.

        Elsewhere the entries of other functions would take its address for the guest's. A return leads anywhere.
        """
        start, end = self._code_range(near, reach, 0)
        bounds = self.code_bounds
        inside = not self._has_bounds or (bounds[0] <= start and end <= bounds[1])
        return near if inside else bounds[0]

    def reaches(self, slot: Slot, near: int, reach: int) -> bool:
        """Return whether code for a branch at `near` may lead to `slot`."""
        low, high = self._code_range(near, reach, slot.size)
        return low <= slot.address and slot.end <= high

    @property
    def _has_bounds(self) -> bool:
        return self.lender is not None and bool(self.lender.code_range[1])

    def _code_range(self, near: int, reach: int, size: int) -> Range:
        """Return where code for `near` may be: in `code_bounds`, unless too little of that is in reach."""
        low, high = _code_range(near, reach, size)
        if not self._has_bounds:
            return low, high
        start, end = max(low, self.code_bounds[0]), min(high, self.code_bounds[1])
        return (start, end) if end - start >= LEAST_IN_BOUNDS else (low, high)

    def keep_spare(self) -> None:
        """Hold back code for calls of the kernel, by which more is lent, in what is not lent itself."""
        if self._spare is None and (at := self.code.slots[0].find(SPARE)) is not None:
            self._spare = self.code.slots[0].claim(at, SPARE)

    @contextmanager
    def spending_spare(self) -> Iterator[None]:
        """Let a call have what is held back, and hold it back again."""
        had = self._spare is not None
        self.free_spare()
        try:
            yield
        finally:
            if had:
                self.keep_spare()

    @contextmanager
    def without_reserve(self) -> Iterator[None]:
        """Hold nothing back: lent memory is given back, for which the guest runs."""
        self._is_leaving = True
        self.release_reserve()
        try:
            yield
        finally:
            self._is_leaving = False

    def free_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self.code.free(spare)

    def add_data(self, start: int, end: int) -> None:
        """Hand out data of [start, end), too."""
        self.ranges = replace(self.ranges, data=(*self.ranges.data, (start, end)))
        self.data.slots.append(Slots(start, end, DATA_STEP))

    @property
    def is_more_unused(self) -> bool:
        """Return whether nothing is allocated in memory that was added."""
        more = (*self.data.slots[1:], *self.code.slots[self._own :])
        return not any(slots.used or slots.dirty for slots in more)

    def drop_more(self) -> None:
        """Hand out no memory that was added; none is in use."""
        assert self.is_more_unused
        self.ranges = replace(self.ranges, code=self.ranges.code[: self._own], data=self.ranges.data[:1])
        del self.data.slots[1:]
        del self.code.slots[self._own :]

    def code_patch(self, slot: Slot, data: bytes, memory: Memory, padding: bytes) -> Patch:
        """Return the patch that fills `slot` with `data` and `padding`.

        Raises TextChanged if the slot holds foreign bytes; it is discarded then.
        """
        new = data + padding * ((slot.size - len(data)) // len(padding))
        old = memory.read(slot.address, slot.size)
        if self.ranges.fill is not None and old != bytes([self.ranges.fill]) * slot.size:
            (self.pads if self.pads.has(slot) else self.code).discard(slot)
            raise TextChanged(slot.address, bytes([self.ranges.fill]) * slot.size, old)
        self._overwritten[slot] = old
        return Patch(slot.address, old, new)

    def code_patches(
        self, slots: Sequence[Slot], codes: Sequence[bytes], memory: Memory, padding: bytes
    ) -> list[Patch]:
        """Return the patches that fill `slots` with `codes` and padding. Raises TextChanged where one does not fit."""
        places = sorted((slot.address, slot.end) for slot in slots)
        texts = runs.held(places, memory)
        held = {start: text for (start, _), text in zip(places, texts, strict=True)}
        fill = self.ranges.fill
        for slot in slots:
            if fill is not None and held[slot.address] != bytes([fill]) * slot.size:
                raise TextChanged(slot.address, bytes([fill]) * slot.size, held[slot.address])
        found = list[Patch]()
        for slot, code in zip(slots, codes, strict=True):
            self._overwritten[slot] = held[slot.address]
            new = code + padding * ((slot.size - len(code)) // len(padding))
            found.append(Patch(slot.address, held[slot.address], new))
        return found

    def _code_slots(self, start: int, end: int) -> Slots:
        return Slots(start, end, self._granularity, self._step)

    def rounded(self, size: int) -> int:
        """Return the bytes of a slot for so many bytes of code."""
        return -(-size // self._step) * self._step

    def free_counts(self, code: Slot, data: Slot) -> None:
        """Free what `allocate_counts` returned: nothing was led to it."""
        self.code.free(code)
        self.data.free(data)
        self._allocated_after.pop(data.address, None)

    def carve_count(self, code: tuple[Slot, Slot], data: tuple[Slot, Slot]) -> None:
        """Make a count of a block a detour and a counter of its own. code, data: a piece that is used, and the part."""
        for pool, (whole, part) in ((self.code, code), (self.data, data)):
            pool.carve(whole, part)
        after = self._allocated_after.pop(data[0].address, self._retirements)
        for start in {data[0].address, data[1].address, data[1].end} - {data[0].end}:
            self._allocated_after[start] = after
        if self.ranges.fill is None and (held := self._overwritten.pop(code[0], None)) is not None:
            cuts = [code[0].address, code[1].address, code[1].end, code[0].end]
            for start, end in pairwise(cuts):
                if start < end:
                    self._overwritten[Slot(start, end - start)] = held[start - cuts[0] : end - cuts[0]]
        self.journal.put(Item.DATA, data[1].address, data[1].size)

    def claim_block(self, code: Slot, read: Callable[[int, int], bytes]) -> bool:
        """Return whether `code` holds nothing of others. read: memory as it is in this stop."""
        held = read(code.address, code.size)
        if self.ranges.fill is None:
            self._overwritten[code] = held
            return True
        return held == bytes([self.ranges.fill]) * len(held)

    def write_block(self, address: int, data: bytes, step: int, memory: Memory) -> None:
        """Write detours of `step` bytes each at `address`.

        In pieces that hold whole detours: should GDB be killed, each is written or is not.
        """
        piece = max(1, runs.LONGEST // step) * step
        for at in range(0, len(data), piece):
            memory.write(address + at, data[at : at + piece])

    def check_blocks(self, blocks: Mapping[int, tuple[bytes, int]], memory: Memory) -> None:
        """Read back what `write_block` wrote: data and step, by address. Raises TextChanged."""
        spans = [(address, address + len(blocks[address][0])) for address in sorted(blocks)]
        for (address, _), found in zip(spans, runs.read_spans(spans, memory), strict=True):
            data, step = blocks[address]
            for at in range(0, len(data), step) if found != data else ():
                if found[at : at + step] != data[at : at + step]:
                    raise TextChanged(address + at, data[at : at + step], found[at : at + step])

    def readopt(self, code: Slot) -> None:
        """Use retired code as it is: something will lead to it again."""
        self.code.reuse(code)
        self._called.discard(code)
        self._dispatchers.discard(code)
        self._retired.pop(code, None)
        self._retired_as.pop(code, None)

    def wipe(self, slots: Iterable[Slot], memory: Memory) -> None:
        """Restore the bytes of `slots`, which no vCPU can be inside: fill that traps, or what was overwritten."""
        self.journal.flush_new()  # of a member that has left its block, the block would miss its code
        self.wipes += 1
        fill = self.ranges.fill
        runs: list[tuple[int, bytearray]] = []
        for slot in sorted(slots):
            for item in (Item.CODE, Item.BLOCK):
                self.journal.drop(item, slot.address)
            self._forget_references(slot)
            before = self._overwritten.pop(slot, None if fill is None else bytes([fill]) * slot.size)
            if before is None:
                continue
            if runs and runs[-1][0] + len(runs[-1][1]) == slot.address:
                runs[-1][1].extend(before)
            else:
                runs.append((slot.address, bytearray(before)))
        for address, data in runs:
            memory.write(address, bytes(data))

    def set_references(self, slot: Slot, references: Iterable[int]) -> None:
        """Record the addresses of the data, routines and pads that the code in `slot` may write to, call or go to.

        Code without a record may reference anything.
        """
        self._references[slot.address] = frozenset(references)
        distances = sorted(address - slot.address for address in self._references[slot.address])
        self.journal.put(Item.REFERENCES, slot.address, distances)

    def _forget_references(self, slot: Slot) -> None:
        if self._references.pop(slot.address, None) is not None:
            self.journal.drop(Item.REFERENCES, slot.address)

    def reuse(self, fits: Callable[[Detour], bool]) -> tuple[Slot, Detour] | None:
        """Take back retired code that `fits`: something will lead to it again; None if there is none."""
        found = next((slot for slot, detour in self._retired.items() if fits(detour)), None)
        if found is None:
            return None
        detour = self._retired[found]
        self.readopt(found)
        return found, detour

    def retire(self, slot: Slot, detour: Detour, dispatches: bool = False, called: bool = False) -> None:
        """Retire `detour` in `slot`: nothing leads there any more, but a saved PC may be inside.

        dispatches: it may also lead to any other retired code, by a table that was released too.
        called: other retired code may call it.
        """
        self.code.release(slot)
        if called:
            self._called.add(slot)
        if dispatches:
            self._dispatchers.add(slot)
        self._retired[slot] = detour
        self._retirements += 1
        self._retired_as[slot] = self._retirements

    def retire_probe_read(self) -> None:
        """Retire probe_reads if they are the only code left: nothing calls them any more."""
        if self.probe_reads and self.code.holds_only({slot for slot, _ in self.probe_reads}):
            found, self.probe_reads = self.probe_reads, []
            for slot, detour in found:
                self.retire(slot, detour)

    @property
    def retired(self) -> tuple[Detour, ...]:
        """Return the detours that nothing leads to, but that a saved PC may be inside."""
        return tuple(self._retired.values())

    @property
    def has_retired_dispatchers(self) -> bool:
        """Return whether there is retired code that leads to other code by a table."""
        return bool(self._dispatchers)

    def dirty(self) -> tuple[Slot, ...]:
        """Return the released code that a saved PC may be inside, pads included."""
        return (*self.code.dirty, *self.pads.dirty)

    def reclaim(self, busy: Callable[[Sequence[Range]], Collection[Range]]) -> tuple[Slot, ...]:
        """Free every released slot that `busy` does not return; return what is free now.

        Released data is free when all code that may write there is: what was retired while the data was in use, unless
        its references are recorded. The same holds for pads, where code may stop, and for what it may call. From a pad
        execution may continue anywhere, as from a dispatcher.
        """
        waiting = self.dirty()
        if not waiting:
            self.reclaim_data()
            return ()
        inside = set(busy([(slot.address, slot.end) for slot in (*self.code.dirty, *self._pages)]))
        if any((slot.address, slot.end) in inside for slot in (*self._pages, *self._dispatchers)):
            return ()
        empty = self._empty(inside)
        self.code.reclaim(empty)
        self._dispatchers.difference_update(empty)
        self._called.difference_update(empty)
        for slot in empty:
            self._retired.pop(slot, None)
            self._retired_as.pop(slot, None)
            self._forget_references(slot)
        self.reclaim_data()
        return (*empty, *self._reclaim_pads())

    def _empty(self, inside: Collection[Range]) -> tuple[Slot, ...]:
        """Return the released code that no saved PC is in and that no caller can reach."""
        dirty = self.code.dirty
        callers = [slot for slot in dirty if (slot.address, slot.end) in inside and slot not in self._called]
        called = {slot for slot in self._called if self._is_referenced(slot.address, callers)}
        return tuple(slot for slot in dirty if (slot.address, slot.end) not in inside and slot not in called)

    def _is_referenced(self, address: int, by: Iterable[Slot]) -> bool:
        """Return whether some of this code may reference what begins at `address`."""
        return any(address in self._references.get(slot.address, (address,)) for slot in by)

    @property
    def pad_pages(self) -> tuple[Range, ...]:
        """Return the pages of code that hold pads."""
        return tuple((page.address, page.end) for page in self._pages)

    def adopt(
        self, earlier: ArenaContents, memory: Memory, isa: Isa, handlers: Collection[int] = ()
    ) -> None:
        """Adopt what an earlier session's journal lists: code that saved PCs may be inside, data still in use.

        handlers: the kernel's; code before them may lead, by a table, to other code of the earlier session.
        """
        self.earlier = earlier
        for slot, detour in earlier.detours.items():
            if self.code.claim(slot.address, slot.size) is not None:
                if slot.address in earlier.events:
                    continue  # the kernel may call it at any time, whatever the stacks say
                self.retire(slot, detour, detour.head in handlers)
                if detour.head in (slot.address, *handlers):
                    self._called.add(slot)
        unused = bytes([self.ranges.fill or 0]) * stop_pad.SIZE
        for page in earlier.pads:
            if self.code.claim(page.address, page.size) is not None:
                self._add_pad_page(page)
                held = memory.read(page.address, page.size)
                for at in range(0, page.size, stop_pad.SIZE):
                    pad = self.pads.claim(page.address + at, stop_pad.SIZE)
                    if pad is not None and held[at : at + stop_pad.SIZE] == unused:
                        self.pads.free(pad)
                    elif pad is not None:
                        self.pads.release(pad)
        for block in earlier.blocks:
            for start, end in block.runs():
                code, _ = block.piece(start, end)
                if self.code.claim(code.address, code.size) is not None:
                    self.retire(code, block.left_code(start, end, memory.read(code.address, code.size), isa))
        cells = {one.cell for one in earlier.lent}
        for slot in earlier.data:
            claimed = self.data.claim(slot.address, slot.size)
            if claimed is not None and claimed.address in cells:
                self._cells.add(claimed)
        self._references |= earlier.references
        self._tables |= earlier.tables

    def release_data(self, kept: Collection[Slot] = ()) -> None:
        """Release the adopted data except `kept` and tables; it is freed with the code that may still write there."""
        for table in self._tables:
            self.journal.drop(Item.TABLE, table)
        self._tables.clear()
        adopted = self.earlier.data if self.earlier is not None else ()
        stay = {*kept, *self._adopted_tables, *self._cells}
        for slots in self.data.slots:
            for slot in slots.used:
                if slot in adopted and slot not in stay:
                    slots.release(slot)

    def _add_pad_page(self, page: Slot) -> None:
        self._pages.append(page)
        self.pads.slots.append(Slots(page.address, page.end, stop_pad.SIZE))
        self.journal.put(Item.PADS, page.address, page.size)

    def reclaim_data(self) -> None:
        """Free the released data that no retired code may write to."""
        # The last retirement of code that may reference anything; of code that may reference an address.
        unknown, known = 0, dict[int, int]()
        for slot in self.code.dirty:
            left_as = self._retired_as.get(slot, self._retirements + 1)
            if (references := self._references.get(slot.address)) is None:
                unknown = max(unknown, left_as)
                continue
            for address in references:
                known[address] = max(known.get(address, 0), left_as)

        def is_used(data: Slot) -> bool:
            return max(unknown, known.get(data.address, 0)) > self._allocated_after.get(data.address, 0)

        empty = [slot for slot in self.data.dirty if not is_used(slot)]
        for slot in empty:
            # A call table's records go with its memory.
            for item in (Item.DATA, Item.POINT, Item.CALLS, Item.HITS):
                self.journal.drop(item, slot.address)
            self._allocated_after.pop(slot.address, None)
        self.data.reclaim(empty)

    def _reclaim_pads(self) -> tuple[Slot, ...]:
        """Free the released pads that no code may go to; a page without pads becomes code memory again."""
        freed = tuple(slot for slot in self.pads.dirty if not self._is_referenced(slot.address, self.code.dirty))
        self.pads.reclaim(freed)
        empty = [slots for slots in self.pads.slots if not (slots.used or slots.dirty)]
        for slots in empty:
            self.pads.slots.remove(slots)
            page = next(page for page in self._pages if page.address == slots.start)
            self._pages.remove(page)
            self.code.free(page)
            self.journal.drop(Item.PADS, page.address)
        if self._tickets is not None and not self._pages:
            self.data.free(self._tickets)
            self._allocated_after.pop(self._tickets.address, None)
            self.journal.drop(Item.DATA, self._tickets.address)
            self._tickets = None
        return freed


class _Pool:
    """Several ranges of memory as one."""

    def __init__(self, slots: Sequence[Slots], is_code: bool = False) -> None:
        self.slots = list(slots)
        self._is_code = is_code
        self.lacked: Lack | None = None  # the largest piece that found no room since this was None

    @property
    def size(self) -> int:
        return sum(slots.size for slots in self.slots)

    @property
    def used(self) -> int:
        """Return how many bytes are not free, discarded ones included."""
        return self.size - sum(slots.free_bytes for slots in self.slots)

    @property
    def largest(self) -> int:
        """Return the bytes of the largest free piece."""
        return max((slots.largest for slots in self.slots), default=0)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is allocated in it."""
        return not any(slots.used or slots.dirty for slots in self.slots)

    def holds_only(self, those: Collection[Slot]) -> bool:
        """Return whether `those` are all that is allocated in it."""
        return all(each in those for slots in self.slots for each in (*slots.used, *slots.dirty))

    @property
    def dirty(self) -> tuple[Slot, ...]:
        return tuple(slot for slots in self.slots for slot in slots.dirty)

    def has(self, slot: Slot) -> bool:
        return any(slots.start <= slot.address < slots.end for slots in self.slots)

    def allocate(self, size: int, low: int, high: int, near: int, aligned: Alignment = ANYWHERE) -> Slot:
        slots, at = self.find(size, low, high, near, aligned)
        slot = slots.claim(at, slots.rounded(size))
        assert slot is not None, "what was found is free"
        return slot

    def find(
        self, size: int, low: int, high: int, near: int, aligned: Alignment = ANYWHERE
    ) -> tuple[Slots, int]:
        """Return where a piece of `size` bytes inside [low, high) is free, the lowest. Raises Refused."""
        low, high = max(low, 0), min(high, 1 << 64)
        for way in aligned.ways:
            for slots in self.slots:
                if (at := slots.find(size, low, high, way)) is not None:
                    return slots, at
        if not self.slots:
            raise Refused(Refusal.ARENA_MISSING.because(why="none was found and none was given"))
        is_near = any(slots.start < high and low < slots.end for slots in self.slots)
        wanted = size + aligned.ways[-1].multiple - 1
        if (is_near or self._is_code) and (self.lacked is None or wanted > self.lacked.size):
            self.lacked = Lack(wanted, low, high, self._is_code)
        if is_near:
            raise Refused(Refusal.ARENA_FULL.because(used=self.used, size=self.size))
        raise Refused(Refusal.ARENA_OUT_OF_REACH.because(address=f"{near:#x}"))

    def claim(self, address: int, size: int) -> Slot | None:
        """Allocate the piece at `address` that an earlier session uses; None if it is not a free piece of the arena."""
        return next((found for s in self.slots if (found := s.claim(address, size)) is not None), None)

    def carve(self, whole: Slot, part: Slot) -> None:
        self._of(whole.address).carve(whole, part)

    def is_used(self, slot: Slot) -> bool:
        return any(slots.is_used(slot) for slots in self.slots)

    def release(self, slot: Slot) -> None:
        self._of(slot.address).release(slot)

    def reuse(self, slot: Slot) -> None:
        self._of(slot.address).reuse(slot)

    def free(self, slot: Slot) -> None:
        self._of(slot.address).free(slot)

    def discard(self, slot: Slot) -> None:
        self._of(slot.address).discard(slot)

    def reclaim(self, empty: Iterable[Slot]) -> None:
        for slot in empty:
            self._of(slot.address).reclaim([slot])

    def _of(self, address: int) -> Slots:
        return next(slots for slots in self.slots if slots.start <= address < slots.end)


def _code_range(near: int, reach: int, size: int) -> Range:
    """Return where `size` bytes of code may be that a branch at `near` leads to."""
    # The branch counts from its own end, and the branch back starts at the far end of the detour.
    margin = size + 256
    return near - reach + margin, near + reach - margin


def data_range(near: int, reach: int, size: int) -> Range:
    """Return where `size` bytes of data may be that code at `near` addresses by distance."""
    return near - reach + size + 4096, near + reach - size - 4096
