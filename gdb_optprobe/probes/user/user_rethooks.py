"""Calls of user functions that return probes see: their table in the guest, and the trampolines they return to.

    trap at the entry ─► a slot of the table, return address := the program's trampoline
    trap there        ─► the slot ─► code of the function's return probes ─► where the call returns to
A trampoline is a trap in bytes of the program that are nobody's, one for all functions. What nobody probes any more
goes once no call is under way that was seen entered: a thread may be at its trampoline at any time, even in the frame
of a signal, so nobody but the guest takes a call for over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item, TableKind
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.mm_hooks import MmHooks
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user_kernel import ReturnKernel
from gdb_optprobe.handlers import lower_user_returns
from gdb_optprobe.handlers.lower_user_returns import FunctionContext, PlacedUserCallTable
from gdb_optprobe.isa.base import Code, ReadMemory
from gdb_optprobe.maps.aggregate import encode
from gdb_optprobe.maps.trap_table import Key
from gdb_optprobe.maps.user_call_table import (
    ACTIVE,
    CODE,
    COUNTERS_SIZE,
    CallCounters,
    UserCallSlot,
    UserCallTableLayout,
    initial_counters,
)
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.hooks import NOT_INSTALLED, InstalledBytes
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.return_program import return_handler
from gdb_optprobe.probes.user import trap_records
from gdb_optprobe.probes.user.mapped_text import TextChange
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_records import TrapRecord
from gdb_optprobe.probes.user.uprobe_stops import UprobeStops
from gdb_optprobe.probes.user.uprobe_traps import UprobeTraps
from gdb_optprobe.probes.user.uretprobe import SLOT_ADDRESS, entry_code, uretprobe_parts
from gdb_optprobe.probes.user.xol import XolSlots

LAYOUT = UserCallTableLayout(1024)
PAGE = 4096
KeptTrampolines = Sequence[tuple[TrapRecord, Program]]
"""Trampolines of an earlier GDB's, and what they are in."""


@dataclass
class UserRethook:
    """A function with return probes, or that had some. counts: where its calls are counted.

    installed: code that their return comes to; retired: code that earlier calls may return to.
    probe_numbers: of the probes that it runs.
    """

    program: Program
    address: int
    counts: Slot
    installed: InstalledDetour | None = None
    probe_numbers: tuple[int, ...] = ()
    retired: list[InstalledDetour] = field(default_factory=list)

    def retire(self) -> None:
        """Calls are not entered any more, with what was placed."""
        if self.installed is not None:
            self.retired.append(self.installed)
        self.installed, self.probe_numbers = None, ()


@dataclass
class _Trampoline:
    """address: in the program. record: its number in the journal. is_installed: whether processes that come get it."""

    program: Program
    address: int
    original: bytes
    record: int
    code: InstalledDetour
    is_installed: bool = False

    @property
    def key(self) -> Key:
        return self.program.offset(self.address), self.program.inode


@dataclass
class _Installed:
    """In the guest. memory: the table. codes, calls: what the kernel comes to before it copies and ends spaces."""

    table: PlacedUserCallTable
    memory: Slot
    codes: tuple[InstalledDetour, ...]
    patches: tuple[Patch, ...]


