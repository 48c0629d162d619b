"""The arena of a Linux guest: found in its memory, taken, given back; adopted from an earlier GDB by its journal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import LONGEST, ArenaContents, restoring_patches
from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Room, Say, StillLent
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.isa.record import slot_unit
from gdb_optprobe.probes.arena_record import NOTHING, RecordedArena, encode_room, find_arena
from gdb_optprobe.probes.arena_source import given_arena
from gdb_optprobe.probes.lent_pages import LentPages
from gdb_optprobe.probes.settings import ArenaRanges, Settings
from gdb_optprobe.probes.unpatched_text import unpatched

FULL = (
    "the journal in the guest is full: should GDB be killed now, no other GDB can take these probes away, and the "
    "guest must be rebooted; delete all probes, and add fewer"
)


@dataclass
class LinuxArena:
    """See ArenaSource. tell: tells the user a sentence."""

    linux: LinuxGuest
    settings: Callable[[], Settings]
    tell: Say = lambda _: None
    room: Room | None = None
    _arena_found: Arena | None = None
    _journal: Journal = field(default_factory=Journal)
    _took: bool = False
    _earlier: RecordedArena | None = None
    _covered: Sequence[Patch] | None = None
    _asked: bool = False

    def originals(self) -> Mapping[int, bytes]:
        """Return what text held before an earlier GDB changed it, by address. Raises OptprobeError."""
        left = self.left()
        if left is None:
            return {}
        blocks = (pair for block in left.live_blocks for pair in zip(block.sites, block.originals, strict=True))
        return dict(blocks) | {text.address: text.original for text in left.texts}

    def is_in_place(self) -> bool:
        """Return whether the guest has it as it was taken and last changed. Raises Unreadable."""
        return not self._took or self.room is None or (self.room.is_in_place() and self._journal.is_in_place())

    @property
    def keeps_journal(self) -> bool:
        """Whether `is_in_place` notices a snapshot that was loaded meanwhile."""
        return self._took and self.room is not None and self._journal.is_open

    def find(self) -> Arena:
        """Find the user's ranges, else memory that the kernel does not use itself. Raises OptprobeError."""
        self._arena_found = arena = self._found()
        return arena

    @property
    def code(self) -> Sequence[tuple[int, int]]:
        return self._arena_found.ranges.code if self._arena_found is not None else ()

    def _found(self) -> Arena:
        if self.linux.is_booting():
            raise Refused(Refusal.BOOTING.because())
        settings = self.settings()
        if settings.arena is not None:
            self._check_given(settings.arena)
            return given_arena(settings, self.linux.isa)
        earlier = self._look_back()
        if earlier is not None and not _can_finish(earlier):
            return self._adopted(earlier)
        # What an earlier GDB has begun to give back is given back when it is taken: nothing is changed here.
        self.room = room = self._room() if earlier is None else earlier.room
        start, end = room.journal
        self._journal = Journal()
        if start < end:
            self._journal = Journal(self.linux.memory, start, end - start, room.fill)
            self._journal.put(Item.ROOM, 0, encode_room(room, self.linux.recovered))
        if room.notice:
            self.tell(room.notice)
        return self._arena(room)

    def _adopted(self, earlier: RecordedArena) -> Arena:
        self.room = earlier.adopt_room(self.linux.machine, self.linux.memory)
        self._journal = earlier.open_journal(self.linux.memory)
        arena = self._arena(self.room, earlier.left)
        arena.adopt(earlier.left, self.linux.memory, self.linux.isa, set(self._handlers()))
        if self.left() is None:
            arena.release_data()
            if not arena.dirty():
                arena.reclaim(lambda slots: ())  # no code may write there
        return arena

    def _room(self) -> Room:
        """Return memory for detours as the kernel has it now. Raises OptprobeError."""
        return self.linux.arch.room(self.linux.machine, self.linux.kernel)

    def _handlers(self) -> Iterator[int]:
        """Yield the kernel's handlers of traps: there may be a branch to our code at their start."""
        for calls in (self.linux.trap_calls, lambda: self.linux.user_kernel.calls):
            try:
                yield calls().handler
            except OptprobeError:
                continue

    def _arena(self, room: Room, left: ArenaContents = NOTHING) -> Arena:
        self._journal.when_full = lambda: self.tell(FULL)
        bounds = left.bounds
        ranges = Ranges((*room.code, *bounds.lent_code), (room.data, *bounds.more), room.fill)
        isa = self.linux.isa
        arena = Arena(ranges, isa.alignment, self._journal, own=len(room.code), unit=slot_unit(isa))
        arena.lender = LentPages(
            self.linux, arena, self.settings, self.tell, self._can_change, list(left.lent)
        )
        return arena

    def _can_change(self, table: int) -> bool:
        """Return whether the arena's page tables are in place though others write entries of this one."""
        mapping = self.room.mapping if self.room is not None else ()
        return any(one.changes and one.address <= table < one.address + len(one.new) for one in mapping)

    def left(self) -> ArenaContents | None:
        """Probes of an earlier GDB, or of a snapshot; None where there are none, or not any more. Raises OptprobeError.
        """
        if self._took or self.linux.is_booting():
            return None
        self._asked, self._covered = False, ()
        earlier = self._look_back()
        if earlier is None:
            return None
        left = earlier.left
        texts, _ = restoring_patches(left, self.linux.memory, self.linux.isa)
        self._covered = sorted((text.reverse for text in texts), key=_address_of)
        return left if left.probes or left.users or left.live_blocks or left.lent or left.events or texts else None

    def uncovered(self, address: int, data: bytes) -> bytes:
        """Return `data`, read at `address`, with the bytes under branches of an earlier GDB that are still there."""
        if self._covered is None:
            try:
                self.left()
            except OptprobeError:
                self._covered = ()
        covered = self._covered or ()
        first = bisect_left(covered, address - LONGEST, key=_address_of)
        last = bisect_left(covered, address + len(data), key=_address_of)
        return unpatched(data, address, [patch for patch in covered[first:last] if _stands(patch, address, data)])

    def _look_back(self) -> RecordedArena | None:
        if not self._asked:
            of = self.linux
            self._earlier = find_arena(of.machine, of.memory, of.kernel, of.arch, of.recovered, of.isa)
            self._asked = True
        return self._earlier

    def _check_given(self, arena: ArenaRanges) -> None:
        """Raises Refused where the user's ranges hold functions of the kernel's."""
        for start, end in (arena.code, arena.data):
            owned = next((at for at in (start, end - 1) if self.linux.text.function(at) is not None), None)
            if owned is not None:
                why = f"{self.linux.text.spell(owned)} is code of the kernel's own"
                raise Refused(Refusal.ARENA_MISSING.because(why=why))

    def take(self) -> None:
        """Make what `find` found ready for use: page tables, say. Another GDB knows of it before."""
        if self.room is None:
            return
        if self.room.borrow is not None:
            self._borrow(self.room.borrow)
            return
        if self._earlier is not None and _can_finish(self._earlier):
            self._finish(self._earlier)
        self._journal.begin()
        try:
            self.room.take()
        except OptprobeError:
            self._journal.clear()
            raise
        self._took = True
        self.linux.memory.forget()

    def finish(self) -> bool:
        if self._took or self.linux.is_booting() or (earlier := self._look_back()) is None:
            return False
        if not _can_finish(earlier):
            return earlier.loan is None
        self._clear(earlier)
        return False

    def _clear(self, earlier: RecordedArena) -> None:
        earlier.clear(self.linux.machine, self.linux.memory)
        self.linux.memory.forget()
        self._earlier = None

    def _finish(self, earlier: RecordedArena) -> None:
        """Give back what an earlier GDB had begun to, and take the same memory anew. Raises OptprobeError."""
        self._clear(earlier)
        room = self._room()
        if (room.code, room.data, room.journal) != (earlier.room.code, earlier.room.data, earlier.room.journal):
            raise OptprobeError("the memory for detours of an earlier GDB is not free", "connect anew, then try again")
        self.room = room
        self._journal.put(Item.ROOM, 0, encode_room(room, self.linux.recovered))

    def lends(self) -> bool:
        """Return whether `take` would run the guest, so that its kernel lends memory."""
        return self.room is not None and self.room.borrow is not None

    def _borrow(self, borrow: Callable[[], Room]) -> None:
        """Borrow memory as `take` does. The journal has the loan before the window is mapped."""
        self.tell("the guest runs until its kernel has lent memory for detours")
        room = borrow()
        self.linux.forget()
        self._journal.put(Item.ROOM, 0, encode_room(room, self.linux.recovered))
        try:
            self._journal.begin_at(room.journal[0])
            room.take()
        except OptprobeError as error:
            self._journal.lose()
            try:
                room.give_back()
            except OptprobeError as stays:
                raise OptprobeError(f"{error.message}; {stays.message}", error.hint or stays.hint) from error
            raise
        self.room, self._took = room, True
        self.linux.memory.forget()

    def give_back(self) -> None:
        """Restore the page tables: no detour is in the memory. Raises OptprobeError where a loan stays."""
        if self._took and self.room is not None and self.room.loan is not None:
            self._repay(self.room)
            return
        room, self.room, self._took, self._earlier = self.room, None, False, None
        if room is not None:
            room.give_back()
            self._journal.clear()
            self.linux.memory.forget()

    def _repay(self, room: Room) -> None:
        """Run the guest to give the memory back, the journal with it."""
        try:
            room.give_back()
        except StillLent as stays:
            self.tell(stays.message)
        self.room, self._took, self._earlier, self._journal = None, False, None, Journal()
        self.linux.forget()


def _can_finish(earlier: RecordedArena) -> bool:
    """Return whether it can be given back without the guest: nothing is in it, and its kernel has lent nothing."""
    return earlier.is_empty and earlier.loan is None


def _address_of(patch: Patch) -> int:
    return patch.address


def _stands(patch: Patch, address: int, data: bytes) -> bool:
    """Return whether `data`, read at `address`, has all of a patch's bytes that are among it."""
    start, end = max(patch.address, address), min(patch.end, address + len(data))
    return start < end and data[start - address : end - address] == patch.new[start - patch.address :][: end - start]
