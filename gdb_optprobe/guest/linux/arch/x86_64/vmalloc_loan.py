"""Memory for detours that the guest's kernel lends, where its text has no filler: a native call of `vmalloc`.

    vmalloc ──► area, 514 pages ──► memset ──► set_memory_ro on code and journal, and so on their direct map's aliases
                  └─ frames ──► PTE table ──► PMD table ──► level3_kernel_pgt[509]: the window
    window  0xffffffff7fe00000 │ data 192: writable │ code 256: executable │ journal 64         │ 0xffffffff80000000
    area                       │ data               │ code: read-only      │ journal: read-only │ PTE │ PMD │
The frames appear a second time in the unused 2 GiB below the kernel, within reach of kernel and modules, as in
image_padding.py for data. No mapping is writable and executable: code is mapped to be run only when no mapping of
it can be written any more. The window's journal tells of the area, so that another GDB gives it back: the
window's one entry of 8 bytes is cleared, the guest flushes all translations (`flush_tlb_all`), the code becomes
writable, `vfree`.

A GDB that is killed in the middle of the calls leaves a note of the area (padding.py) and a thunk that nothing leads
to; the guest runs on. The next loan removes the thunk once no thread can be in it, and gives back the area.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.base import Loan, Room, StillLent
from gdb_optprobe.guest.linux.arch.x86_64 import image_padding, padding, stacks
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import (
    ADVICE,
    DATA_AT,
    FILL,
    LARGE_PAGE,
    PAGE,
    NoPadding,
    Tables,
)
from gdb_optprobe.guest.linux.arch.x86_64.padding import Slot
from gdb_optprobe.guest.linux.arch.x86_64.paging import NO_EXECUTE, page_entry, table_entry, translate
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import by_page
from gdb_optprobe.guest.native_call import Caller, CallFailed
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.calling import CALLING

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
LEAVING = 5.0
"""Seconds in which a thread is to be reached that gives memory back."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """Borrows memory from a guest's kernel, and gives it back."""

    machine: Machine
    kernel: Kernel
    vcpus: Vcpus

    # a loan --------------------------------------------------------------------------------------------------------

    def room(self, why: str) -> Room:
        """Return what would be lent, without changing the guest. Raises NoPadding where nothing can be.
        why: why there is no other memory, in words.
        """
        tables = image_padding.page_tables(self.machine, self.kernel)
        try:
            self._functions()
            padding.free_slot(self.machine, self.kernel, tables)
            image_padding.unused(tables, self.machine.read_physical)
            self._direct(tables)
            if not self._points.points():
                raise NoPadding("this kernel has no function at which it could be called")
        except NoPadding as missing:
            raise NoPadding(f"{why}; and the kernel cannot be asked for memory: {missing.message}", ADVICE) from None
        notice = f"at the first probe that needs memory the guest runs until its kernel has lent {SIZE >> 10} KiB"
        return Room((CODE,), DATA, FILL, journal=JOURNAL, borrow=self.borrow, notice=f"{why}; {notice}")

    def borrow(self) -> Room:
        """Run the guest until its kernel has lent memory. Raises OptprobeError; it names memory that stays lent, if
        any.
        """
        functions, tables = self._functions(), image_padding.page_tables(self.machine, self.kernel)
        image_padding.unused(tables, self.machine.read_physical)
        noted = self._clear_up(tables)
        slot, caller = self._caller(tables)
        caller.reach(TIMEOUT)
        for left in noted:
            padding.wipe_note(self.kernel.memory, left, left.area)
            self._free(caller, left.area)
        area = caller.call(functions[ALLOCATES[0]], (SIZE,), CALL)
        if not area:
            raise NoPadding(f"this guest's kernel has no {SIZE >> 10} KiB to lend", ADVICE)
        padding.write_note(self.kernel.memory, slot, area)
        try:
            caller.call(functions[FILLS], (area, FILL, SIZE), CALL)
            caller.call(functions[PROTECTS], (area + CODE[0] - DATA_AT, _protected()), CALL)
            # An earlier session may have been killed before it flushed translations of the window's old content.
            caller.call(functions[FLUSHES], (), CALL)
            # The guest has run: take the page tables of the thread that runs now.
            mapping = self._mapping(area, image_padding.page_tables(self.machine, self.kernel))
        except OptprobeError as error:
            if not (isinstance(error, CallFailed) and error.unfinished):
                padding.wipe_note(self.kernel.memory, slot, area)
                try:
                    self._free(caller, area)
                except OptprobeError as stays:
                    lost = f"{SIZE >> 10} KiB of the guest's memory stay lent, used by nothing: {stays.message}"
                    raise NoPadding(f"{error.message}; {lost}", error.hint) from error
            raise
        return self._lent(Loan(area, SIZE), mapping, slot)

    def _clear_up(self, tables: Tables) -> Sequence[Slot]:
        """Remove the thunks that earlier sessions left, where no thread can be in them. Return the slots with a note.
        """
        left = [slot for slot in padding.slots(self.machine, self.kernel, tables) if slot.is_left]
        if not left or stacks.missing(self.kernel):
            return ()
        try:
            saved = tuple(stacks.Stacks(self.kernel, self.machine, X86_64.registers).saved())
        except OptprobeError:
            # Some stack is being switched now, so the thunks stay for the next loan.
            return ()
        deserted = [
            slot for slot in left if not any(slot.start <= word < slot.note for one in saved for word in one.words)
        ]
        for slot in deserted:
            padding.wipe_thunk(self.kernel.memory, slot)
        return [slot for slot in deserted if slot.area]

    def _lent(self, loan: Loan, mapping: tuple[PhysicalPatch, ...], slot: Slot) -> Room:
        def take() -> None:
            physical_patch.apply(mapping, self.machine)
            padding.wipe_note(self.kernel.memory, slot, loan.area)

        alias = loan.area + JOURNAL[0] - DATA_AT
        return Room(
            (CODE,),
            DATA,
            FILL,
            take=take,
            give_back=lambda: self.repay(loan, mapping),
            is_in_place=lambda: physical_patch.are_in_place(mapping, self.machine),
            mapping=mapping,
            # Before the window is there, too.
            journal=(alias, alias + JOURNAL[1] - JOURNAL[0]),
            loan=loan,
        )

    def place(self) -> Room | None:
        """Return the memory lent to an earlier session, whatever it holds now; None where the window maps no loan."""
        tables = image_padding.page_tables(self.machine, self.kernel)
        found = [translate(self.machine.read_physical, tables.roots[0], at, la57=tables.la57) for at in _corners()]
        never = tables.no_execute
        rights = [(each.writable, each.executable) if each is not None else None for each in found]
        if rights != [(True, not never)] * 2 + [(False, True)] * 2 + [(False, not never)] * 2:
            return None
        return Room((CODE,), DATA, FILL, journal=JOURNAL, repay=self.repay)

    def repay(self, loan: Loan, mapping: Sequence[PhysicalPatch]) -> None:
        """Give the memory back. Raises StillLent, or OptprobeError with nothing changed."""
        functions, tables = self._functions(), image_padding.page_tables(self.machine, self.kernel)
        slot, caller = self._caller(tables)
        try:
            caller.reach(LEAVING)
        except CallFailed as failed:
            stays = f"{loan.size >> 10} KiB of the guest's memory stay lent, and serve the next GDB: {failed.message}"
            raise CallFailed(stays, failed.hint) from None
        memory = self.kernel.memory
        for noted in padding.slots(self.machine, self.kernel, tables):
            if noted.area == loan.area:
                padding.wipe_note(memory, noted, loan.area)
        padding.write_note(memory, slot, loan.area)
        # Clear only the entry that leads to the window: the tables below it belong to the kernel once they are freed.
        physical_patch.undo(mapping[-1:], self.machine)
        try:
            caller.call(functions[FLUSHES], (), CALL)
            caller.call(functions[UNPROTECTS], (loan.area + CODE[0] - DATA_AT, _protected()), CALL)
            padding.wipe_note(memory, slot, loan.area)
            caller.call(functions[FREES], (loan.area,), CALL)
        except OptprobeError as error:
            why = f"{loan.size >> 10} KiB of the guest's memory stay lent, used by nothing: {error.message}"
            raise StillLent(why) from None

    def _free(self, caller: Caller, area: int) -> None:
        functions = self._functions()
        caller.call(functions[UNPROTECTS], (area + CODE[0] - DATA_AT, _protected()), CALL)
        caller.call(functions[FREES], (area,), CALL)

    # what it takes -------------------------------------------------------------------------------------------------

    def _functions(self) -> dict[str, int]:
        """Return the kernel's functions that a loan calls, by name. Raises NoPadding."""
        found: dict[str, int] = {}
        for names in (ALLOCATES, (FILLS,), (PROTECTS,), (UNPROTECTS,), (FLUSHES,), (FREES,)):
            at = next((at for name in names if (at := self.kernel.symbols.address(name)) is not None), None)
            if at is None:
                raise NoPadding(f"it has no function {names[0]}")
            found[names[0]] = at
        return found

    @property
    def _points(self) -> SafePoints:
        return SafePoints(self.machine, self.kernel, self.vcpus)

    def _caller(self, tables: Tables) -> tuple[Slot, Caller]:
        slot = padding.free_slot(self.machine, self.kernel, tables)
        return slot, Caller(self.machine, self.kernel.memory, CALLING, self._points, slot.thunk)

    def _direct(self, tables: Tables) -> int:
        """Return the start of the direct map, proven by a frame of the text. Raises NoPadding."""
        known = self.kernel.symbols.address("page_offset_base")
        bases = ((self.kernel.word(known),) if known is not None else ()) + DIRECT_MAPS
        frame = self._frame(self.kernel.address("_stext"), tables)
        for base in bases:
            found = translate(self.machine.read_physical, tables.roots[0], base + frame, la57=tables.la57)
            if found is not None and found.frame_of(base + frame) == frame:
                return base
        raise NoPadding("the address of its direct map is not known")

    def _frame(self, address: int, tables: Tables) -> int:
        found = translate(self.machine.read_physical, tables.roots[0], address, la57=tables.la57)
        if found is None:
            raise NoPadding(f"{address:#x} is not mapped")
        return found.frame_of(address)

    # the window ----------------------------------------------------------------------------------------------------

    def _mapping(self, area: int, tables: Tables) -> tuple[PhysicalPatch, ...]:
        """Return the writes, in order, that map the lent area in the window. Raises NoPadding if the code is writable.
        """
        read = by_page(self.machine.read_physical)
        direct = self._direct(tables)
        frames: list[int] = []
        for at in range(area, area + SIZE, PAGE):
            found = translate(read, tables.roots[0], at, la57=tables.la57)
            if found is None:
                raise NoPadding("what this guest's kernel has lent is not mapped")
            frame = found.frame_of(at)
            frames.append(frame)
            alias = translate(read, tables.roots[0], direct + frame, la57=tables.la57)
            is_code = CODE[0] <= at - area + DATA_AT < END
            if is_code and (found.writable or (alias is not None and alias.writable)):
                raise NoPadding("the kernel did not make the memory that it lent read-only")
        never = NO_EXECUTE if tables.no_execute else 0
        *pages, last, middle = frames
        entries = [
            page_entry(frame, writable=at < CODE[0], executable=not never or CODE[0] <= at < CODE[1])
            for at, frame in zip(range(DATA_AT, END, PAGE), pages, strict=True)
        ]
        filled = bytes([FILL]) * PAGE
        hole = image_padding.unused(tables, self.machine.read_physical)
        return (
            PhysicalPatch(last, filled, image_padding.table_of(dict(enumerate(entries)))),
            *image_padding.middle_table(middle, last),
            PhysicalPatch(hole, bytes(8), table_entry(middle).to_bytes(8, "little")),
        )


def _protected() -> int:
    """Return the number of pages of code and journal."""
    return CODE_PAGES + JOURNAL_PAGES


def _corners() -> tuple[int, ...]:
    """Return the first and the last page of data, code and journal."""
    return tuple(at for start, end in (DATA, CODE, JOURNAL) for at in (start, end - PAGE))
