"""Where pages that the guest's kernel lends for data appear to detours: below the data of the arena.

    0xffffffff40000000 │ …  │ place 2 │ place 1 │ data of the arena │ 0xffffffff80000000
                              each 2 MiB: one entry of the same PMD table that maps the arena's data
    a block of 2 MiB   the entry maps it as one large page
    a smaller block    the entry leads to the block's own last page, which is a table of the pages before it
A block is a piece of the direct map (`__get_free_pages`), contiguous and aligned to its size. Its pages are writable
here as they are there, and executable in neither. One write of 8 bytes, over an entry that is zero, makes all of it
appear; x86 caches no translation that is not present, so nothing is flushed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import (
    DATA_AT,
    ENTRIES,
    LARGE_PAGE,
    PAGE,
    Tables,
    page_tables,
    table_of,
)
from gdb_optprobe.guest.linux.arch.x86_64.paging import (
    ADDRESS,
    LARGE,
    NO_EXECUTE,
    PRESENT,
    mappings,
    page_entry,
    table_entry,
)
from gdb_optprobe.guest.linux.arch.x86_64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.page_allocator import Pages
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.calling import Calling
from gdb_optprobe.isa.x86_64.calling import CALLING

WHOLE = 9
"""The order of a block of 2 MiB."""
ORDERS = (WHOLE, 8, 7, 6, 5)
PLACES = 128
"""Places that are used, of 511."""
ALL_PLACES = range(DATA_AT - LARGE_PAGE, DATA_AT - (PLACES + 1) * LARGE_PAGE, -LARGE_PAGE)


class NoWindow(OptprobeError):
    """Blocks cannot be mapped in this guest, or one cannot be."""


@dataclass(frozen=True, slots=True)
class DataWindow(Pages):
    """See guest.linux.arch.base.Window."""

    machine: Machine
    kernel: Kernel
    calling: Calling = CALLING
    vcpus: Vcpus = VCPUS
    orders: Sequence[int] = ORDERS
    whole: int = WHOLE
    flushes: str = "flush_tlb_all"

    def places(self, low: int, high: int) -> Sequence[int]:
        return [place for place in ALL_PLACES if low <= place and place + LARGE_PAGE <= high]

    def is_place(self, place: int, order: int) -> bool:
        return place in ALL_PLACES

    def size(self, order: int) -> int:
        return (PAGE << order) - (PAGE if order != WHOLE else 0)

    def table(self) -> int:
        return self._table(self._tables())

    def map(self, place: int, order: int, block: int) -> int:
        tables = self._tables()
        at, frame = self._entry_at(place, tables), self._frame(block, order, tables)
        if self._word(at):
            raise NoWindow(f"something is mapped at {place:#x} already")
        never = NO_EXECUTE if tables.no_execute else 0
        if order != WHOLE:
            count = (1 << order) - 1
            pages = {n: page_entry(frame + n * PAGE, writable=True, executable=not never) for n in range(count)}
            table, held = frame + count * PAGE, table_of(pages)
            self.machine.write_physical(table, held)
            if self.machine.read_physical(table, PAGE) != held:
                raise NoWindow(f"physical memory at {table:#x} cannot be written")
        self._write(at, self._leads(frame, order, never))
        self._prove(place, order, block)
        return place

    def _prove(self, place: int, order: int, block: int) -> None:
        """Write where the kernel has it, and read it there and in the window. Raises NoWindow, with nothing mapped."""
        for offset in (0, self.size(order) - 8):
            word = (place + offset ^ 0x5A5A_5A5A_5A5A_5A5A).to_bytes(8, "little")
            self.machine.write_physical(self._frame(block, order, self._tables()) + offset, word)
            if self._seen(place + offset) != word or self.kernel.memory.read(block + offset, 8) != word:
                self.unmap(place)
                raise NoWindow(f"what was mapped at {place:#x} is not what the kernel lent")

    def _seen(self, address: int) -> bytes:
        """Return the word at `address` as the kernel's page tables have it."""
        tables = self._tables()
        run = next(mappings(self.machine.read_physical, tables.roots[0], address, address + 8, la57=tables.la57), None)
        return self.machine.read_physical(run.frame_of(address), 8) if run is not None and run.writable else b""

    def is_mapped(self, place: int, order: int, block: int) -> bool:
        tables = self._tables()
        held = self._word(self._entry_at(place, tables))
        if not held:
            return False
        never = NO_EXECUTE if tables.no_execute else 0
        if held != self._leads(self._frame(block, order, tables), order, never):
            raise NoWindow(f"the entry of {place:#x} in the page tables is not what an earlier GDB wrote")
        return True

    def is_free(self, place: int) -> bool:
        return not self._word(self._entry_at(place, self._tables()))

    def unmap(self, place: int) -> int:
        self._write(self._entry_at(place, self._tables()), 0)
        return place

    def _tables(self) -> Tables:
        return page_tables(self.machine, self.kernel)

    def _table(self, tables: Tables) -> int:
        """Return the physical address of the PMD table that maps the arena's data. Raises NoWindow."""
        table = tables.roots[0]
        for shift in (48, 39, 30) if tables.la57 else (39, 30):
            entry = self._word(table + (DATA_AT >> shift & ENTRIES - 1) * 8)
            if not entry & PRESENT or (entry & LARGE and shift == 30):
                raise NoWindow("no page table maps the memory for detours")
            table = entry & ADDRESS
        return table

    def _entry_at(self, place: int, tables: Tables) -> int:
        if place not in ALL_PLACES:
            raise NoWindow(f"no block can be at {place:#x}")
        return self._table(tables) + (place >> 21 & ENTRIES - 1) * 8

    def _frame(self, block: int, order: int, tables: Tables) -> int:
        """Return the physical address of a block. Raises NoWindow where it is not what the kernel lends."""
        size = PAGE << order
        read = self.machine.read_physical
        runs = mappings(read, tables.roots[0], block, block + size, la57=tables.la57)
        run = next(runs, None)
        if run is None or run.address > block or run.end < block + size or not run.writable or run.user:
            raise NoWindow(f"the kernel has no {size >> 10} KiB in one piece at {block:#x}")
        frame = run.frame_of(block)
        if frame % size or block % size:
            raise NoWindow(f"what the kernel lent at {block:#x} is not aligned")
        return frame

    def _leads(self, frame: int, order: int, never: int) -> int:
        if order == WHOLE:
            return page_entry(frame, writable=True, executable=not never) | LARGE
        return table_entry(frame + ((1 << order) - 1) * PAGE)

    def _word(self, at: int) -> int:
        return int.from_bytes(self.machine.read_physical(at, 8), "little")

    def _write(self, at: int, entry: int) -> None:
        self.machine.write_physical(at, entry.to_bytes(8, "little"))
        if self._word(at) != entry:
            raise NoWindow(f"the page tables at {at:#x} cannot be written")
