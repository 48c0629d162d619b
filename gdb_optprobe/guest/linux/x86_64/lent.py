"""Memory for detours that the guest's kernel lends, where its text has no filler: a native call of `vmalloc`.

    vmalloc ──► area, 514 pages ──► memset ──► set_memory_ro on code and journal, and so on their direct map's aliases
                  └─ frames ──► PTE table ──► PMD table ──► level3_kernel_pgt[509]: the window
    window  0xffffffff7fe00000 │ data 192: writable │ code 256: executable │ journal 64         │ 0xffffffff80000000
    area                       │ data               │ code: read-only      │ journal: read-only │ PTE │ PMD │
The frames appear a second time in the unused 2 GiB below the kernel, within reach of kernel and modules, as filler.py
has it for data. No mapping is writable and executable: code is mapped to be run only when no mapping of it can be
written any more. The window's journal tells of the area, so that another GDB gives it back: the window's one entry of
8 bytes is cleared, the guest flushes all translations (`flush_tlb_all`), the code becomes writable, `vfree`.

A GDB that is killed in the middle of the calls leaves the area, which nothing refers to, and the thunk, which nothing
leads to; the guest runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.call import Caller, CallFailed
from gdb_optprobe.guest.linux import filler, physical
from gdb_optprobe.guest.linux.filler import (
    ADVICE,
    DATA_AT,
    ENTRIES,
    FILL,
    LARGE_PAGE,
    PAGE,
    NoFiller,
    Range,
    Tables,
)
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.physical import PhysicalPatch
from gdb_optprobe.guest.linux.port import Loan, Room, StaysLent
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.x86_64.calling import CALLING
from gdb_optprobe.isa.x86_64.paging import NO_EXECUTE, page_entry, table_entry, translate

DATA_PAGES, CODE_PAGES, JOURNAL_PAGES, TABLES = 192, 256, 64, 2
DATA = DATA_AT, DATA_AT + DATA_PAGES * PAGE
CODE = DATA[1], DATA[1] + CODE_PAGES * PAGE
JOURNAL = CODE[1], CODE[1] + JOURNAL_PAGES * PAGE
END = DATA_AT + LARGE_PAGE
assert JOURNAL[1] == END
SIZE = LARGE_PAGE + TABLES * PAGE
ALLOCATES = ("vmalloc", "vmalloc_noprof")
PROTECTS, UNPROTECTS, FLUSHES, FREES, FILLS = "set_memory_ro", "set_memory_rw", "flush_tlb_all", "vfree", "memset"
DIRECT_MAPS = (0xFFFF_8880_0000_0000, 0xFF11_0000_0000_0000)
"""Where the direct map begins unless the kernel chose at random (Documentation/arch/x86/x86_64/mm.rst)."""
TIMEOUT = 20.0
CALL = 30.0
"""Seconds, for a thread to be reached and for a call."""
BESIDE = 16
"""Bytes of padding that are left alone before a thunk."""
SOUGHT = 512
"""Bytes before an aligned symbol in which padding is sought."""


@dataclass(frozen=True, slots=True)
class Lender:
    """What a loan takes of a guest."""

    machine: Machine
    kernel: Kernel
    vcpus: Vcpus

    # a loan --------------------------------------------------------------------------------------------------------

    def room(self, why: str) -> Room:
        """What would be lent, the guest unchanged; `why` there is no other. Raises NoFiller where nothing can be."""
        tables = filler.page_tables(self.machine, self.kernel)
        try:
            self._functions()
            padding(self.machine, self.kernel, tables)
            filler.unused(tables, self.machine.read_physical)
            self._direct(tables)
            if not self._points.points():
                raise NoFiller("this kernel has no function at which it could be called")
        except NoFiller as missing:
            raise NoFiller(f"{why}; and the kernel cannot be asked for memory: {missing.message}", ADVICE) from None
        told = f"at the first probe that needs memory the guest runs until its kernel has lent {SIZE >> 10} KiB"
        return Room((CODE,), DATA, FILL, journal=JOURNAL, borrow=self.borrow, told=f"{why}; {told}")

    def borrow(self) -> Room:
        """Run the guest until its kernel has lent memory. Raises OptprobeError, nothing left but what it tells."""
        functions = self._functions()
        tables = filler.page_tables(self.machine, self.kernel)
        caller = self._caller(tables)
        caller.reach(TIMEOUT)
        area = caller.call(functions[ALLOCATES[0]], (SIZE,), CALL)
        if not area:
            raise NoFiller(f"this guest's kernel has no {SIZE >> 10} KiB to lend", ADVICE)
        try:
            caller.call(functions[FILLS], (area, FILL, SIZE), CALL)
            caller.call(functions[PROTECTS], (area + CODE[0] - DATA_AT, _protected()), CALL)
            # The tables of the thread that runs now: the guest has run.
            tables = filler.page_tables(self.machine, self.kernel)
            mapping = self._mapping(area, tables)
        except OptprobeError as error:
            if not (isinstance(error, CallFailed) and error.unfinished):
                self._free(caller, area)
            raise
        return self._lent(Loan(area, SIZE), mapping)

    def _lent(self, loan: Loan, mapping: tuple[PhysicalPatch, ...]) -> Room:
        alias = loan.area + JOURNAL[0] - DATA_AT
        return Room(
            (CODE,),
            DATA,
            FILL,
            take=lambda: physical.apply(mapping, self.machine),
            give_back=lambda: self.repay(loan, mapping),
            stands=lambda: physical.stand(mapping, self.machine),
            mapping=mapping,
            # Before the window is there, too.
            journal=(alias, alias + JOURNAL[1] - JOURNAL[0]),
            loan=loan,
        )

    def place(self) -> Room | None:
        """What an earlier session was lent, whatever it holds now; None where the window is not one of a loan."""
        tables = filler.page_tables(self.machine, self.kernel)
        found = [translate(self.machine.read_physical, tables.roots[0], at, la57=tables.la57) for at in _corners()]
        never = tables.no_execute
        rights = [(each.writable, each.executable) if each is not None else None for each in found]
        if rights != [(True, not never)] * 2 + [(False, True)] * 2 + [(False, not never)] * 2:
            return None
        return Room((CODE,), DATA, FILL, journal=JOURNAL, repay=self.repay)

    def repay(self, loan: Loan, mapping: Sequence[PhysicalPatch]) -> None:
        """Give the memory back. Raises StaysLent, or OptprobeError with nothing changed."""
        functions = self._functions()
        caller = self._caller(filler.page_tables(self.machine, self.kernel))
        caller.reach(TIMEOUT)
        # The entry that leads to the window alone: the tables are the kernel's to write to, once they are freed.
        physical.undo(mapping[-1:], self.machine)
        try:
            caller.call(functions[FLUSHES], (), CALL)
            self._free(caller, loan.area)
        except OptprobeError as error:
            why = f"{loan.size >> 10} KiB of the guest's memory stay lent, used by nothing: {error.message}"
            raise StaysLent(why) from None

    def _free(self, caller: Caller, area: int) -> None:
        functions = self._functions()
        caller.call(functions[UNPROTECTS], (area + CODE[0] - DATA_AT, _protected()), CALL)
        caller.call(functions[FREES], (area,), CALL)

    # what it takes -------------------------------------------------------------------------------------------------

    def _functions(self) -> dict[str, int]:
        """The kernel's, by name. Raises NoFiller."""
        found: dict[str, int] = {}
        for names in (ALLOCATES, (FILLS,), (PROTECTS,), (UNPROTECTS,), (FLUSHES,), (FREES,)):
            at = next((at for name in names if (at := self.kernel.symbols.address(name)) is not None), None)
            if at is None:
                raise NoFiller(f"it has no function {names[0]}")
            found[names[0]] = at
        return found

    @property
    def _points(self) -> SafePoints:
        return SafePoints(self.machine, self.kernel, self.vcpus)

    def _caller(self, tables: Tables) -> Caller:
        place = padding(self.machine, self.kernel, tables)
        return Caller(self.machine, self.kernel.memory, CALLING, self._points, place)

    def _direct(self, tables: Tables) -> int:
        """Where the direct map begins, as the text's frame proves. Raises NoFiller."""
        known = self.kernel.symbols.address("page_offset_base")
        bases = ((self.kernel.word(known),) if known is not None else ()) + DIRECT_MAPS
        frame = self._frame(self.kernel.address("_stext"), tables)
        for base in bases:
            found = translate(self.machine.read_physical, tables.roots[0], base + frame, la57=tables.la57)
            if found is not None and found.frame_of(base + frame) == frame:
                return base
        raise NoFiller("where its direct map is cannot be told")

    def _frame(self, address: int, tables: Tables) -> int:
        found = translate(self.machine.read_physical, tables.roots[0], address, la57=tables.la57)
        if found is None:
            raise NoFiller(f"{address:#x} is not mapped")
        return found.frame_of(address)

    # the window ----------------------------------------------------------------------------------------------------

    def _mapping(self, area: int, tables: Tables) -> tuple[PhysicalPatch, ...]:
        """What makes the window of what was lent, in order. Raises NoFiller unless the code cannot be written."""
        read = _by_page(self.machine.read_physical)
        direct = self._direct(tables)
        frames: list[int] = []
        for at in range(area, area + SIZE, PAGE):
            found = translate(read, tables.roots[0], at, la57=tables.la57)
            if found is None:
                raise NoFiller("what this guest's kernel has lent is not mapped")
            frame = found.frame_of(at)
            frames.append(frame)
            alias = translate(read, tables.roots[0], direct + frame, la57=tables.la57)
            is_code = CODE[0] <= at - area + DATA_AT < END
            if is_code and (found.writable or (alias is not None and alias.writable)):
                raise NoFiller("the kernel did not make the memory that it lent read-only")
        never = NO_EXECUTE if tables.no_execute else 0
        *pages, last, middle = frames
        entries = [
            page_entry(frame, writable=at < CODE[0], executable=not never or CODE[0] <= at < CODE[1])
            for at, frame in zip(range(DATA_AT, END, PAGE), pages, strict=True)
        ]
        filled = bytes([FILL]) * PAGE
        leads = {DATA_AT >> 21 & ENTRIES - 1: table_entry(last)}
        hole = filler.unused(tables, self.machine.read_physical)
        return (
            PhysicalPatch(last, filled, filler.table_of(dict(enumerate(entries)))),
            PhysicalPatch(middle, filled, filler.table_of(leads)),
            PhysicalPatch(hole, bytes(8), table_entry(middle).to_bytes(8, "little")),
        )


