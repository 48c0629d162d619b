"""Probes on user programs: a trap in a private copy of the text of every process, handled in the guest.

    add ─► program and instruction found ─► code of the probes and of the instruction ─► table ─► traps in the processes
A trap's code runs the programs of its probes on the registers that the kernel's entry code has saved, then emulates
the instruction on them; or the process continues in a copy of the instruction, which leads back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Reads
from gdb_optprobe.guest.linux.user import writer
from gdb_optprobe.guest.linux.user.mm import AddressSpace, Busy
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.writer import flags
from gdb_optprobe.handlers import ir
from gdb_optprobe.handlers.clauses import check_action
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Insn, joined
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.maps.trap_table import Key
from gdb_optprobe.maps.user_call_table import COUNTERS_SIZE, MISSED
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.journal_records import ProbeRecord, restored_probe, write_probe
from gdb_optprobe.probes.kprobes import LeftOut
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_read import install_probe_read
from gdb_optprobe.probes.probe_views import SiteCode, SiteView, cost_of, explain_view
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.settings import Settings, sizes_of, with_sizes
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user import trap_records, uprobe_views
from gdb_optprobe.probes.user.exits import exits
from gdb_optprobe.probes.user.mapped_text import TextChange
from gdb_optprobe.probes.user.mmap_hook import MmapPatcher
from gdb_optprobe.probes.user.program_text import ProgramText
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.text_writer import TextWriter
from gdb_optprobe.probes.user.trap_context import dead_at_trap
from gdb_optprobe.probes.user.trap_records import TrapRecord, traps_stay
from gdb_optprobe.probes.user.uprobe_handler import compile_uprobe, lower_uprobe
from gdb_optprobe.probes.user.uprobe_site import LONGEST, CodePart, UprobeSite, decode_instruction, lay_out
from gdb_optprobe.probes.user.uprobe_stops import UprobeStops
from gdb_optprobe.probes.user.uprobe_traps import UprobeTraps
from gdb_optprobe.probes.user.uretprobe import compile_uretprobe, trial_codes
from gdb_optprobe.probes.user.user_rethooks import UserRethook, UserRethooks
from gdb_optprobe.probes.user.xol import XolSlots, encode_copy, first_slot
from gdb_optprobe.probes.user.xol_step import XolSteps
from gdb_optprobe.probes.views import CallsView, ExplainView

INT_SIZE = 4


@dataclass(frozen=True, slots=True)
class AdoptedTraps:
    """What is done about traps of an earlier GDB's. keys: of those that are gone. kept: trampolines."""

    removed: tuple[Key, ...] = ()
    trampolines: tuple[tuple[TrapRecord, Program], ...] = ()


@dataclass
class ProbedPrograms:
    """Programs that were probed, by the address of the inode, which may be another file's once the first is gone."""

    _programs: dict[int, Program] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Program]:
        return iter(self._programs.values())

    def update(self, program: Program, in_use: bool) -> bool:
        """Return whether the inode was another program's. in_use: that has traps or trampolines.

        Raises OptprobeError where it was, and has.
        """
        known = self._programs.get(program.inode)
        is_other = known is not None and not program.is_as(known)
        if is_other and in_use:
            why = f"{program.path} is another program than when it was probed"
            raise OptprobeError(why, "optprobe delete its probes, and let calls that they saw return")
        self._programs[program.inode] = program
        return is_other

    def clear(self) -> None:
        """The guest is gone."""
        self._programs.clear()


