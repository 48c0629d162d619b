"""More memory for an arena: blocks of pages that the guest's kernel lends, by native calls of an allocator of its.

    intent journaled ─► thunk in an arena slot: __get_free_pages(flags, order) ─► cell ─► mapped: data of the arena
                        thunk: flush_tlb_all() ◄── taken out of the page tables ◄── no data in use, no code left
                        thunk: cell ─► 0, free_pages(block, order) ─► journal item gone
Where the kernel's own mapping of a block serves, the block's place in the journal is what is mapped and taken out, and
nothing is flushed (`Window`).
The allocator is asked with flags with which it neither sleeps, nor frees what others use, nor tells of a failure: where
it has no block at once, a smaller one is asked for. `vmalloc` has no such flags, and needs a table of pages; it serves
where blocks must be near (`Allocator`). A block of code is protected by calls before it is handed out, and the journal
moves into the end of a large one: it must hold as many probes as the code.

GDB may be killed at any instant. A thread in a thunk finishes it by itself, and the block's address, or 0, is in the
cell (detours/lent_block.py). The thunk is code of the arena, so another GDB knows when no thread is in it. It maps
nothing anew in place of what was taken out and not flushed: first it gives such a block back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Protocol

from gdb_optprobe.detours import lent_block
from gdb_optprobe.detours.arena import Arena, Lack, Range
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.lent_block import CELL, LentBlock
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import NOWHERE, Call, Say, Window
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.native_call import Runner
from gdb_optprobe.isa.calling import Calling, Thunk
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes.arena_call import make_call
from gdb_optprobe.probes.settings import Settings

MIB = 1 << 20
TIMEOUT, LEAVING = 20.0, 5.0
"""Seconds in which a thread is to be reached; one that gives memory back."""
CALL = 30.0
IN_A_CALL = "a thread still calls the kernel's allocator for an earlier GDB"


class Make(Protocol):
    """Makes the code of a call."""

    def __call__(self, *, address: int, back: int) -> Thunk: ...


def mapped(blocks: Sequence[LentBlock], window: Window, memory: Memory) -> tuple[Range, ...]:
    """Return the memory that blocks of an earlier GDB, of one kind, are. Raises Damaged, OptprobeError."""
    found: list[Range] = []
    for block in blocks:
        if block.order not in window.orders or not window.is_place(block.place, block.order):
            raise Damaged("it tells of lent memory where none can be")
        address = _word(memory, block.cell)
        if address and window.is_mapped(block.place, block.order, address):
            found.append((block.place, block.place + window.size(block.order)))
        elif not address and not window.is_free(block.place):
            raise Damaged("what is mapped was given back")
    if _overlap(found):
        raise Damaged("it tells of the same lent memory twice")
    return tuple(lent_block.joined(found))


@dataclass
class LentPages:
    """See detours.arena.Lender. blocks: that are lent, or may be.

    can_change: whether the page table at a physical address is the arena's own and may get other entries.
    """

    linux: LinuxGuest
    arena: Arena
    settings: Callable[[], Settings]
    tell: Say
    can_change: Callable[[int], bool]
    blocks: list[LentBlock] = field(default_factory=list)
    _avoid: Callable[[int], bool] = lambda address: False
    _tried: tuple[int, int] | None = None  # limit, and what was lent, behind the last try for the journal

    def avoids(self, may_stop_at: Callable[[int], bool]) -> None:
        self._avoid = may_stop_at
        if self._code_window is not None:
            self.arena.keep_spare()

    @property
    def lent(self) -> int:
        return sum(self._size(block) for block in self.blocks)

    @property
    def left(self) -> int:
        if self.why_not():
            return 0
        whole = self._window.size(self._window.whole)
        return min(len(self._free_places(self._window, 0, 1 << 64)), max(0, self._limit - self.lent) // whole) * whole

    def why_not(self) -> str:
        if self.arena.journal.memory is not None and not self.settings().max_memory:
            return "max-memory is 0"
        return self._why_never()

    def max_memory_for(self, size: int) -> int:
        if self._why_never():
            return 0
        fits = self._window.size(self._window.orders[0]) * len(self._free_places(self._window, 0, 1 << 64)) >= size
        return -(-(self.lent + self._needed(self._window, size, 0)) // MIB) if fits else 0

    def _why_never(self) -> str:
        """Return why nothing can be lent, whatever `max-memory` is; "" where something can."""
        journal = self.arena.journal
        if journal.memory is None:
            return "no journal can be kept"
        try:
            self._window.allocator.allocate(self._window.whole, 0, 1 << 64)
            # Before the arena is taken there are no page tables to look at.
            table = self._window.table() if journal.is_open else None
            if table is not None and not self.can_change(table):
                return "the memory for detours is an earlier version's"
        except OptprobeError as error:
            return error.message
        return ""

    def most(self, low: int, high: int) -> int:
        return 0 if self.why_not() else self._most(self._window, low, high)

    def _most(self, window: Window, low: int, high: int) -> int:
        places, left = self._free_places(window, low, high), self._limit - self.lent
        sizes = (window.size(order) for order in window.orders if order >= window.whole)
        if not (size := next((size for size in sizes if size <= left), 0)):
            return 0
        in_a_row = next((n for n, place in enumerate(places) if place != places[0] - n * size), len(places))
        return min(in_a_row, left // size) * size

    def code_place(self, low: int, high: int) -> Range:
        window = self._code_window
        if window is None or self.why_not() or not (most := self._most(window, low, high)):
            return 0, 0
        start, end = window.inside(low, high)
        return (start, start + most) if end - start >= most else (0, 0)

    @property
    def journal_lack(self) -> Lack | None:
        window = self._code_window
        if window is None or self._tried == (self._limit, self.lent):
            return None
        start, end = window.journal(0, window.whole)
        if start == end or self.why_not():
            return None
        return Lack(window.size(window.whole), *window.range, is_code=True, is_for_journal=True)

    @property
    def code_range(self) -> Range:
        return self._code_window.range if self._code_window is not None else (0, 0)

    # lent ------------------------------------------------------------------------------------------------------------

    def lend(self, lack: Lack, more: int) -> None:
        if why := self.why_not():
            raise OptprobeError(why)
        if not self.arena.journal.is_open:
            raise OptprobeError("the journal in the guest is full")
        try:
            self._lend(lack, more)
        finally:
            if lack.is_for_journal:
                self._tried = self._limit, self.lent

    def _lend(self, lack: Lack, more: int) -> None:
        window, wanted = self._window_of(lack.is_code), lack.size + more
        needed = self.lent + self._needed(window, lack.size, more)
        if needed > self._limit or lack.size > self._most(window, lack.low, lack.high):
            raise OptprobeError(f"{wanted >> 10:,} KiB more are needed", f"set optprobe max-memory {-(-needed // MIB)}")
        what = "detours" if lack.is_code else "what probes gather"
        self.tell(f"the guest runs until its kernel has lent {needed - self.lent >> 10:,} KiB more for {what}")
        runner = self._reach(TIMEOUT)
        self._free(runner, [block for block in self.blocks if not self._is_mapped(block)])
        new: list[LentBlock] = []
        try:
            self._allocate(runner, window, lack, wanted, new)
            for number, block in enumerate(new):
                for call in window.protects(block.order, self._address(block)):
                    self._plain_call(runner, call)
                new[number] = self._now_at(block, window.map(block.place, block.order, self._address(block)))
                self.linux.forget()
            if _overlap([*self.arena.ranges.data, *self.arena.ranges.code, *map(self._span, new)]):
                raise OptprobeError("its kernel lent memory that is lent already")
            self.arena.journal.flush()
        except OptprobeError:
            # None of it was handed out. What cannot be given back now is idle, and is tried again.
            with suppress(OptprobeError):
                self._free(runner, self._unmap(new))
            raise
        for start, end in lent_block.joined(map(self._span, new)):
            if lack.is_code:
                self.arena.add_code(start, end)
            else:
                self.arena.add_data(start, end)
        for block in new:
            self._move_journal(block)

    def _move_journal(self, block: LentBlock) -> None:
        """Have the journal where a block of code ends. Where that is not possible it stays, and may become full."""
        start, end = self._window_of(block.is_code).journal(block.place, block.order)
        if start < end and not self.arena.journal.has_moved:
            with suppress(OptprobeError):
                self.arena.journal.move(start, end - start)

    def _allocate(self, runner: Runner, window: Window, lack: Lack, wanted: int, new: list[LentBlock]) -> None:
        """new: gets the blocks. Raises OptprobeError where the kernel does not have all."""
        size, orders = 0, _orders(window, lack.size)
        for place in self._free_places(window, lack.low, lack.high):
            if size >= wanted:
                return
            block = self._ask(runner, window, place, lack, orders)
            if block is None:
                break
            new.append(block)
            size += self._size(block)
        if size < wanted:
            raise OptprobeError(f"its kernel has no {-(-wanted >> 10)} KiB to lend at once")

    def _ask(
        self, runner: Runner, window: Window, place: int, lack: Lack, orders: Sequence[int]
    ) -> LentBlock | None:
        """Return a block of the first order of which the kernel has one; None where it has none."""
        calls = [window.allocator.allocate(order, lack.low, lack.high) for order in orders]
        cell = self.arena.allocate_cell(CELL)
        self.linux.machine.write(cell.address, bytes(CELL))
        journal = self.arena.journal
        for order, call in zip(orders, calls, strict=True):
            block = LentBlock(cell.address, order, place, lack.is_code)
            journal.put(Item.MORE, cell.address, lent_block.encode(block))
            journal.flush()
            if not journal.is_open:
                break
            self.blocks.append(block)
            asks = partial(
                self._calling.thunk, function=call.function, arguments=call.arguments, gives=cell.address
            )
            self._call(runner, asks, cell.address)
            if self._address(block):
                return block
            self.blocks.remove(block)
        journal.drop(Item.MORE, cell.address)
        self.arena.release_cell(cell)
        journal.flush()
        return None

    # given back ------------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        if not self.blocks or not self.arena.is_more_unused:
            return
        for block in self.blocks:
            if not self._address(block) and self.arena.may_use(_cell(block)):
                raise OptprobeError(IN_A_CALL, "let the guest run, then try again")
        with self.arena.without_reserve():
            self._give_back()

    def _give_back(self) -> None:
        """Raises OptprobeError where some stays lent."""
        size = self.lent >> 10
        try:
            if any(map(self._address, self.blocks)):
                self.tell(f"the guest runs until its kernel has taken back {size:,} KiB")
                runner = self._reach(LEAVING)
                # The journal must list no data that are in no memory, nor be in such.
                self.arena.journal.flush()
                self.arena.journal.move_back()
                self._unmap(tuple(self.blocks))
                self.arena.drop_more()
                self._free(runner, tuple(self.blocks))
            else:
                self._forget(tuple(self.blocks))
        except OptprobeError as error:
            self.arena.journal.flush()
            stays = f"{self.lent >> 10} KiB of the guest's memory stay lent, and serve the next GDB"
            raise OptprobeError(f"{stays}: {error.message}", error.hint) from error

    def _unmap(self, blocks: Sequence[LentBlock]) -> Sequence[LentBlock]:
        """Return the blocks, mapped nowhere."""
        there = [
            self._now_at(block, self._window_of(block.is_code).unmap(block.place)) if self._is_mapped(block) else block
            for block in blocks
        ]
        self.arena.journal.flush()
        self.linux.forget()
        return there

    def _now_at(self, block: LentBlock, place: int) -> LentBlock:
        """Return the block, which is mapped or unmapped; the journal is to have its place."""
        if place == block.place:
            return block
        there = replace(block, place=place)
        self.blocks[self.blocks.index(block)] = there
        self.arena.journal.put(Item.MORE, block.cell, lent_block.encode(there))
        return there

    def _free(self, runner: Runner, blocks: Sequence[LentBlock]) -> None:
        """Give back blocks that are mapped nowhere, once all translations are flushed. Raises OptprobeError."""
        if (flushes := self._window.flushes) and any(map(self._address, blocks)):
            self._plain_call(runner, Call(self.linux.kernel.address(flushes)))
        for block in blocks:
            window = self._window_of(block.is_code)
            if at := self._address(block):
                for call in window.unprotects(block.order, at):
                    self._plain_call(runner, call)
                call = window.allocator.free(block.order)
                frees = partial(
                    self._calling.thunk, function=call.function, arguments=call.arguments, takes=block.cell
                )
                self._call(runner, frees, block.cell)
            if not self.arena.may_use(_cell(block)):
                self._forget((block,))

    def _forget(self, blocks: Sequence[LentBlock]) -> None:
        """Forget blocks that were given back."""
        for block in blocks:
            assert not self._address(block)
            self.blocks.remove(block)
            self.arena.journal.drop(Item.MORE, block.cell)
            self.arena.release_cell(_cell(block))
        self.arena.journal.flush()

    # calls -----------------------------------------------------------------------------------------------------------

    def _reach(self, timeout: float) -> Runner:
        machine, window = self.linux.machine, self._window
        runner = Runner(machine, window.calling, SafePoints(machine, window.kernel, window.vcpus, self._avoid))
        try:
            runner.reach(timeout)
        finally:
            self.linux.forget()
        return runner

    def _call(self, runner: Runner, make: Make, *uses: int) -> None:
        """Have the thread that was reached run code, which is in the arena meanwhile. Raises OptprobeError."""
        with self.arena.spending_spare():
            make_call(runner, lambda at, back: make(address=at, back=back), CALL, self.linux, self.arena, uses)

    def _plain_call(self, runner: Runner, call: Call) -> None:
        """Make a call that has nothing to do with a cell. Raises OptprobeError."""
        self._call(runner, partial(self._calling.thunk, function=call.function, arguments=call.arguments))

    # facts -----------------------------------------------------------------------------------------------------------

    @cached_property
    def _window(self) -> Window:
        return self.linux.arch.window(self.linux.machine, self.linux.kernel)

    @property
    def _calling(self) -> Calling:
        return self._window.calling

    @cached_property
    def _code_window(self) -> Window | None:
        """Return where code can be lent; None where none can."""
        try:
            return self.linux.arch.code_window(self.linux.machine, self.linux.kernel)
        except OptprobeError:
            return None

    def _window_of(self, is_code: bool) -> Window:
        window = self._code_window if is_code else self._window
        if window is None:
            raise OptprobeError("its kernel lends no memory for code")
        return window

    @property
    def _limit(self) -> int:
        return self.settings().max_memory * MIB

    def _free_places(self, window: Window, low: int, high: int) -> Sequence[int]:
        """Return the places inside [low, high) that hold no block, nearest to the data first."""
        taken = {block.place for block in self.blocks} - {NOWHERE}
        return [at for at in window.places(low, high) if at not in taken]

    def _needed(self, window: Window, least: int, more: int) -> int:
        """Return the bytes of the first choice of blocks for a piece of `least` bytes, and `more`."""
        one, whole = window.size(_orders(window, least)[0]), window.size(window.whole)
        pieces = -(-least // one) * one
        return pieces + -(-max(0, least + more - pieces) // whole) * whole

    def _size(self, block: LentBlock) -> int:
        return self._window_of(block.is_code).size(block.order)

    def _span(self, block: LentBlock) -> Range:
        return block.place, block.place + self._size(block)

    def _address(self, block: LentBlock) -> int:
        return _word(self.linux.machine, block.cell)

    def _is_mapped(self, block: LentBlock) -> bool:
        address = self._address(block)
        return bool(address) and self._window_of(block.is_code).is_mapped(block.place, block.order, address)


def _orders(window: Window, least: int) -> Sequence[int]:
    """Return the orders of blocks to ask for, the first choice first, where a piece has `least` bytes.

    A piece that is larger than any block lies in several of the greatest that follow one another.
    """
    fit = [order for order in window.orders if window.size(order) >= least] or window.orders[:1]
    return [order for order in fit if order <= max(window.whole, fit[-1])]


def _cell(block: LentBlock) -> Slot:
    return Slot(block.cell, CELL)


def _overlap(ranges: Sequence[Range]) -> bool:
    return any(one[1] > other[0] for one, other in pairwise(sorted(ranges)))


def _word(memory: Memory, address: int) -> int:
    return int.from_bytes(memory.read(address, CELL), "little")