@dataclass
class UserRethooks:
    """functions: with return probes, by program and address. retired: without, which calls may still return from."""

    guest: Guest
    traps: UprobeTraps
    stops: UprobeStops
    xol_slots: XolSlots
    next_record: Callable[[], int]
    functions: dict[tuple[int, int], UserRethook] = field(default_factory=dict)
    retired: list[UserRethook] = field(default_factory=list)
    _installed: _Installed | None = None
    _read_at_stop: Sequence[UserCallSlot] = ()
    _trampolines: dict[int, _Trampoline] = field(default_factory=dict)

    # calls are seen --------------------------------------------------------------------------------------------------

    def install_entry(
        self, program: Program, address: int, probes: Sequence[Probe], user: UserTarget, arena: Arena
    ) -> Code:
        """What runs at a trap on the function's entry, all that it leads to in the guest. Raises OptprobeError."""
        kernel = user.kernel.returning()
        there = self._install(kernel, user, arena)
        trampoline = self._install_trampoline(program, kernel, user, arena)
        function = self._install_return_code(program, address, probes, kernel, user, arena)
        assert function.installed is not None, "just served"
        bounds = [probe.spec.maxactive for probe in probes]
        way = FunctionContext(
            function.counts.address,
            function.installed.detour.address,
            trampoline.address - address - user.kernel.isa.behind,
            program.bits // 8,
            max(bounds) if all(bounds) else LAYOUT.slots,
        )
        return entry_code(there.table, way, probes, user, self.traps.writable, self.guest)

    def release(self, program: Program, address: int) -> None:
        """The function has no return probe any more."""
        function = self.functions.pop((program.inode, address), None)
        if function is not None:
            function.retire()
            self.retired.append(function)

    def retire(self, program: Program, address: int) -> None:
        """All of its return probes are switched off."""
        if (function := self.functions.get((program.inode, address))) is not None:
            function.retire()

    @property
    def has_retired(self) -> bool:
        """Whether there is something that nobody probes any more."""
        return bool(self.retired) or (self._installed is not None and not self.functions)

    def read_counts(self, function: UserRethook) -> CallCounters:
        return CallCounters.decode(self.guest.machine.read(function.counts.address, COUNTERS_SIZE))

    def active_calls(self) -> Sequence[UserCallSlot]:
        """All calls that have a slot."""
        there = self._installed
        return list(LAYOUT.calls(self.guest.machine.read(there.memory.address, LAYOUT.size))) if there else ()

    # what an earlier GDB has left ------------------------------------------------------------------------------------

    def has_active_calls(self, table: int, arena: Arena) -> bool:
        """Whether calls may return to a trampoline whose calls are in `table`."""
        self.guest.step_out(arena.ranges.code)
        return any(LAYOUT.calls(self.guest.machine.read(table, LAYOUT.size)))

    def adopt_trampolines(self, kept: KeptTrampolines, user: UserTarget, arena: Arena) -> Mapping[Key, int]:
        """Code that calls return to which an earlier GDB saw entered; nothing leads there yet. Raises OptprobeError."""
        kernel = user.kernel.returning()
        found: dict[Key, int] = {}
        for trap, program in kept:
            table = PlacedUserCallTable(LAYOUT, trap.calls, kernel.mm)
            made = self._place_trampoline(program, trap.address, trap.original, table, kernel, user, arena)
            self._trampolines[program.inode] = made
            found[made.key] = made.code.detour.address
        return found

    def has_trampoline(self, program: Program) -> bool:
        """Whether calls may return to a trap of ours in it."""
        return program.inode in self._trampolines

    def adopt_table(self, kept: KeptTrampolines, standing: InstalledBytes, user: UserTarget, arena: Arena) -> None:
        """The table of these calls is ours from now on. Raises OptprobeError."""
        (table,) = {trap.calls for trap, _ in kept}
        memory = arena.adopt_table(TableKind.USER_CALLS, lambda size: size >= LAYOUT.size)
        if memory is None or memory.address != table:
            memory = Slot(table, LAYOUT.size)
        self._install(user.kernel.returning(), user, arena, memory, standing)

    def adopt_calls(self, kept: KeptTrampolines, user: UserTarget, arena: Arena) -> None:
        """Calls that were taken over return to code of ours, whatever their functions' was. Raises OptprobeError."""
        if not kept:
            return
        kernel, there = user.kernel.returning(), self._installed
        traps, near = user.kernel.isa, user.kernel.calls.handler
        assert there is not None, "taken over"
        hooks.record(there.patches, arena)
        for trap, program in kept:
            trap_records.write_trap(self._trampolines[program.inode].record, trap, arena.journal)
            function = self._create_function(program, trap.address, near, arena)
            self.retired.append(function)
            code = lower_user_returns.returning(function.counts.address, (), traps, kernel.isa)
            function.retired.append(self.traps.install_or_reuse(code, near, arena))
            spaces = {space.mm for space in user.texts.spaces(program.file)}
            self._redirect_calls(there, function, spaces if trap is not kept[-1][0] else None)

    def _redirect_calls(self, there: _Installed, function: UserRethook, spaces: Collection[int] | None) -> None:
        """Calls in these spaces, or in all, return to the function's code and are counted there."""
        active = 0
        taken = {function.counts.address for function in self.retired}
        for at, call in LAYOUT.places(self.guest.machine.read(there.memory.address, LAYOUT.size)):
            if call.point not in taken and (spaces is None or call.mm in spaces):
                words = encode((function.retired[-1].detour.address, function.counts.address))
                self.guest.machine.write(there.memory.address + at + CODE, words)
                active += 1
        self.guest.machine.write(function.counts.address + ACTIVE, encode((active,)))

    @property
    def memory(self) -> tuple[Slot, ...]:
        """That of the table."""
        return (self._installed.memory,) if self._installed is not None else ()

    def read_calls_if_hidden(self, read: ReadMemory) -> None:
        """The guest was stopped: what `back` will not be able to read is read now."""
        self._read_at_stop = ()
        if self._installed is not None and (self.functions or self.retired):
            try:
                read(self._installed.memory.address, 1)
            except Unreadable:
                self._read_at_stop = self.active_calls()

    def return_address(self, pc: int, sp: int, read: ReadMemory) -> int | None:
        """Where a call really returns that has returned to `pc`; None where that is no trampoline, or not known.

        read: raises Unreadable where the kernel's memory is not seen.
        """
        places: dict[int, int] = {}
        for call in self._matching_calls(pc, sp, read):
            if places.get(call.mm, pc) == pc:  # by tail calls it returns there more than once
                places[call.mm] = call.back
        found = {*places.values()}
        return found.pop() if len(found) == 1 else None

    def _matching_calls(self, pc: int, sp: int, read: ReadMemory) -> Iterator[UserCallSlot]:
        """Those that may be it, the newest of a space first."""
        if pc >> 63 or not any(one.address - pc & PAGE - 1 == 0 for one in self._trampolines.values()):
            return
        isa = self.guest.user_kernel.returning().isa
        sizes = {one.program.bits // 8 for one in self._trampolines.values()}
        at = {sp - isa.popped(size) for size in sizes}
        yield from (call for call in self._read_calls(read) if call.trampoline == pc and call.at in at)

    def _read_calls(self, read: ReadMemory) -> Sequence[UserCallSlot]:
        if self._installed is None:
            return ()
        try:
            return list(LAYOUT.calls(read(self._installed.memory.address, LAYOUT.size)))
        except Unreadable:
            return self._read_at_stop

    # in the guest ----------------------------------------------------------------------------------------------------

    def _install(
        self,
        kernel: ReturnKernel,
        user: UserTarget,
        arena: Arena,
        old: Slot | None = None,
        standing: InstalledBytes = NOT_INSTALLED,
    ) -> _Installed:
        """old: a table that there is already."""
        if self._installed is not None:
            return self._installed
        traps = user.kernel.isa
        memory = old or self._reserve_table(kernel, arena)
        if old is None:
            self.guest.machine.write(memory.address, LAYOUT.initial())
        table = PlacedUserCallTable(LAYOUT, memory.address, kernel.mm)
        placed: list[InstalledDetour] = []
        patches: list[Patch] = []
        machine = self.guest.isa.codegen
        try:
            placed.append(self._install_hook_code(kernel.copied, lambda at: kernel.shared, arena))
            shared = placed[0].detour.address
            routines = (
                (
                    kernel.copied,
                    lower_user_returns.lower_space_copied(table, shared, kernel.copied.to, kernel.isa, machine),
                ),
                (kernel.ended, lower_user_returns.lower_space_ended(table, kernel.ended.to, traps, kernel.isa)),
            )
            for calls, code in routines:
                placed.append(self._install_hook_code(calls, code, arena))
                patches += [self._hook_patch(calls, placed[-1], number) for number in range(len(calls.calls))]
            hooks.install(patches, self.guest, arena, standing)
        except OptprobeError:
            for one in placed:
                one.release(self.guest, arena, reached=False)
            arena.release_table(TableKind.USER_CALLS, memory)
            raise
        self._installed = _Installed(table, memory, tuple(placed), tuple(patches))
        return self._installed

    def _reserve_table(self, kernel: ReturnKernel, arena: Arena) -> Slot:
        """Memory for one: an earlier session's holds no call. Raises Refused."""
        found = arena.adopt_table(TableKind.USER_CALLS, lambda size: size == LAYOUT.size)
        if found is not None:
            if not any(LAYOUT.calls(self.guest.machine.read(found.address, LAYOUT.size))):
                return found
            arena.release_table(TableKind.USER_CALLS, found)
        reach = self.guest.isa.data_reach
        return arena.allocate_table(TableKind.USER_CALLS, LAYOUT.size, kernel.copied.to, reach)

    def _install_hook_code(self, calls: MmHooks, code: Code, arena: Arena) -> InstalledDetour:
        return InstalledDetour.install_or_reuse(
            calls.to, lambda at: Detour(at, code(at), calls.to, ()), self.guest, arena
        )

    def _hook_patch(self, calls: MmHooks, to: InstalledDetour, number: int) -> Patch:
        call = calls.calls[number]
        return Patch(call.address, call.data, self.guest.isa.redirect(call, to.detour.address))

    def _install_trampoline(
        self, program: Program, kernel: ReturnKernel, user: UserTarget, arena: Arena
    ) -> _Trampoline:
        """The program's trampoline, in every process that runs it. Raises OptprobeError."""
        traps = user.kernel.isa
        found = self._trampolines.get(program.inode)
        if found is None:
            address = self.xol_slots.reserve_trampoline(program, traps.trap, user.programs)
            original = program.text(address, len(traps.trap))
            found = self._create_trampoline(program, address, original, kernel, user, arena)
        if found.is_installed:
            return found
        user.texts.install(program, {found.address: traps.trap}, first=True)
        found.is_installed = True
        return found

    def _create_trampoline(
        self, program: Program, address: int, original: bytes, kernel: ReturnKernel, user: UserTarget, arena: Arena
    ) -> _Trampoline:
        """Have a trap there find the call that returns. Raises OptprobeError."""
        there = self._installed
        assert there is not None, "begin"
        found = self._place_trampoline(program, address, original, there.table, kernel, user, arena)
        try:
            self.traps.dispatcher.set_code(found.key, found.code.detour.address)
        except OptprobeError:
            found.code.release(self.guest, arena, reached=False)
            raise
        trap = TrapRecord(program.file, address, original, there.memory.address)
        trap_records.write_trap(found.record, trap, arena.journal)
        self._trampolines[program.inode] = found
        return found

    def _place_trampoline(
        self,
        program: Program,
        address: int,
        original: bytes,
        table: PlacedUserCallTable,
        kernel: ReturnKernel,
        user: UserTarget,
        arena: Arena,
    ) -> _Trampoline:
        """With code that nothing leads to yet. Raises Refused."""
        traps, handler = user.kernel.isa, user.kernel.calls.handler
        self.xol_slots.adopt_trampoline(program, address)
        code = lower_user_returns.lower_call_returned(table, program.bits // 8, handler, traps, kernel.isa)
        placed = self.traps.install_or_reuse(code, handler, arena)
        return _Trampoline(program, address, original, self.next_record(), placed)

    def _create_function(self, program: Program, address: int, near: int, arena: Arena) -> UserRethook:
        """With nothing counted yet. Raises Refused."""
        counts = arena.allocate_data(COUNTERS_SIZE, near, self.guest.isa.data_reach)
        self.guest.machine.write(counts.address, initial_counters(program.bits // 8))
        return UserRethook(program, address, counts)

    def _install_return_code(
        self,
        program: Program,
        address: int,
        probes: Sequence[Probe],
        kernel: ReturnKernel,
        user: UserTarget,
        arena: Arena,
    ) -> UserRethook:
        """Have the function's calls that are entered from now on return to code for `probes`. Raises OptprobeError."""
        near, traps = user.kernel.calls.handler, user.kernel.isa
        function = self.functions.get((program.inode, address))
        if function is None:
            function = self._create_function(program, address, near, arena)
            self.functions[program.inode, address] = function
        wanted = tuple(probe.number for probe in probes)
        if function.probe_numbers != wanted:
            dead = lower_user_returns.dead_at_return(traps, kernel.isa)
            programs = []
            # Who stops does it when the others have counted.
            for probe, part in sorted(
                zip(probes, uretprobe_parts(probes), strict=True), key=lambda one: one[0].handler.stops
            ):
                handler = return_handler(probe.handler, part, SLOT_ADDRESS, kernel.isa.slot)
                programs.append(self.stops.code(probe, handler, dead, user, arena))
            code = lower_user_returns.returning(function.counts.address, programs, traps, kernel.isa)
            placed = self.traps.install_code(code, near, arena)
            function.retire()
            function.installed, function.probe_numbers = placed, wanted
        return function

    # what nobody probes any more -------------------------------------------------------------------------------------

    def tidy(self, user: UserTarget, arena: Arena) -> bool:
        """What no call needs any more goes, where nobody can be in it; whether nothing is left.

        Raises OptprobeError.
        """
        if self._installed is None:
            return True
        some = [function for function in (*self.functions.values(), *self.retired) if function.retired]
        idle = [one for one in self._trampolines.values() if not self._is_probed(one.program)]
        if not (some or self.retired or idle) and self.functions:
            return False
        inside = [
            *self.traps.ranges, *((one.address, one.end) for one in arena.retired)
        ]
        if not hooks.is_quiescent(inside, self.guest, arena.ranges.code):
            return False
        calls = self.active_calls()
        codes, points = {call.code for call in calls}, {call.point for call in calls}
        if any(call.at is None for call in calls):
            return False
        for function in some:
            for one in [one for one in function.retired if one.detour.address not in codes]:
                one.release(self.guest, arena, reached=True)
                function.retired.remove(one)
        for function in [one for one in self.retired if one.counts.address not in points]:
            arena.data.release(function.counts)
            self.retired.remove(function)
        for trampoline in idle:
            self._remove_trampoline(trampoline, user, arena)
        if self.functions or self.retired or self._trampolines or calls:
            return False
        self._remove(arena)
        return True

    def _is_probed(self, program: Program) -> bool:
        return any(function.program.inode == program.inode for function in self.functions.values())

    def _remove_trampoline(self, one: _Trampoline, user: UserTarget, arena: Arena) -> None:
        """No call is entered any more that returns there; it goes once none does."""
        if one.is_installed:
            user.texts.retain(one.program, [one.address])
            one.is_installed = False
        if any(function.program.inode == one.program.inode for function in self.retired):
            return
        user.texts.revert(one.program, [TextChange(one.address, one.original, user.kernel.isa.trap)])
        self.traps.dispatcher.clear(one.key)
        one.code.release(self.guest, arena, reached=True)
        arena.journal.drop(Item.USER, one.record)
        del self._trampolines[one.program.inode]

    def _remove(self, arena: Arena) -> None:
        there, self._installed = self._installed, None
        assert there is not None, "begin"
        hooks.remove(there.patches, self.guest, arena)
        for one in there.codes:
            one.release(self.guest, arena, reached=True)
        arena.release_table(TableKind.USER_CALLS, there.memory)

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        self.functions.clear()
        self.retired.clear()
        self._trampolines.clear()
        self._installed = None

    @property
    def patches(self) -> Iterator[Patch]:
        """What was written into the kernel's text."""
        yield from self._installed.patches if self._installed is not None else ()