@dataclass
class Uprobes:
    """The probes on user programs of a session."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    traps: UprobeTraps = field(init=False)
    stops: UprobeStops = field(init=False)
    rethooks: UserRethooks = field(init=False)
    xol_steps: XolSteps = field(init=False)
    _writer: TextWriter = field(init=False)
    _mmap_patcher: MmapPatcher = field(init=False)
    _programs: ProbedPrograms = field(default_factory=ProbedPrograms)
    _xol_slots: XolSlots = field(default_factory=XolSlots)
    _left: list[UprobeSite] = field(default_factory=list)
    _next: int = 1
    _emulation: bool = True

    def __post_init__(self) -> None:
        self.traps = UprobeTraps(self.target.guest)
        self.stops = UprobeStops(self.target.guest, self.target.stops, self.registry)
        self.rethooks = UserRethooks(self.target.guest, self.traps, self.stops, self._xol_slots, self._next_record)
        self.xol_steps = XolSteps(self.target.guest, self.traps, self._xol_slots, self._next_record)
        self._writer = TextWriter(self.target.guest)
        self._mmap_patcher = MmapPatcher(self.target.guest)

    @cached_property
    def user(self) -> UserTarget:
        """Return what probes on programs need of the guest. Raises OptprobeError where programs cannot be probed."""
        guest = self.target.guest
        texts = ProgramText(guest.programs, self.target.debugger.run, self.target.stops.shows_program)
        return UserTarget(guest, guest.user_kernel, guest.programs, texts)

    def check_guest(self) -> UserTarget:
        """Return `user`. Raises OptprobeError where anything is missing for all probes on programs.

        `add`, `explain` and `doctor` ask it before anything is changed.
        """
        if not self.settings().trap:
            raise Refused(Refusal.TRAP_OFF.because())
        user = self.user
        _check_probe_read(user)
        writer.check(user.programs)
        # A list that a thread changes just now is waited for when a probe is added.
        with contextlib.suppress(Busy):
            user.programs.check()
        self.optimizer.find_arena()
        return user

    def addresses(self, spec: Spec) -> tuple[int, ...]:
        """Return none: where a place in a program is depends on the process. Raises OptprobeError as `plan` does."""
        _check(spec)
        return ()

    def share(self, spec: Spec, probes: int) -> None:
        """A program's location is no glob: each probe has maps of its own."""

    def plan(
        self, spec: Spec, addresses: Sequence[int] = (), maps: object = None
    ) -> tuple[list[Probe], list[LeftOut]]:
        """Plan and compile a probe on an instruction of a program; return it, registered. The guest is as it was.

        Nothing is left out: a program's location is no glob. Raises OptprobeError with none registered.
        """
        _, site, handler = self._plan(spec)
        probe = Probe(self.registry.next_number(), spec, site.insn.address, handler, sizes_of(self.settings()))
        self.registry.add(probe, site)
        return [probe], []

    def reserve(self, probe: Probe) -> None:
        """Reserve memory for what `probe` gathers and for what all traps come to, and lower its program.

        Raises OptprobeError.
        """
        user, arena = self.user, self.optimizer.take_arena()
        probe.readers = self.optimizer.with_memory(lambda: self._install_probe_read(user, arena), arena)
        near, reach, size = user.kernel.calls.handler, self.target.guest.isa.data_reach, probe.handler.size
        if (maps := probe.handler.maps) is not None:
            used = probe.handler.program.maps
            self.optimizer.with_memory(lambda: maps.reserve(probe.number, used, near, reach, arena), arena)
        if probe.counter is None:

            def allocate() -> None:
                with arena.new_data(size, near, reach) as memory:
                    if not probe.is_return:
                        lower_uprobe(probe, memory.address, user)
                    self.target.guest.machine.write(memory.address, probe.handler.initial())
                probe.counter = memory

            with self.optimizer.suggesting_sizes(probe):
                self.optimizer.with_memory(allocate, arena)
        elif not probe.is_return:
            lower_uprobe(probe, probe.counter.address, user)
        self.optimizer.with_memory(lambda: self._install_shared(user, arena), arena)

    def install(self, probes: Sequence[Probe]) -> list[Probe]:
        """Write the code of `probes`, and traps that lead there; return those that are left out, which are none.

        Raises OptprobeError.
        """
        for probe in probes:
            write_probe(probe, self.optimizer.take_arena().journal)
        self.settle(probes)
        for probe in probes:
            probe.handler.forget_code()
        return []

    def check(self, spec: Spec) -> None:
        """Plan and lower a probe, without touching the guest. Raises OptprobeError."""
        user, site, handler = self._plan(spec)
        if not spec.is_return:  # one of returns is lowered to be planned
            lower_uprobe(Probe(0, spec, site.insn.address, handler), user.kernel.calls.handler, user)

    def may_be_busy(self, probes: Sequence[Probe]) -> bool:
        """Return whether a thread may be in a program of the uprobes among these, or in one that they had before."""
        if not (sites := self.registry.uprobe_sites(probes)) or (arena := self.optimizer.arena) is None:
            return False
        inside = [site.installed.range for site in sites if site.installed is not None]
        inside += [*self.rethooks.ranges, *((one.address, one.end) for one in arena.retired)]
        return not hooks.is_quiescent(inside, self.target.guest)

    def needs_memory(self, spec: Spec, addresses: Sequence[int] = ()) -> bool:
        """Return whether a probe needs memory of the guest. Raises OptprobeError where there can be none."""
        self._plan(spec)
        return True

    def _plan(self, spec: Spec) -> tuple[UserTarget, UprobeSite, Handler]:
        """Return what a probe would be, all asked that `add` asks. Raises OptprobeError; nothing is changed."""
        _check(spec)
        user = self.check_guest()
        point = self._resolve(spec, user)
        handler = self._handler(spec, point, user, self.settings())
        returns = self._exits(point, user) if spec.is_return else ()
        user.texts.check_install(point.program, dict.fromkeys((*returns, point.insn.address), point.trap))
        with contextlib.suppress(Busy):
            user.programs.mapping(point.program.file)
        return user, point, handler

    def add_recovered(self, one: ProbeRecord, data: Slot | None, maps: Mapping[str, tuple[int, Slot]]) -> Probe:
        """Adopt a probe of an earlier GDB; its traps were removed. Raises OptprobeError.

        data: its memory. maps: of the session's, how many keys they have room for, and where, by name.
        """
        user = self.user
        try:
            point = self._resolve(one.spec, user)
            handler = self._handler(one.spec, point, user, with_sizes(self.settings(), one.sizes))
            probe = restored_probe(one, point.insn.address, handler, data)
            for target in handler.program.maps:
                if target.name in maps:
                    self.optimizer.maps.adopt(one.number, target, *maps[target.name])
        except OptprobeError:
            if data is not None:
                self.optimizer.take_arena().data.release(data)
            raise
        self.registry.add(probe, point)
        try:
            self.reserve(probe)
            self.install([probe])
        except BaseException:
            try:
                self.remove([probe])
            finally:
                self._forget(probe)
            raise
        return probe

    def mmap_hooked(self) -> Sequence[int]:
        """Functions of the kernel before which an earlier GDB may have code that writes traps. Raises OptprobeError."""
        return (self.user.kernel.mmap_hook.to,)

    def mmap_patches(self, undone: Sequence[Patch]) -> Sequence[Patch]:
        """Of patches that undo an earlier GDB's, those of what leads to that code. Raises OptprobeError."""
        calls = {call.address for call in self.user.kernel.mmap_hook.calls}
        return [change for change in undone if change.address in calls]

    def check_memory(self, left: Sequence[TrapRecord], arena: Arena) -> None:
        """Raises OptprobeError where there is no memory for what these are taken out with; nothing is changed."""
        user, near = self.user, self.user.kernel.calls.handler
        counts = COUNTERS_SIZE * sum(1 for trap in left if trap.calls)
        files = {trap.file.inode: trap.file for trap in left}
        programs = {inode: user.programs.known(file) for inode, file in files.items()}
        known = [(programs[trap.file.inode], trap.address) for trap in left]
        keys = {(program.offset(address), program.inode) for program, address in known}
        self.traps.dispatcher.check_memory(keys, near, arena, counts)
        self._writer.check_memory(near, arena)

    def remove_traps(self, left: Sequence[TrapRecord], arena: Arena) -> AdoptedTraps:
        """Remove the traps of an earlier GDB; their code is still there. Raises OptprobeError with some left.

        Trampolines stay while calls are under way that return there.
        """
        if not left:
            return AdoptedTraps()
        user = self.user
        user.texts.writer = self._writer.install(user.programs, arena, self._may_stop_at)
        keys: list[Key] = []
        kept: list[tuple[TrapRecord, Program]] = []
        programs = {trap.file.inode: user.programs.known(trap.file) for trap in left}
        trampolines = [trap for trap in left if trap.calls]
        for trap in [trap for trap in left if not trap.calls] + trampolines:
            program = programs[trap.file.inode]
            if trap in trampolines and self.rethooks.has_active_calls(trap.calls, arena):
                kept.append((trap, program))
                continue
            change = TextChange(trap.address, trap.original, user.kernel.isa.trap)
            try:
                user.texts.revert(program, [change])
            except OptprobeError as error:
                raise traps_stay(error) from None
            keys.append((program.offset(trap.address), program.inode))
        for program in programs.values():
            user.programs.hold(program.file, -1)
        return AdoptedTraps(tuple(keys), tuple(kept))

    def adopt_trampolines(self, taken: AdoptedTraps, undone: Sequence[Patch], arena: Arena) -> Collection[int]:
        """Redirect to us the returns to an earlier GDB's trampolines. Return the addresses that need not be undone.

        undone: patches that undo what it wrote into the kernel. Raises OptprobeError.
        """
        if not taken.trampolines:
            return ()
        user, standing = self.user, {change.address: change.old for change in undone}
        codes = self.rethooks.adopt_trampolines(taken.trampolines, user, arena)
        known = {**codes, **dict.fromkeys(taken.removed)}
        self.traps.install(user, self._install_probe_read(user, arena), arena, standing, known)
        self.rethooks.adopt_table(taken.trampolines, standing, user, arena)
        return {change.address for change in (*self.traps.dispatcher.patches, *self.rethooks.patches)}

    def adopt_traps(self, taken: AdoptedTraps, arena: Arena) -> None:
        """Let threads continue that have just come to a removed trap of an earlier GDB. Raises OptprobeError."""
        if taken.removed or taken.trampolines:
            user = self.user
            self._install_shared(user, arena)
            hooks.record(self.traps.dispatcher.patches, arena)
            for key in taken.removed:
                self.traps.dispatcher.set_code(key, None)
            arena.release_reserve()
            self.rethooks.adopt_calls(taken.trampolines, user, arena)
            arena.refill_reserve()
            self._update_hooks()

    def _resolve(self, spec: Spec, user: UserTarget) -> UprobeSite:
        """Return where the probe would be. Raises OptprobeError."""
        for action in spec.action_parts:
            check_action(action)
        path, _, place = spec.location.rpartition(":")
        if not path or not place:
            raise OptprobeError(f"'{spec.location}' is no place in a program", "-user BINARY:SYMBOL or BINARY:OFFSET")
        program = user.texts.program(path, Path(spec.file) if spec.file else None)
        armed = any(point.program.inode == program.inode for point in self.registry.uprobe_sites())
        if self._programs.update(program, armed or self.rethooks.has_trampoline(program)):
            self._xol_slots.forget(program.inode)
        address = program.resolve(place)
        if (function := self.rethooks.exit_of(program, address)) is not None:
            where = f"{program.spell(address)} is where {program.spell(function.address)} returns, which is probed"
            raise OptprobeError(where, "probe an instruction before, or the return")
        return self._find_or_create(program, decode_instruction(program, address, user.kernel.isa), user)

    def check_switch(self, probes: Sequence[Probe], on: bool) -> None:
        """Raises OptprobeError where these cannot be switched on or off before the guest has run on: see UserTexts."""
        numbers = {probe.number for probe in probes}
        for point in self.registry.uprobe_sites(probes):
            texts = self.user.texts
            if on and point.installed is None:
                texts.check_install(point.program, {point.insn.address: point.trap})
            elif not on and point.installed is not None and not {each.number for each in point.enabled} - numbers:
                texts.check_remove(point.program, [point.insn.address])

    def settle(self, probes: Sequence[Probe]) -> None:
        """Apply that uprobes among these were enabled or disabled. Raises OptprobeError."""
        self._settle_all(self.registry.uprobe_sites(probes))

    def _settle_all(self, points: Sequence[UprobeSite]) -> None:
        if points:
            user, arena = self.user, self.optimizer.take_arena()
            failure: OptprobeError | None = None
            for point in points:
                # Where this fails, some of it may be in the guest.
                before, point.settled_for = point.settled_for, frozenset(probe.number for probe in point.probes)
                try:
                    self._settle(point, user, arena)
                except OptprobeError as error:
                    failure = failure or error
                    point.settled_for |= before
                else:
                    for memory in point.memory.values():
                        arena.data.release(memory)
                    point.memory.clear()
            if failure is not None:
                raise failure

    def resettle(self) -> None:
        """Settle every uprobe again: a setting may have changed. Raises OptprobeError."""
        if self._emulation != (emulation := self.settings().emulation):
            self._emulation = emulation
            self._settle_all(self.registry.uprobe_sites())

    def remove(self, probes: Sequence[Probe]) -> None:
        """Remove the uprobes among these from the guest, and take them off their sites. Raises OptprobeError.

        What they gather in is freed with the code that writes it.
        """
        changed: dict[Key, UprobeSite] = {}
        for probe in probes:
            for site in self.registry.uprobe_sites([probe]):
                self.registry.leave_site(probe)
                # Nothing was written for one that was refused: the code of others at the site stays as it is.
                if probe.number in site.settled_for:
                    changed[site.key] = site
                    if probe.counter is not None:
                        site.memory[probe.number], probe.counter = probe.counter, None
        try:
            self._settle_all([*changed.values()])
        finally:
            self._left = [site for site in (*self._left, *changed.values()) if site.memory]
        self.tidy()

    def is_left(self, probe: Probe) -> bool:
        """Return whether a removed probe's code is still in the guest."""
        return any(probe.number in site.memory for site in self._left)

    def tidy(self) -> None:
        """Free what is not needed any more and no thread can be in. Raises OptprobeError."""
        arena = self.optimizer.arena
        if arena is None or not self.traps.dispatcher.patches or self.target.stops.shows_program():
            return
        user = self.user
        # A trap that could not be removed still needs all of it, though its probe is forgotten.
        if self.rethooks.tidy(user, arena) and not self.registry.uprobe_sites() and not self.traps.dispatcher.has_traps:
            for program in self._programs:
                user.texts.retain(program, [at for copy in self._xol_slots.slots_of(program) for at in copy])
            self._mmap_patcher.remove(arena)
            self._writer.remove(arena)
            self.stops.remove_pads(arena)
            self.traps.remove(user, arena)
        self._update_hooks()

    def _update_hooks(self) -> None:
        """Refuse kernel probes where the kernel calls our code."""
        self.registry.user_hooks = (*self._mmap_patcher.patches, *self.rethooks.patches)

    def spaces(self, program: Program) -> tuple[AddressSpace, ...]:
        """Return those that run it. Raises OptprobeError."""
        return self.user.texts.spaces(program.file)

    def missed(self, probe: Probe) -> int:
        """Return how many calls of its function found no room."""
        return sum(self.rethooks.read_counts(function).missed for function in self._functions(probe))

    def missed_words(self, probe: Probe) -> tuple[int, ...]:
        """Return where the guest counts what `missed` tells."""
        return tuple(function.counters.address + MISSED for function in self._functions(probe))

    def _functions(self, probe: Probe) -> list[UserRethook]:
        inodes = [point.program.inode for point in self.registry.uprobe_sites([probe])]
        functions = (self.rethooks.functions.get((inode, probe.address)) for inode in inodes)
        return [function for function in functions if function is not None]

    def traps_near(self, start: int, end: int) -> Mapping[Patch, tuple[int, ...]]:
        """Return the traps in [start, end), as the process shown to the user has them, with their probes' numbers."""
        exits = [*self.rethooks.exit_traps]
        leaving = self.user.kernel.returning().isa.leaving if exits else None
        return self.stops.traps_near(start, end, exits, leaving.insn if leaving is not None else b"")

    def problems(self) -> Sequence[str]:
        """Return where the kernel or a process does not have what was written, in words."""
        hooks = patch.check((*self.traps.dispatcher.patches, *self.registry.user_hooks), self.target.guest.machine)
        texts = self.user.texts.problems() if self.registry.uprobe_sites() else ()
        return (*(str(change.message) for change in hooks), *texts)

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        if self.registry.uprobe_sites():
            self.user.texts.abandon()
        self.traps.abandon()
        self.stops.abandon()
        self.rethooks.abandon()
        self._writer.abandon()
        self._mmap_patcher.abandon()
        self.registry.user_hooks = ()
        self._programs.clear()
        self._xol_slots.clear()
        self._left.clear()

    def _may_stop_at(self, address: int) -> bool:
        """Return whether something else may stop the guest there."""
        return address in self.target.debugger.breakpoints() or any(True for _ in self.registry.near(address, LONGEST))

    # a probe ---------------------------------------------------------------------------------------------------------

    def _find_or_create(self, program: Program, insn: Insn, user: UserTarget) -> UprobeSite:
        for point in self.registry.uprobe_sites():
            if (point.program.inode, point.insn.address) == (program.inode, insn.address):
                return point
        emulated = user.kernel.isa.emulation(insn, program.bits, 0)
        needs_copy = emulated is None or emulated.may_fail
        point = UprobeSite(program, insn, needs_copy, user.kernel.isa.trap, self._next_record())
        if point.needs_copy:
            # What cannot be copied is refused before anything is written.
            encode_copy(insn, program, first_slot(program), user.kernel.isa)
        return point

    def _next_record(self) -> int:
        """Return the number of the next trap in the journal."""
        number, self._next = self._next, self._next + 1
        return number

    def _handler(self, spec: Spec, point: UprobeSite, user: UserTarget, settings: Settings) -> Handler:
        """Return what a hit does. Raises OptprobeError, pointing at what cannot be done."""
        maps = self.optimizer.maps
        if spec.block:
            spec = replace(spec, program=self._block(spec, point))
        if spec.is_return:
            handler = compile_uretprobe(spec, point.program, point.insn.address, user, settings, maps)
            self._check_exits(point, user)
            return handler
        return compile_uprobe(spec, point, user, settings).using(maps)

    def _exits(self, point: UprobeSite, user: UserTarget) -> tuple[int, ...]:
        """Return where traps are put for the returns of the function. Raises OptprobeError."""
        leaving = user.kernel.returning().isa.leaving
        return exits(point.program, point.insn.address, user.kernel.isa, leaving) if leaving is not None else ()

    def _check_exits(self, point: UprobeSite, user: UserTarget) -> None:
        """Raises OptprobeError where something else is probed there."""
        program, entry = point.program, point.insn.address
        places = self._exits(point, user)
        probed = [site.insn.address for site in self.registry.uprobe_sites() if site.program.inode == program.inode]
        for at in places:
            function = self.rethooks.exit_of(program, at)
            if at in probed or (function is not None and function.address != entry):
                where = program.spell(at)
                raise OptprobeError(f"{program.spell(entry)} returns at {where}, which is probed", "delete that")

    def _block(self, spec: Spec, point: UprobeSite) -> ir.Program:
        """Compile the block of a probe. Raises OptprobeError, pointing."""
        guest, program, address = self.target.guest, point.program, point.insn.address
        at_entry = guest.program_names_at(address, program.is_entry(address), program.bits)
        names = guest.program_names_at_return(program.bits) if spec.is_return else at_entry
        return self.optimizer.scripts.compile(spec, names, address, program)

    def _install_shared(self, user: UserTarget, arena: Arena) -> None:
        """Install the code that all traps use, and the writers of traps. Raises Refused."""
        found = self._install_probe_read(user, arena)
        self.traps.install(user, found, arena)
        user.texts.writer = self._writer.install(user.programs, arena, self._may_stop_at)
        self._mmap_patcher.install(user.kernel.mmap_hook, flags(user.programs), arena)
        user.texts.mmap_patcher = self._mmap_patcher
        self._update_hooks()

    def _install_probe_read(self, user: UserTarget, arena: Arena) -> ProbeReadRoutines:
        """Raises Refused, OptprobeError."""
        routine = _check_probe_read(user)
        return install_probe_read(routine, user.kernel.calls.handler, self.target.guest, arena)

    def _forget(self, probe: Probe) -> None:
        """One that could not be made."""
        if self.registry.has(probe):
            self.registry.remove(probe)
        self.optimizer.release_counter(probe)
        self.optimizer.write_records(gone=[probe])

    # a probed instruction --------------------------------------------------------------------------------------------

    def _settle(self, point: UprobeSite, user: UserTarget, arena: Arena) -> None:
        """What is in the guest for `point` is what its enabled probes want. Raises OptprobeError."""
        program, address = point.program, point.insn.address
        self._settle_uretprobes(point)
        if not point.enabled:
            if point.installed is not None:
                self._remove_traps(point, user, arena)
            self.xol_steps.remove_trap(point, user, arena)
            return
        emulation = self.settings().emulation
        copy, tail = self.xol_steps.install_copy(point, emulation, user)
        steps = tail is not None and not emulation
        if tail is not None and steps:
            self.xol_steps.install_trap(point, tail, user, arena)
        code = self._code(point, copy, not steps, user, arena)
        self._update_hooks()
        stood = point.installed is not None
        self._set_code(point, code, user, arena)
        if not steps:
            self.xol_steps.remove_trap(point, user, arena)
        if not stood:
            try:
                trap = TrapRecord(program.file, address, point.insn.data[: len(point.trap)])
                trap_records.write_trap(point.record, trap, arena.journal)
                user.texts.install(program, {address: user.kernel.isa.trap})
            except BaseException:
                self._remove_traps(point, user, arena)
                raise

    def _set_code(self, point: UprobeSite, parts: Sequence[CodePart], user: UserTarget, arena: Arena) -> None:
        """Have traps at `point` come to these, one behind the other. Raises Refused."""
        code, near = joined([part.code for part in parts]), user.kernel.calls.handler
        placed = self.optimizer.with_memory(lambda: self.traps.install_code(code, near, arena), arena)
        try:
            self.optimizer.with_memory(lambda: self.traps.dispatcher.set_code(point.key, placed.detour.address), arena)
        except OptprobeError:
            placed.release(self.target.guest, arena, reached=False)
            raise
        old, point.installed, point.parts = point.installed, placed, tuple(lay_out(parts, placed.detour.address))
        if old is not None:
            old.release(self.target.guest, arena, reached=True)

    def _remove_traps(self, point: UprobeSite, user: UserTarget, arena: Arena) -> None:
        """Raises OptprobeError where traps are left; they lead to what does nothing but the instruction."""
        try:
            user.texts.remove(point.program, [point.insn.address])
        except OptprobeError:
            copy = self._xol_slots.find(point.insn, point.program)
            self._set_code(point, self._code(point, copy, point.xol_trap is None, user, arena), user, arena)
            raise
        self.traps.dispatcher.clear(point.key)
        arena.journal.drop(Item.USER, point.record)
        old, point.installed = point.installed, None
        if old is not None:
            old.release(self.target.guest, arena, reached=True)

    def _settle_uretprobes(self, point: UprobeSite) -> None:
        """Calls are entered for the return probes that are switched on, and for no others."""
        returns = [probe for probe in point.probes if probe.is_return]
        if not returns:
            self.rethooks.release(point.program, point.insn.address)
        elif not any(probe.enabled for probe in returns):
            self.rethooks.retire(point.program, point.insn.address)

    def _code(
        self, point: UprobeSite, copy: int | None, emulates: bool, user: UserTarget, arena: Arena
    ) -> Sequence[CodePart]:
        """Return what a trap at `point` comes to."""
        parts: list[CodePart] = []
        here = [probe for probe in point.enabled if not probe.is_return]
        # A thread that is shown at the stop has been counted by all others.
        for probe in sorted(here, key=lambda each: each.handler.stops):
            code = self.stops.code(probe, probe.handler, dead_at_trap(user.kernel.isa), user, arena)
            what = f"the program of probe {probe.number}: {', '.join(probe.spec.actions)}"
            parts.append(CodePart(what, code, True, probe.number))
        if returns := [probe for probe in point.enabled if probe.is_return]:
            program, address = point.program, point.insn.address
            entry = self.optimizer.with_memory(
                lambda: self.rethooks.install_entry(program, address, returns, user, arena), arena
            )
            parts.append(CodePart("the entry of a call with a probed return", entry, number=returns[-1].number))
        return [*parts, *self._instruction_code(point, copy, emulates, self.traps.writable, user)]

    def _instruction_code(
        self, point: UprobeSite, copy: int | None, emulates: bool, writable: int, user: UserTarget
    ) -> Iterator[CodePart]:
        """Yield the code that has the effect of the probed instruction."""
        isa, insn = user.kernel.isa, point.insn
        emulated = isa.emulation(insn, point.program.bits, writable)
        if emulated is not None and emulates:
            yield CodePart(f"{insn.text}, done to the saved registers", emulated.code)
        if copy is not None:
            moved = isa.moved(copy - insn.address - isa.behind)
            yield CodePart(f"on in a copy of {insn.text}, at {copy:#x} in the program", moved)

    # looking ---------------------------------------------------------------------------------------------------------

    def site_view(self, probe: Probe) -> SiteView:
        """Return what a row shows of the place that `probe` is on."""
        site = self.registry.uprobe_site_of(probe)
        function = self.rethooks.functions.get((site.program.inode, probe.address)) if probe.is_return else None
        runs = self.target.guest.machine.runs
        calls = self.calls(function) if function is not None and not runs else None
        stops = self.stops.counts[probe.number]
        view = uprobe_views.site_view(probe, site, function, calls, stops, self.target.guest)
        if function is None or not runs:
            return view
        counts = self.rethooks.read_counts(function)
        return replace(view, missed=counts.missed, active=counts.active)

    def calls(self, function: UserRethook) -> CallsView:
        """Return the calls of a function with uretprobes."""
        return uprobe_views.uretprobe_calls(function, self.rethooks, self.spaces)

    def site_code(self, probe: Probe) -> SiteCode:
        """Return what `show` lists of the place that `probe` is on."""
        site = self.registry.uprobe_site_of(probe)
        function = self.rethooks.functions.get((site.program.inode, probe.address))
        return uprobe_views.site_code(site, function, self.target.guest)

    def explain(self, spec: Spec, addresses: Sequence[int]) -> Iterator[ExplainView]:
        """Yield what a probe would be, asking what `add` asks. Raises OptprobeError where it would be none."""
        user, point, handler = self._plan(spec)
        insn, near, decode = point.insn, user.kernel.calls.handler, self.target.guest.isa.decode
        probe = Probe(0, spec, insn.address, handler)
        copy = insn.address if point.needs_copy else None
        codes = [part.code for part in self._instruction_code(point, copy, True, near, user)]
        arena = self.optimizer.find_arena()
        # What the first probe allocates for all of them is checked as one piece.
        shared = 0 if self.traps.dispatcher.is_installed else self.traps.dispatcher.first_size + writer.SIZE
        memory = arena.check_room(handler.size + shared, near, self.target.guest.isa.data_reach)
        if spec.is_return:
            entry, returning = trial_codes(probe, point.program, user, memory)
            codes.append(entry)
            most, least = uprobe_views.return_cost(decode(returning(near), near))
        else:
            program = decode(lower_uprobe(probe, memory, user)(near), near)
            most, least = sum(map(cost_of, program)), shortest(program, cost_of)
        always = sum(cost_of(insn) for code in codes for insn in decode(code(near), near))
        always += uprobe_views.stack_cost(point, [probe], self.target.guest)
        plan = Plan(insn.address, Tier.TRAPPED, (insn,), insn.data[: len(point.trap)])
        yield explain_view(plan, point.program.spell, spec, (always + most, always + least))


def _check(spec: Spec) -> None:
    """Raises OptprobeError where `spec` asks for what probes on programs cannot do."""
    for what, asked in (("-pending", spec.pending), ("a glob", spec.glob)):
        if asked:
            raise OptprobeError(f"{what} is not built yet for programs")
    if spec.tier not in ("", "trapped"):
        raise OptprobeError(f"code of a program cannot be {spec.tier}: it is probed by traps", "-tier trapped")
    if spec.has_python_handler:
        raise OptprobeError("a Python handler cannot run where a program is probed", "use an action in its place")


def _check_probe_read(user: UserTarget) -> Reads:
    """Return how memory of programs is read. Raises OptprobeError."""
    found = user.guest.program_names_at(0, False, 64).reads
    if isinstance(found, Missing):
        raise OptprobeError(found.message, found.hint)
    return found
