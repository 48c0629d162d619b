"""Guest memory for detours: ranges of code, and ranges of data that no code is run from (W^X).

    code ranges (executable, read-only to the guest)      data ranges (writable, not executable)
    ┌────────┬────────┬────────┬───────────────┐          ┌─┬─┬─┬─┬─┬──────────────────────────┐
    │ detour │ detour │ boost  │ free: `fill`  │          │c│c│c│c│c│ free                     │
    └────────┴────────┴────────┴───────────────┘          └─┴─┴─┴─┴─┴──────────────────────────┘
     steps of 8 bytes, or of the                           8-byte steps, lowest first: counters lie
     instructions' alignment                               side by side and are read in one packet
Pads (pads.py) have pages of the code to themselves.
Where the ranges come from is not known here: the kernel's arch has found them, or `set optprobe arena` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours import pads
from gdb_optprobe.detours.journal import Item, Journal, TableKind
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.left import Left
from gdb_optprobe.detours.patch import Patch, TextChanged
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import Slot, Slots
from gdb_optprobe.guest.machine import Memory

CODE_STEP = 8
DATA_STEP = 8
ASIDE_CODE, ASIDE_DATA = 8192, 1024
"""Bytes for what a session puts in place of another one's: all that traps come to; counts of calls under way."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """What an arena is made of, as (start, end) pairs.

    fill: the byte that free code memory holds, None where it may hold anything. Data memory holds anything too.
    """

    code: tuple[Range, ...]
    data: tuple[Range, ...]
    fill: int | None = None


class Arena:
    """All memory for detours of one guest.

    alignment: of instructions; where they may stand anywhere, detours begin at multiples of 8 nevertheless.
    resident:  code that detours call (probes/probe_read.py).
    journal:   what another GDB will know of it. left_before: what it knew of an earlier one's.
    """

    def __init__(self, ranges: Ranges, alignment: int = 1, journal: Journal | None = None) -> None:
        self.ranges = ranges
        self.journal = journal or Journal()
        self.left_before: Left | None = None
        self._step = alignment if alignment > 1 else CODE_STEP
        self.code = _Pool([Slots(start, end, self._step) for start, end in ranges.code])
        self.data = _Pool([Slots(start, end, DATA_STEP) for start, end in ranges.data])
        self.resident: tuple[Slot, Detour] | None = None
        self.pads = _Pool([])
        self._pages: list[Slot] = []
        self._bell: Slot | None = None
        self._left: dict[Slot, Detour] = {}
        self._ways: set[Slot] = set()
        self._called: set[Slot] = set()
        # Counts what was left. What is in use from a count on, nobody knows who was left by then.
        self._lefts = 0
        self._left_as: dict[Slot, int] = {}
        self._used_from: dict[int, int] = {}
        self._before: dict[Slot, bytes] = {}
        self._uses: dict[int, frozenset[int]] = {}
        self._tables: dict[TableKind, Slot] = {}
        self._taken: set[Slot] = set()
        self._aside: tuple[Slot, Slot] | None = None
        self._aside_at: Range | None = None

    def allocate_code(self, size: int, near: int, reach: int) -> Slot:
        """Memory for `size` bytes of code that a branch at `near` reaches and that can branch back.

        Raises Refused: ARENA_FULL, ARENA_OUT_OF_REACH.
        """
        low, high = _within(near, reach, size)
        return self.code.allocate(size, low, high, near)

    def allocate_pad(self, near: int, reach: int) -> Slot:
        """Memory for a pad of a probe at `near`. Raises Refused, as `allocate_code`."""
        low, high = _within(near, reach, pads.PAGE)
        if all(slots.find(pads.SIZE, low, high) is None for slots in self.pads.slots):
            page = self.code.claim_page(pads.PAGE, low, high)
            if page is None:
                raise Refused(Refusal.ARENA_FULL.because(used=self.code.used, size=self.code.size))
            self._has_pads(page)
        return self.pads.allocate(pads.SIZE, low, high, near)

    def take_bell(self, near: int, reach: int) -> Slot:
        """The page of data in which the bell is that programs ring before they leave to a pad. Raises Refused."""
        if self._bell is None:
            self._bell = self.data.claim_page(pads.PAGE, near - reach + pads.PAGE, near + reach - pads.PAGE)
            if self._bell is not None:
                self.journal.put(Item.DATA, self._bell.address, self._bell.size)
        if self._bell is None:
            raise Refused(Refusal.ARENA_FULL.because(used=self.data.used, size=self.data.size))
        return self._bell

    def free_code(self, near: int, reach: int) -> int:
        """Where free memory for code begins that a branch at `near` reaches; nothing is taken.

        Raises Refused: ARENA_FULL, ARENA_OUT_OF_REACH.
        """
        low, high = _within(near, reach, self._step)
        return self.code.find(self._step, low, high, near)

    def allocate_data(self, size: int, near: int | None = None, reach: int = 1 << 64) -> Slot:
        """Memory for `size` bytes of data; `near` and `reach` where code addresses it by distance. Raises Refused."""
        if near is None:
            slot = self.data.allocate(size, 0, 1 << 64, 0)
        else:
            slot = self.data.allocate(size, *_data_within(near, reach, size), near)
        self._used_from[slot.address] = self._lefts
        self.journal.put(Item.DATA, slot.address, slot.size)
        return slot

    def allocate_table(self, table: TableKind, size: int, near: int, reach: int) -> Slot:
        """As `allocate_data`, for the table that there is from now on. Raises Refused."""
        slot = self.allocate_data(size, near, reach)
        self.journal.put(Item.TABLE, table, slot.address)
        return slot

    def earlier_table(self, table: TableKind) -> Slot | None:
        """Return the memory of an earlier session's table that is not adopted yet; None where there is none."""
        return self._tables.get(table)

    def adopt_table(self, table: TableKind, fits: Callable[[int], bool]) -> Slot | None:
        """The memory of an earlier session's table, once, where its size `fits`; what it holds is still looked at."""
        slot = self._tables.get(table)
        if slot is None or not fits(slot.size):
            return None
        self._taken.add(self._tables.pop(table))
        return slot

    def release_table(self, table: TableKind, slot: Slot) -> None:
        """Nothing comes to the table at `slot` any more, but who is in code that was left; there may be a newer one."""
        if self.journal.state.get(f"{Item.TABLE} {table:x}") == slot.address:
            self.journal.drop(Item.TABLE, table)
        self.data.release(slot)

    def set_aside(self, near: int, reach: int) -> None:
        """Keep memory off that another session needs to take over from this one: the journal does not tell of it.

        What is taken over may need that very memory: then it is set aside as soon as there is some again (`tidy`).
        Raises Refused.
        """
        if self.journal.memory is None:
            return  # no other session finds anything
        if self.left_before is None:
            self.check_aside(near, reach)
        self._aside_at = near, reach
        self.tidy()

    def tidy(self) -> None:
        """Set aside what was spent, where there is room."""
        if self._aside is not None or self._aside_at is None:
            return
        near, reach = self._aside_at
        try:
            self.check_aside(near, reach)
        except Refused:
            return
        code = self.code.allocate(ASIDE_CODE, *_within(near, reach, ASIDE_CODE), near)
        self._aside = code, self.data.allocate(ASIDE_DATA, *_data_within(near, reach, ASIDE_DATA), near)

    def check_aside(self, near: int, reach: int, data: int = ASIDE_DATA) -> None:
        """Raises Refused where there is no room for what is set aside of code, and so many bytes of data."""
        if self._aside is None:
            self.check_code(ASIDE_CODE, near, reach)
            if data:
                self.check_data(data, near, reach)

    def spend_aside(self) -> None:
        """What was set aside is as free as all else."""
        if self._aside is not None:
            (code, data), self._aside = self._aside, None
            self.code.give_back(code)
            self.data.give_back(data)

    def check_code(self, size: int, near: int, reach: int) -> None:
        """Raises Refused where `allocate_code` would; nothing is taken."""
        self.code.find(size, *_within(near, reach, size), near)

    def check_data(self, size: int, near: int, reach: int) -> None:
        """Raises Refused where `allocate_data` would; nothing is taken."""
        self.data.find(size, *_data_within(near, reach, size), near)

    def place(self, slot: Slot, data: bytes, memory: Memory, padding: bytes) -> Patch:
        """The patch that fills `slot` with `data` and `padding`. Raises TextChanged; foreign bytes lose the slot."""
        new = data + padding * ((slot.size - len(data)) // len(padding))
        old = memory.read(slot.address, slot.size)
        if self.ranges.fill is not None and old != bytes([self.ranges.fill]) * slot.size:
            (self.pads if self.pads.has(slot) else self.code).lose(slot)
            raise TextChanged(slot.address, bytes([self.ranges.fill]) * slot.size, old)
        self._before[slot] = old
        return Patch(slot.address, old, new)

    def wipe(self, slots: Iterable[Slot], memory: Memory) -> None:
        """Make `slots`, which nobody can be inside, what they were: filler that traps, where that is ours to take."""
        fill = self.ranges.fill
        runs: list[tuple[int, bytearray]] = []
        for slot in sorted(slots):
            self.journal.drop(Item.CODE, slot.address)
            self._forget_uses(slot)
            before = self._before.pop(slot, None if fill is None else bytes([fill]) * slot.size)
            if before is None:
                continue
            if runs and runs[-1][0] + len(runs[-1][1]) == slot.address:
                runs[-1][1].extend(before)
            else:
                runs.append((slot.address, bytearray(before)))
        for address, data in runs:
            memory.write(address, bytes(data))

    def note_uses(self, slot: Slot, uses: Iterable[int]) -> None:
        """What the code in `slot` may write to, call or leave to begins at these addresses: data, routines, pads.

        Code of which nothing is noted may come to anything.
        """
        self._uses[slot.address] = frozenset(uses)
        distances = sorted(address - slot.address for address in self._uses[slot.address])
        self.journal.put(Item.USES, slot.address, distances)

    def _forget_uses(self, slot: Slot) -> None:
        if self._uses.pop(slot.address, None) is not None:
            self.journal.drop(Item.USES, slot.address)

    def take_up(self, fits: Callable[[Detour], bool]) -> tuple[Slot, Detour] | None:
        """Released code that `fits` and that something leads to again; None where none is."""
        found = next((slot for slot, detour in self._left.items() if fits(detour)), None)
        if found is None:
            return None
        self.code.take_up(found)
        self._called.discard(found)
        self._ways.discard(found)
        del self._left_as[found]
        return found, self._left.pop(found)

    def leave(self, slot: Slot, detour: Detour, way: bool = False) -> None:
        """Nothing leads to `detour` in `slot` any more, but somebody may still be inside and will go on to the text.

        way: or to any other that was left, by a table that was left too.
        """
        self.code.release(slot)
        if way:
            self._ways.add(slot)
        self._left[slot] = detour
        self._lefts += 1
        self._left_as[slot] = self._lefts

    def dismiss(self) -> None:
        """Nothing calls the resident any more, where nothing else of ours is in the code memory."""
        if self.resident is not None and self.code.holds_only(self.resident[0]):
            resident, self.resident = self.resident, None
            self.leave(*resident)

    @property
    def left(self) -> tuple[Detour, ...]:
        """Detours in which somebody may still be, although nothing leads there."""
        return tuple(self._left.values())

    @property
    def has_ways(self) -> bool:
        """Whether code was left that leads to other code by a table."""
        return bool(self._ways)

    def dirty(self) -> tuple[Slot, ...]:
        """Released code in which somebody may still be, pads too."""
        return (*self.code.dirty, *self.pads.dirty)

    def reclaim(self, busy: Callable[[Sequence[Range]], Collection[Range]]) -> tuple[Slot, ...]:
        """Free every released slot of which `busy` says that nobody is inside; returns what is free now.

        Data that were released are free once all code is that may write there: what was left while they were in use,
        unless it is noted what it uses. The same holds for pads, where it may stop, and for what it may call. From a
        pad somebody goes on anywhere, as from a way.
        """
        waiting = self.dirty()
        if not waiting:
            self._reclaim_data()
            return ()
        inside = set(busy([(slot.address, slot.end) for slot in (*self.code.dirty, *self._pages)]))
        if any((slot.address, slot.end) in inside for slot in (*self._pages, *self._ways)):
            return ()
        empty = self._empty(inside)
        self.code.reclaim(empty)
        self._ways.difference_update(empty)
        self._called.difference_update(empty)
        for slot in empty:
            self._left.pop(slot, None)
            self._left_as.pop(slot, None)
            self._forget_uses(slot)
        self._reclaim_data()
        return (*empty, *self._reclaim_pads())

    def _empty(self, inside: Collection[Range]) -> tuple[Slot, ...]:
        """Of the released code, what nobody is in or comes to."""
        empty = [slot for slot in self.code.dirty if (slot.address, slot.end) not in inside]
        callers = [slot for slot in self.code.dirty if slot not in empty and slot not in self._called]
        return tuple(slot for slot in empty if slot not in self._called or not self._is_used(slot.address, callers))

    def _is_used(self, address: int, by: Iterable[Slot]) -> bool:
        """Whether some of this code may come to what begins at `address`."""
        return any(address in self._uses.get(slot.address, (address,)) for slot in by)

    @property
    def pad_pages(self) -> tuple[Range, ...]:
        return tuple((page.address, page.end) for page in self._pages)

    def adopt(self, left: Left, memory: Memory, handlers: Collection[int] = ()) -> None:
        """What an earlier session's journal tells of, in which somebody may be; the data are still in use.

        handlers: of the kernel's, before which there may be code that leads by a table to other code of that session's.
        """
        self.left_before = left
        for slot, detour in left.detours.items():
            if self.code.claim(slot.address, slot.size) is not None:
                self.leave(slot, detour, detour.head in handlers)
                if detour.head in (slot.address, *handlers):
                    self._called.add(slot)
        for page in left.pads:
            if self.code.claim(page.address, page.size) is not None:
                self._has_pads(page)
                held = memory.read(page.address, page.size)
                for at in range(0, page.size, pads.SIZE):
                    pad = self.pads.claim(page.address + at, pads.SIZE)
                    if pad is not None and held[at : at + pads.SIZE] == bytes([self.ranges.fill or 0]) * pads.SIZE:
                        self.pads.give_back(pad)
                    elif pad is not None:
                        self.pads.release(pad)
        for slot in left.data:
            self.data.claim(slot.address, slot.size)
        self._uses |= left.uses
        self._tables |= left.tables

    def release_data(self, kept: Collection[Slot] = ()) -> None:
        """What was adopted of the data, but for `kept` and tables, goes with the code that may still write there."""
        for table in self._tables:
            self.journal.drop(Item.TABLE, table)
        self._tables.clear()
        adopted = self.left_before.data if self.left_before is not None else ()
        for slots in self.data.slots:
            for slot in slots.used:
                if slot in adopted and slot not in kept and slot not in self._taken:
                    slots.release(slot)

    def _has_pads(self, page: Slot) -> None:
        self._pages.append(page)
        self.pads.slots.append(Slots(page.address, page.end, pads.SIZE))
        self.journal.put(Item.PADS, page.address, page.size)

    def _reclaim_data(self) -> None:
        """What was released, where no code may write that is left."""
        left = [(slot, self._left_as.get(slot, self._lefts + 1)) for slot in self.code.dirty]

        def is_used(data: Slot) -> bool:
            since = self._used_from.get(data.address, 0)
            return self._is_used(data.address, (slot for slot, left_as in left if left_as > since))

        empty = [slot for slot in self.data.dirty if not is_used(slot)]
        for slot in empty:
            # What is told of a table of calls goes with its memory.
            for item in (Item.DATA, Item.POINT, Item.CALLS):
                self.journal.drop(item, slot.address)
            self._used_from.pop(slot.address, None)
        self.data.reclaim(empty)

    def _reclaim_pads(self) -> tuple[Slot, ...]:
        """What was released that no code may leave to; a page without one goes back to the code."""
        freed = tuple(slot for slot in self.pads.dirty if not self._is_used(slot.address, self.code.dirty))
        self.pads.reclaim(freed)
        empty = [slots for slots in self.pads.slots if not (slots.used or slots.dirty)]
        for slots in empty:
            self.pads.slots.remove(slots)
            page = next(page for page in self._pages if page.address == slots.start)
            self._pages.remove(page)
            self.code.give_back(page)
            self.journal.drop(Item.PADS, page.address)
        if self._bell is not None and not self._pages:
            self.data.give_back(self._bell)
            self.journal.drop(Item.DATA, self._bell.address)
            self._bell = None
        return freed


class _Pool:
    def __init__(self, slots: Sequence[Slots]) -> None:
        self.slots = list(slots)

    @property
    def size(self) -> int:
        return sum(slots.size for slots in self.slots)

    @property
    def used(self) -> int:
        """Bytes that are not free, those lost among them."""
        return self.size - sum(slots.free_bytes for slots in self.slots)

    @property
    def largest(self) -> int:
        """Bytes of the largest free piece."""
        return max((slots.largest for slots in self.slots), default=0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of ours is in it."""
        return not any(slots.used or slots.dirty for slots in self.slots)

    def holds_only(self, slot: Slot) -> bool:
        """Whether nothing of ours is in it but this."""
        return [each for slots in self.slots for each in (*slots.used, *slots.dirty)] == [slot]

    @property
    def dirty(self) -> tuple[Slot, ...]:
        return tuple(slot for slots in self.slots for slot in slots.dirty)

    def has(self, slot: Slot) -> bool:
        return any(slots.start <= slot.address < slots.end for slots in self.slots)

    def claim_page(self, size: int, low: int, high: int) -> Slot | None:
        """The lowest free page inside [low, high): what is left behind reaches no further than it must."""
        for slots in self.slots:
            first, last = max(slots.start, low), min(slots.end, high)
            for address in range(-(-first // size) * size, last - size + 1, size):
                if (page := slots.claim(address, size)) is not None:
                    return page
        return None

    def allocate(self, size: int, low: int, high: int, near: int) -> Slot:
        at = self.find(size, low, high, near)
        slot = self._of(at).claim(at, size)
        assert slot is not None, "what was found is free"
        return slot

    def find(self, size: int, low: int, high: int, near: int) -> int:
        low, high = max(low, 0), min(high, 1 << 64)
        for slots in self.slots:
            if (at := slots.find(size, low, high)) is not None:
                return at
        if not self.slots:
            raise Refused(Refusal.ARENA_MISSING.because(why="none was found and none was given"))
        if any(slots.start < high and low < slots.end for slots in self.slots):
            raise Refused(Refusal.ARENA_FULL.because(used=self.used, size=self.size))
        raise Refused(Refusal.ARENA_OUT_OF_REACH.because(address=f"{near:#x}"))

    def claim(self, address: int, size: int) -> Slot | None:
        """What an earlier session left in use at `address`; None where that is no free piece of ours."""
        return next((found for s in self.slots if (found := s.claim(address, size)) is not None), None)

    def release(self, slot: Slot) -> None:
        self._of(slot.address).release(slot)

    def take_up(self, slot: Slot) -> None:
        self._of(slot.address).take_up(slot)

    def give_back(self, slot: Slot) -> None:
        self._of(slot.address).give_back(slot)

    def lose(self, slot: Slot) -> None:
        self._of(slot.address).lose(slot)

    def reclaim(self, empty: Iterable[Slot]) -> None:
        for slot in empty:
            self._of(slot.address).reclaim([slot])

    def _of(self, address: int) -> Slots:
        return next(slots for slots in self.slots if slots.start <= address < slots.end)


def _within(near: int, reach: int, size: int) -> Range:
    """Where `size` bytes of code may lie that a branch at `near` leads to."""
    # The branch counts from its own end, and the way back starts at the far end of the detour.
    margin = size + 256
    return near - reach + margin, near + reach - margin


def _data_within(near: int, reach: int, size: int) -> Range:
    """Where `size` bytes of data may lie that code at `near` addresses by distance."""
    return near - reach + size + 4096, near + reach - size - 4096