def padding(machine: Machine, kernel: Kernel, tables: Tables) -> Range:
    """Return padding of the text for a thunk, mapped as text is. Raises NoFiller."""
    used = False
    for start, stop in _paddings(kernel):
        mapped = translate(machine.read_physical, tables.roots[0], start, la57=tables.la57)
        if mapped is None or not mapped.executable:
            continue
        held = kernel.read(start, stop)
        for at in range(0, len(held) - CALLING.size + 1, CALLING.size):
            if held[at : at + CALLING.size] in (bytes(CALLING.size), bytes([FILL]) * CALLING.size):
                return start + at, start + at + CALLING.size
            used = True
    raise NoFiller("padding of its text is in use" if used else "its text has no padding for the code of a call")


def _paddings(kernel: Kernel) -> Iterator[Range]:
    """Where there may be some: behind the text, in its last page; what the linker fills before an aligned section."""
    begin, end = kernel.address("_stext"), kernel.address("_etext")
    yield -(-end // BESIDE) * BESIDE + BESIDE, -(-end // PAGE) * PAGE
    for page in range(-(-begin // PAGE) * PAGE + PAGE, end, PAGE):
        found = kernel.symbols.at(page)
        if found is None or found.offset:
            continue
        before = kernel.read(page - SOUGHT, page)
        filled = len(before) - len(before.rstrip(bytes([FILL])))
        start = -(-(page - filled) // BESIDE) * BESIDE + BESIDE
        if start + CALLING.size <= page:
            yield start, page


def _protected() -> int:
    """Pages of code and journal."""
    return CODE_PAGES + JOURNAL_PAGES


def _corners() -> tuple[int, ...]:
    """The first and the last page of data, code and journal."""
    return tuple(at for start, end in (DATA, CODE, JOURNAL) for at in (start, end - PAGE))


def _by_page(read_physical: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """Page tables are read once each."""

    @cache
    def page(at: int) -> bytes:
        return read_physical(at, PAGE)

    return lambda address, size: page(address & -PAGE)[address % PAGE : address % PAGE + size]
