"""The return hooks of programs' functions: one table of all their active calls, and a trampoline in each program.

    trap at the entry ─► a slot of the table, return address := the program's trampoline
    trap there        ─► the slot ─► code of the function's uretprobes ─► the call's own return address
A trampoline is a trap in bytes that the program does not use, one for all functions. Where there is none, a function's
own returns are traps (exits.py), and its calls return whether they have a slot or not. The stacks of programs are not
scanned, as those of the kernel are for kernel_rethooks.py: a thread can come to its trampoline at any time, even from
the frame of a signal. So only code in the guest ends a call: at its return, when a newer call has its stack address,
or at the end of its space. What no probe uses any more is freed when no call in the table has its address.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item, TableKind
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.mm_hooks import MmHooks
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user_kernel import ReturnKernel
from gdb_optprobe.handlers import lower_user_returns
from gdb_optprobe.handlers.lower_user_returns import PlacedUserCallTable, ProbedUserFunction
from gdb_optprobe.isa.base import Code, ReadMemory
from gdb_optprobe.isa.user_returns import Leaving
from gdb_optprobe.maps.aggregate import encode
from gdb_optprobe.maps.trap_table import Key
from gdb_optprobe.maps.user_call_table import (
    ACTIVE,
    CODE,
    COUNTERS_SIZE,
    KEY,
    WORD,
    CallCounters,
    UserCallSlot,
    initial_counters,
)
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.hooks import NOT_INSTALLED, InstalledBytes
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.return_program import return_handler
from gdb_optprobe.probes.user import trap_records
from gdb_optprobe.probes.user.exits import exits
from gdb_optprobe.probes.user.mapped_text import TextChange
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_records import TrapRecord
from gdb_optprobe.probes.user.uprobe_stops import UprobeStops
from gdb_optprobe.probes.user.uprobe_traps import UprobeTraps
from gdb_optprobe.probes.user.uretprobe import LAYOUT, SLOT_ADDRESS, entry_code, return_code, uretprobe_parts
from gdb_optprobe.probes.user.xol import XolSlots

PAGE = 4096
KeptTrampolines = Sequence[tuple[TrapRecord, Program]]
"""Trampolines of an earlier GDB, each with its program."""


@dataclass
class UserRethook:
    """The return hook of a function of a program. counters: their memory.

    installed: where its calls return; it runs the probes with these `probe_numbers`. code: what is there.
    retired:   code where earlier calls may return.
    exits:     the traps by which its calls leave: by address, their numbers in the journal; none with a trampoline.
    """

    program: Program
    address: int
    counters: Slot
    installed: InstalledDetour | None = None
    code: Code | None = None
    probe_numbers: tuple[int, ...] = ()
    retired: list[InstalledDetour] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)

    def retire(self) -> None:
        """Give later calls no code at their return; earlier ones may still come to it."""
        if self.installed is not None:
            self.retired.append(self.installed)
        self.installed, self.probe_numbers = None, ()


@dataclass
class _Trampoline:
    """The trap that a program's calls return to, at `address`.

    record: its number in the journal. is_installed: whether it is in the processes' text, and in that of later ones.
    """

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
    """What is in the guest. memory: of the table. codes, patches: hooks where the kernel copies and ends spaces."""

    table: PlacedUserCallTable
    memory: Slot
    codes: tuple[InstalledDetour, ...]
    patches: tuple[Patch, ...]


@dataclass
class UserRethooks:
    """functions: with uretprobes, by program and address. retired: without, but calls may still return from them."""

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
        """Install all that a call needs to return to `probes`, and return what runs at a trap on the function's entry.

        Raises OptprobeError.
        """
        kernel = user.kernel.returning()
        there = self._install(kernel, user, arena)
        leaving = kernel.isa.leaving
        trampoline = self._install_trampoline(program, kernel, user, arena) if leaving is None else None
        function = self._install_return_code(program, address, probes, there.table, kernel, user, arena)
        assert function.installed is not None, "just served"
        if leaving is not None:
            self._install_exits(function, leaving, user, arena)
        bounds = [probe.spec.maxactive for probe in probes]
        probed = ProbedUserFunction(
            function.counters.address,
            function.installed.detour.address if trampoline is not None else 0,
            trampoline.address - address - user.kernel.isa.behind if trampoline is not None else None,
            program.bits // 8,
            max(bounds) if all(bounds) else LAYOUT.slots,
        )
        return entry_code(there.table, probed, probes, user, self.traps.writable, self.guest)

    def release(self, program: Program, address: int) -> None:
        """Enter no more calls of a function, which has no uretprobe any more."""
        function = self.functions.pop((program.inode, address), None)
        if function is not None:
            function.retire()
            self.retired.append(function)

    def retire(self, program: Program, address: int) -> None:
        """Enter no calls of a function for now: all of its uretprobes are switched off."""
        if (function := self.functions.get((program.inode, address))) is not None:
            function.retire()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Return where a thread may be that returns to the code of a function."""
        functions = (*self.functions.values(), *self.retired)
        placed = (code for each in functions for code in (each.installed, *each.retired) if code is not None)
        return tuple(code.range for code in placed)

    @property
    def has_retired(self) -> bool:
        """Whether there is something that no probe uses any more."""
        return bool(self.retired) or (self._installed is not None and not self.functions)

    def read_counts(self, function: UserRethook) -> CallCounters:
        return CallCounters.decode(self.guest.machine.read(function.counters.address, COUNTERS_SIZE))

    def active_calls(self) -> Sequence[UserCallSlot]:
        """Read all calls that have a slot."""
        there = self._installed
        return list(LAYOUT.calls(self.guest.machine.read(there.memory.address, LAYOUT.size))) if there else ()

    # what an earlier GDB left ----------------------------------------------------------------------------------------

    def has_active_calls(self, table: int, arena: Arena) -> bool:
        """Return whether the table of an earlier GDB has calls, which return to its trampolines."""
        self.guest.step_out(arena.ranges.code)
        return any(LAYOUT.calls(self.guest.machine.read(table, LAYOUT.size)))

    def adopt_trampolines(self, kept: KeptTrampolines, user: UserTarget, arena: Arena) -> Mapping[Key, int]:
        """Install code for trampolines of an earlier GDB; no trap leads there yet. Raises OptprobeError.

        Return the addresses of the code by the keys of the traps.
        """
        kernel = user.kernel.returning()
        found: dict[Key, int] = {}
        for trap, program in kept:
            table = PlacedUserCallTable(LAYOUT, trap.calls, kernel.mm)
            made = self._place_trampoline(program, trap.address, trap.original, table, kernel, user, arena)
            self._trampolines[program.inode] = made
            found[made.key] = made.code.detour.address
        return found

    def has_trampoline(self, program: Program) -> bool:
        """Return whether the program has a trampoline."""
        return program.inode in self._trampolines

    def adopt_table(self, kept: KeptTrampolines, standing: InstalledBytes, user: UserTarget, arena: Arena) -> None:
        """Use the table of these trampolines' calls from now on. Raises OptprobeError."""
        (table,) = {trap.calls for trap, _ in kept}
        memory = arena.adopt_table(TableKind.USER_CALLS, lambda size: size >= LAYOUT.size)
        if memory is None or memory.address != table:
            memory = Slot(table, LAYOUT.size)
        self._install(user.kernel.returning(), user, arena, memory, standing)

    def adopt_calls(self, kept: KeptTrampolines, user: UserTarget, arena: Arena) -> None:
        """Have calls of an earlier GDB return to code of this one, which only counts them. Raises OptprobeError."""
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
            code = lower_user_returns.lower_return(function.counters.address, (), traps, kernel.isa)
            function.retired.append(self.traps.install_or_reuse(code, near, arena))
            spaces = {space.mm for space in user.texts.spaces(program.file)}
            self._redirect_calls(there, function, spaces if trap is not kept[-1][0] else None)

    def _redirect_calls(self, there: _Installed, function: UserRethook, spaces: Collection[int] | None) -> None:
        """Have calls in these spaces, or in all, return to the function's code and be counted there."""
        active = 0
        taken = {function.counters.address for function in self.retired}
        for at, call in LAYOUT.places(self.guest.machine.read(there.memory.address, LAYOUT.size)):
            if call.counters not in taken and (spaces is None or call.mm in spaces):
                words = encode((function.retired[-1].detour.address, function.counters.address))
                self.guest.machine.write(there.memory.address + at + CODE, words)
                active += 1
        self.guest.machine.write(function.counters.address + ACTIVE, encode((active,)))

    @property
    def memory(self) -> tuple[Slot, ...]:
        """Return the memory of the table."""
        return (self._installed.memory,) if self._installed is not None else ()

    def read_calls_if_hidden(self, read: ReadMemory) -> None:
        """Read the table if it cannot be read where the guest is stopped: `return_address` needs it there."""
        self._read_at_stop = ()
        if self._installed is not None and (self.functions or self.retired):
            try:
                read(self._installed.memory.address, 1)
            except Unreadable:
                self._read_at_stop = self.active_calls()

    def return_address(self, pc: int, sp: int, read: ReadMemory) -> int | None:
        """Return the real return address of a call that has returned to `pc`; None for no trampoline, or if not known.

        read: raises Unreadable where the kernel's memory is not seen.
        """
        places: dict[int, int] = {}
        for call in self._matching_calls(pc, sp, read):
            if places.get(call.mm, pc) == pc:  # by tail calls it returns there more than once
                places[call.mm] = call.back
        found = {*places.values()}
        return found.pop() if len(found) == 1 else None

    def _matching_calls(self, pc: int, sp: int, read: ReadMemory) -> Iterator[UserCallSlot]:
        """Yield the calls that may have returned to `pc`, the newest of a space first."""
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
        """Install the table and the kernel's hooks. old: a table that is in the guest already. Raises OptprobeError."""
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
            shared = 0
            if (routine := kernel.shared) is not None:
                placed.append(self._install_hook_code(kernel.copied, lambda at: routine, arena))
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
        """Reserve memory for a table: that of an earlier session, if it has no call. Raises Refused."""
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
        """Install the program's trampoline in every process that runs it. Raises OptprobeError."""
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
        """Have a trap at `address` find the call that returns. Raises OptprobeError."""
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
        """Return a trampoline with its code installed, which no trap leads to yet. Raises Refused."""
        traps, handler = user.kernel.isa, user.kernel.calls.handler
        self.xol_slots.adopt_trampoline(program, address)
        code = lower_user_returns.lower_call_returned(table, program.bits // 8, handler, traps, kernel.isa)
        placed = self.traps.install_or_reuse(code, handler, arena)
        return _Trampoline(program, address, original, self.next_record(), placed)

    def _create_function(self, program: Program, address: int, near: int, arena: Arena) -> UserRethook:
        """Return a function with nothing counted yet. Raises Refused."""
        counters = arena.allocate_data(COUNTERS_SIZE, near, self.guest.isa.data_reach)
        self.guest.machine.write(counters.address, initial_counters(program.bits // 8))
        return UserRethook(program, address, counters)

    def _install_return_code(
        self,
        program: Program,
        address: int,
        probes: Sequence[Probe],
        table: PlacedUserCallTable,
        kernel: ReturnKernel,
        user: UserTarget,
        arena: Arena,
    ) -> UserRethook:
        """Have later calls of the function return to code for `probes`. Raises OptprobeError."""
        near, traps = user.kernel.calls.handler, user.kernel.isa
        function = self.functions.get((program.inode, address))
        if function is None:
            function = self._create_function(program, address, near, arena)
            self._take_over_exits(function)
            self.functions[program.inode, address] = function
        wanted = tuple(probe.number for probe in probes)
        if function.probe_numbers != wanted:
            dead = lower_user_returns.dead_at_return(traps, kernel.isa)
            programs = []
            # A program that stops the guest runs after the others have counted.
            for probe, part in sorted(
                zip(probes, uretprobe_parts(probes), strict=True), key=lambda one: one[0].handler.stops
            ):
                handler = return_handler(probe.handler, part, SLOT_ADDRESS, kernel.isa.slot)
                programs.append(self.stops.code(probe, handler, dead, user, arena))
            code = return_code(table, function.counters.address, programs, traps, kernel.isa)
            placed = self.traps.install_code(code, near, arena)
            function.retire()
            function.installed, function.code, function.probe_numbers = placed, code, wanted
        return function

    def _take_over_exits(self, function: UserRethook) -> None:
        """Give it the traps that could not be removed yet when the last probe of the same function went."""
        for one in self.retired:
            if one.exits and (one.program.inode, one.address) == (function.program.inode, function.address):
                function.exits, one.exits = one.exits, {}

    def exit_of(self, program: Program, address: int) -> UserRethook | None:
        """Return the function that returns by a trap at `address`."""
        functions = (*self.functions.values(), *self.retired)
        return next((one for one in functions if one.program.inode == program.inode and address in one.exits), None)

    @property
    def exit_traps(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yield the traps by which functions return: the inode of the program, the address, the numbers of probes."""
        for function in (*self.functions.values(), *self.retired):
            yield from ((function.program.inode, address, function.probe_numbers) for address in function.exits)

    def _install_exits(self, function: UserRethook, leaving: Leaving, user: UserTarget, arena: Arena) -> None:
        """Have calls of the function leave by traps that lead to its code. Raises OptprobeError with none left."""
        program, installed = function.program, function.installed
        assert installed is not None, "just served"
        if not function.exits:
            places = exits(program, function.address, user.kernel.isa, leaving)
            function.exits = {address: self.next_record() for address in places}
        # Some that could not be removed are forgotten by the text.
        is_new = not all(user.texts.is_installed(program, address) for address in function.exits)
        try:
            for address in function.exits:
                self.traps.dispatcher.set_code((program.offset(address), program.inode), installed.detour.address)
            if is_new:
                for address, record in function.exits.items():
                    trap_records.write_trap(record, TrapRecord(program.file, address, leaving.insn), arena.journal)
                user.texts.install(program, dict.fromkeys(function.exits, user.kernel.isa.trap))
        except BaseException:
            self._remove_exits(function, user, arena)
            raise

    def _remove_exits(self, function: UserRethook, user: UserTarget, arena: Arena) -> None:
        """Have calls of the function leave as without a probe. Raises OptprobeError where traps are left."""
        program, trap = function.program, user.kernel.isa.trap
        if any(user.texts.is_installed(program, address) for address in function.exits):
            user.texts.remove(program, function.exits)
        else:
            # They were forgotten where they could not be removed.
            back = [TextChange(at, program.text(at, len(trap)), trap) for at in function.exits]
            user.texts.revert(program, back)
        for address, record in function.exits.items():
            self.traps.dispatcher.clear((program.offset(address), program.inode))
            arena.journal.drop(Item.USER, record)
        function.exits = {}

    def _drop_calls(self, function: UserRethook) -> None:
        """Forget the calls of a function of which none is seen to return any more."""
        if (there := self._installed) is None:
            return
        for at, call in LAYOUT.places(self.guest.machine.read(there.memory.address, LAYOUT.size)):
            if call.counters == function.counters.address and call.at is not None:
                self.guest.machine.write(there.memory.address + at + KEY, bytes(WORD))
        self.guest.machine.write(function.counters.address + ACTIVE, bytes(WORD))

    # what no probe uses any more -------------------------------------------------------------------------------------

    def tidy(self, user: UserTarget, arena: Arena) -> bool:
        """Free what no call and no probe needs, if no thread can be inside; return whether nothing is left.

        Raises OptprobeError.
        """
        if self._installed is None:
            return True
        left = [one for one in (*self.functions.values(), *self.retired) if one.exits and one.installed is None]
        for function in left:
            self._remove_exits(function, user, arena)
        some = [function for function in (*self.functions.values(), *self.retired) if function.retired]
        idle = [one for one in self._trampolines.values() if not self._is_probed(one.program)]
        if not (some or self.retired or idle) and self.functions:
            return False
        # A thread may be preempted where spaces are copied, with the counters of a call that it copies.
        hooked = (code.range for code in self._installed.codes)
        inside = [*self.traps.ranges, *hooked, *((one.address, one.end) for one in arena.retired)]
        if not hooks.is_quiescent(inside, self.guest, arena.ranges.code):
            return False
        if user.kernel.returning().isa.leaving is not None:
            for function in (*self.functions.values(), *self.retired):
                if not function.exits and self.read_counts(function).active:
                    self._drop_calls(function)
        calls = self.active_calls()
        codes, counters = {call.code for call in calls}, {call.counters for call in calls}
        if any(call.at is None for call in calls):
            return False
        for function in some:
            for one in [one for one in function.retired if one.detour.address not in codes]:
                one.release(self.guest, arena, reached=True)
                function.retired.remove(one)
        for function in [one for one in self.retired if one.counters.address not in counters]:
            arena.data.release(function.counters)
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
        """Free a trampoline that later calls do not get, once no earlier call returns there."""
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
        """Forget all: the guest that had it is gone."""
        self.functions.clear()
        self.retired.clear()
        self._trampolines.clear()
        self._installed = None

    @property
    def patches(self) -> Iterator[Patch]:
        """Yield the patches of the kernel's text."""
        yield from self._installed.patches if self._installed is not None else ()
