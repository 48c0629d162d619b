"""Probes on user programs: a trap in a private copy of the text of every process, handled in the guest.

    add ─► program and instruction found ─► code of the probes and of the instruction ─► table ─► traps in the processes
A trap's code runs the programs of its probes on the registers that the kernel's entry code has saved, then does to them
what the instruction does; or has the process go on in a copy of the instruction, which leads back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.mm import AddressSpace, Busy
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.writer import flags
from gdb_optprobe.handlers.supported import check_action
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.code import joined
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.maps.user_call_table import COUNTERS_SIZE
from gdb_optprobe.maps.user_trap_table import Key
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.journal_records import ProbeRecord, fingerprint, write_probe
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_read import install_probe_read
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.room import reserve
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user import requirements, trap_records
from gdb_optprobe.probes.user.known import Known
from gdb_optprobe.probes.user.mapped_text import Change
from gdb_optprobe.probes.user.mmap_hook import Arrivals
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.text_writer import UserWriter
from gdb_optprobe.probes.user.trap_context import At, dead_at_trap
from gdb_optprobe.probes.user.trap_records import NotedTrap, left_over
from gdb_optprobe.probes.user.uprobe import LONGEST, Part, Point, in_place, instruction
from gdb_optprobe.probes.user.uprobe_handler import handler
from gdb_optprobe.probes.user.uprobe_stops import UserStops
from gdb_optprobe.probes.user.uprobe_traps import UserTraps
from gdb_optprobe.probes.user.uretprobe import UserCalls
from gdb_optprobe.probes.user.uretprobe_handler import return_handler
from gdb_optprobe.probes.user.xol import Copies, copy_of, first_place
from gdb_optprobe.probes.user.xol_step import Steps

INT_SIZE = 4
IN_PROGRAM = Reason("USER_TEXT", "its code is a program's, not the kernel's")
"""Why such a probe is nowhere in the kernel's text."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What is done about traps of an earlier GDB's. keys: of those that are gone. kept: trampolines."""

    keys: tuple[Key, ...] = ()
    kept: tuple[tuple[NotedTrap, Program], ...] = ()


@dataclass
class Users:
    """The probes on user programs of a session."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    traps: UserTraps = field(init=False)
    stops: UserStops = field(init=False)
    calls: UserCalls = field(init=False)
    steps: Steps = field(init=False)
    _writer: UserWriter = field(init=False)
    _arrivals: Arrivals = field(init=False)
    _points: dict[int, Point] = field(default_factory=dict)
    _programs: Known = field(default_factory=Known)
    _copies: Copies = field(default_factory=Copies)
    _next: int = 1
    _emulation: bool = True

    def __post_init__(self) -> None:
        self.traps = UserTraps(self.target)
        self.stops = UserStops(self.target, self.registry, self.point)
        self.calls = UserCalls(self.target, self.traps, self.stops, self._copies, self._number)
        self.steps = Steps(self.target, self.traps, self._copies, self._number)
        self._writer = UserWriter(self.target)
        self._arrivals = Arrivals(self.target)

    def _would(self, spec: Spec) -> tuple[UserTarget, Point, Handler]:
        """Return what a probe would be, all asked that `add` asks. Raises OptprobeError; nothing is changed."""
        self._check(spec)
        user = requirements.ready(self.optimizer)
        point = self._planned(spec, user)
        handler = self._handler(spec, point, user, self.settings())
        user.texts.check_arm(point.program, {point.insn.address: point.trap})
        with contextlib.suppress(Busy):
            user.programs.mapping(point.program.file)
        return user, point, handler

    def add(self, spec: Spec) -> Probe:
        """A probe on an instruction of a program. Raises OptprobeError, the guest as it was."""
        user, point, handler = self._would(spec)
        settings = self.settings()
        self.target.guard()
        if self.optimizer.memory.must_borrow():
            self.optimizer.take_arena(borrow=True)
            # The guest has run: the file may be another one by now.
            user, point, handler = self._would(spec)
        probe = Probe(self.registry.next_number(), spec, point.insn.address, handler, sizes_of(settings))
        return self._put(probe, point, user)

    def again(self, one: ProbeRecord, data: Slot | None) -> Probe:
        """A probe of an earlier GDB's, whose traps were taken out; data: its memory. Raises OptprobeError."""
        user, settings = self.target.user(), replace(self.settings(), **one.sizes)  # type: ignore[arg-type]
        try:
            point = self._planned(one.spec, user)
            handler = self._handler(one.spec, point, user, settings)
            fits = data is None or handler.size <= data.size
            if not fits or (not handler.is_plain and fingerprint(handler) != one.program):
                raise OptprobeError("it would not do here what it did there")
        except OptprobeError:
            if data is not None:
                self.optimizer.take_arena().data.release(data)
            raise
        address = point.insn.address
        probe = Probe(one.number, one.spec, address, handler, one.sizes, one.enabled, data, since=one.since)
        self.registry.use_number(one.number)
        return self._put(probe, point, user)

    def writers(self) -> Sequence[int]:
        """Functions of the kernel before which an earlier GDB may have code that writes traps. Raises OptprobeError."""
        return (self.target.user().kernel.arriving.to,)

    def leading_there(self, undone: Sequence[Patch]) -> Sequence[Patch]:
        """Of patches that undo an earlier GDB's, those of what leads to that code. Raises OptprobeError."""
        calls = {call.address for call in self.target.user().kernel.arriving.calls}
        return [change for change in undone if change.address in calls]

    def check_room(self, left: Sequence[NotedTrap], arena: Arena) -> None:
        """Raises OptprobeError where there is no memory for what these are taken out with; nothing is changed."""
        user, near = self.target.user(), self.target.user().kernel.calls.handler
        counts = COUNTERS_SIZE * sum(1 for trap in left if trap.calls)
        files = {trap.file.inode: trap.file for trap in left}
        programs = {inode: user.programs.known(file) for inode, file in files.items()}
        known = [(programs[trap.file.inode], trap.address) for trap in left]
        keys = {(program.offset(address), program.inode) for program, address in known}
        self.traps.check_room(keys, counts, near, arena)
        self._writer.check_room(near, arena)

    def take_out(self, left: Sequence[NotedTrap], arena: Arena) -> Taken:
        """The traps of an earlier GDB, whose code is still there. Raises OptprobeError with some left.

        Trampolines stay while calls are under way that return there.
        """
        if not left:
            return Taken()
        user = self.target.user()
        user.texts.writer = self._writer.begin(user.programs, arena, self._is_stopped_at)
        keys: list[Key] = []
        kept: list[tuple[NotedTrap, Program]] = []
        programs = {trap.file.inode: user.programs.known(trap.file) for trap in left}
        trampolines = [trap for trap in left if trap.calls]
        for trap in [trap for trap in left if not trap.calls] + trampolines:
            program = programs[trap.file.inode]
            if trap in trampolines and self.calls.are_under_way(trap.calls, arena):
                kept.append((trap, program))
                continue
            change = Change(trap.address, trap.original, user.kernel.isa.trap)
            try:
                user.texts.take_out(program, [change])
            except OptprobeError as error:
                raise left_over(error) from None
            keys.append((program.offset(trap.address), program.inode))
        for program in programs.values():
            user.programs.hold(program.file, -1)
        return Taken(tuple(keys), tuple(kept))

    def take_over(self, taken: Taken, undone: Sequence[Patch], arena: Arena) -> Collection[int]:
        """Where calls return to an earlier GDB's trampolines, they come to us from now on; what needs not be undone.

        undone: patches that undo what it wrote into the kernel. Their addresses. Raises OptprobeError.
        """
        if not taken.kept:
            return ()
        user, standing = self.target.user(), {change.address: change.old for change in undone}
        codes = self.calls.meet(taken.kept, user, arena)
        self.traps.begin(user, self._readers(user, arena), arena, standing, codes, taken.keys)
        self.calls.take_over(taken.kept, standing, user, arena)
        return {change.address for change in (*self.traps.patches, *self.calls.patches)}

    def adopt(self, taken: Taken, arena: Arena) -> None:
        """Where traps of an earlier GDB's were until now: who has just come to one goes on. Raises OptprobeError."""
        if taken.keys or taken.kept:
            user = self.target.user()
            self._begin(user, arena)
            for change in self.traps.patches:
                arena.journal.put(Item.TEXT, change.address, [change.old.hex(), False])
            for key in taken.keys:
                self.traps.pass_by(key)
            arena.release_reserve()
            self.calls.adopt(taken.kept, user, arena)
            arena.refill_reserve()
            self._note_hooks()

    def _planned(self, spec: Spec, user: UserTarget) -> Point:
        """Where the probe would be. Raises OptprobeError."""
        for action in spec.action_parts:
            check_action(action)
        path, _, place = spec.location.rpartition(":")
        if not path or not place:
            raise OptprobeError(f"'{spec.location}' is no place in a program", "-user BINARY:SYMBOL or BINARY:OFFSET")
        program = user.texts.program(path, Path(spec.file) if spec.file else None)
        armed = any(point.program.inode == program.inode for point in self._points.values())
        if self._programs.meet(program, armed or self.calls.has(program)):
            self._copies.forget(program.inode)
        address = program.resolve(place)
        return self._point(program, instruction(program, address, user.kernel.isa), user)

    def _put(self, probe: Probe, point: Point, user: UserTarget) -> Probe:
        """Raises OptprobeError, the guest as it was."""
        arena = self.optimizer.take_arena()
        try:
            self._reserve(probe, user, arena)
            self.registry.set_absent(probe, IN_PROGRAM)
            self._points[probe.number] = point
            point.probes.append(probe)
            write_probe(probe, arena.journal)
            self._settle(point, user, arena)
        except BaseException:
            try:
                self.remove([probe])
            finally:
                self._drop(probe)
            raise
        return probe

    def check(self, probes: Sequence[Probe], on: bool) -> None:
        """Raises OptprobeError where these cannot be switched on or off before the guest has run on: see UserTexts."""
        numbers = {probe.number for probe in probes}
        for point in [self._points[number] for number in numbers & self._points.keys()]:
            texts = self.target.user().texts
            if on and point.placed is None:
                texts.check_arm(point.program, {point.insn.address: point.trap})
            elif not on and point.placed is not None and not {each.number for each in point.enabled} - numbers:
                texts.check_disarm(point.program, [point.insn.address])

    def settle(self, probes: Sequence[Probe]) -> None:
        """Probes of ours among these were switched on or off. Raises OptprobeError."""
        points = {self._points[probe.number].key: self._points[probe.number] for probe in probes if self.has(probe)}
        if points:
            user, arena = self.target.user(), self.optimizer.take_arena()
            for point in points.values():
                self._settle(point, user, arena)

    def resettle(self) -> None:
        """A setting may have changed. Raises OptprobeError."""
        if self._emulation != (emulation := self.settings().emulation):
            self._emulation = emulation
            self.settle([probe for point in self._points.values() for probe in point.probes])

    def has(self, probe: Probe) -> bool:
        return probe.number in self._points

    def point(self, probe: Probe) -> Point:
        return self._points[probe.number]

    def remove(self, probes: Sequence[Probe]) -> None:
        """Those of ours among these are taken out of the guest, and forgotten here. Raises OptprobeError."""
        ours = [probe for probe in probes if self.has(probe)]
        points = {self._points[probe.number].key: self._points[probe.number] for probe in ours}
        for probe in ours:
            self._points.pop(probe.number).probes.remove(probe)
        if points:
            user, arena = self.target.user(), self.optimizer.take_arena()
            for point in points.values():
                self._settle(point, user, arena)
        self.tidy()

    def tidy(self) -> None:
        """What nothing needs any more goes, where nobody can be in it. Raises OptprobeError."""
        arena = self.optimizer.arena
        if arena is None or not self.traps.patches or self.target.stops.shows_program():
            return
        user = self.target.user()
        if self.calls.tidy(user, arena) and not self._points:
            for program in self._programs:
                user.texts.leave(program, [at for copy in self._copies.of(program) for at in copy])
            self._arrivals.dismiss(arena)
            self._writer.dismiss(arena)
            self.stops.dismiss(arena)
            self.traps.dismiss(user, arena)
        self._note_hooks()

    def _note_hooks(self) -> None:
        """No probe of the kernel can be where the kernel comes to code of ours."""
        self.registry.hooks = (*self._arrivals.patches, *self.calls.patches)

    def spaces(self, program: Program) -> tuple[AddressSpace, ...]:
        """Those that run it. Raises OptprobeError."""
        return self.target.user().texts.spaces(program.file)

    def missed(self, probe: Probe) -> int:
        """How many calls of its function found no room."""
        point = self._points.get(probe.number)
        key = (point.program.inode, probe.address) if point is not None else None
        function = self.calls.functions.get(key) if key is not None else None
        return self.calls.counts(function).missed if function is not None else 0

    def traps_near(self, start: int, end: int) -> Mapping[Patch, tuple[int, ...]]:
        """From `start` to before `end`, as the process that the user is shown has them; by probes' numbers."""
        return self.stops.traps_near(self._points.values(), start, end)

    def problems(self) -> Sequence[str]:
        """Where the kernel or a process does not have what was written, in words."""
        hooks = patch.check((*self.traps.patches, *self.registry.hooks), self.target.machine)
        texts = self.target.user().texts.problems() if self._points else ()
        return (*(str(change.message) for change in hooks), *texts)

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        if self._points:
            self.target.user().texts.abandon()
        self.traps.abandon()
        self.stops.abandon()
        self.calls.abandon()
        self._writer.abandon()
        self._arrivals.abandon()
        self.registry.hooks = ()
        self._points.clear()
        self._programs.clear()
        self._copies.clear()

    def _is_stopped_at(self, address: int) -> bool:
        """Whether something else may stop the guest there."""
        return address in self.target.breakpoints() or any(True for _ in self.registry.near(address, LONGEST))

    # a probe ---------------------------------------------------------------------------------------------------------

    def _check(self, spec: Spec) -> None:
        for what, asked in (("-pending", spec.pending), ("a glob", spec.glob)):
            if asked:
                raise OptprobeError(f"{what} is not built yet for programs")
        if spec.tier not in ("", "trapped"):
            raise OptprobeError(f"code of a program cannot be {spec.tier}: it is probed by traps", "-tier trapped")
        if spec.has_python_handler:
            raise OptprobeError("a Python handler cannot run where a program is probed", "use an action in its place")

    def _point(self, program: Program, insn: Insn, user: UserTarget) -> Point:
        for point in self._points.values():
            if (point.program.inode, point.insn.address) == (program.inode, insn.address):
                return point
        emulated = user.kernel.isa.emulation(insn, program.bits, 0)
        needs_copy = emulated is None or emulated.may_fail
        point = Point(program, insn, needs_copy, user.kernel.isa.trap, self._number())
        if point.needs_copy:
            # What cannot be copied is refused before anything is written.
            copy_of(insn, program, first_place(program), user.kernel.isa)
        return point

    def _number(self) -> int:
        """Of a trap in the journal."""
        number, self._next = self._next, self._next + 1
        return number

    def _handler(self, spec: Spec, point: Point, user: UserTarget, settings: Settings) -> Handler:
        """What a hit does. Raises OptprobeError, pointing at what cannot be done."""
        if spec.returns:
            return return_handler(spec, point.program, point.insn.address, user, self.target, settings)
        return handler(spec, point, user, self.target, settings)

    def _reserve(self, probe: Probe, user: UserTarget, arena: Arena) -> None:
        """Memory for what its program gathers, and all that traps come to. Raises Refused."""
        probe.readers = self.optimizer.with_memory(lambda: self._begin(user, arena), arena)
        if probe.counter is None:
            near, reach, size = user.kernel.calls.handler, self.target.isa.data_reach, probe.handler.size

            def allocate() -> None:
                probe.counter = self.optimizer.with_memory(lambda: arena.allocate_data(size, near, reach), arena)
                self.target.machine.write(probe.counter.address, probe.handler.initial())

            reserve(probe, self.optimizer, allocate)

    def _begin(self, user: UserTarget, arena: Arena) -> ProbeReadRoutines:
        """All that traps come to, and what writes them. Raises Refused."""
        found = self._readers(user, arena)
        self.traps.begin(user, found, arena)
        user.texts.writer = self._writer.begin(user.programs, arena, self._is_stopped_at)
        self._arrivals.begin(user.kernel.arriving, flags(user.programs), arena)
        user.texts.arrivals = self._arrivals
        self._note_hooks()
        return found

    def _readers(self, user: UserTarget, arena: Arena) -> ProbeReadRoutines:
        """Raises Refused, OptprobeError."""
        return install_probe_read(requirements.reads(user), user.kernel.calls.handler, self.target, arena)

    def _drop(self, probe: Probe) -> None:
        """One that could not be made."""
        if self.registry.has(probe):
            self.registry.remove(probe)
        self.optimizer.release_counter(probe)
        self.optimizer.write_records(gone=[probe])

    # a probed instruction --------------------------------------------------------------------------------------------

    def _settle(self, point: Point, user: UserTarget, arena: Arena) -> None:
        """What is in the guest for `point` is what its enabled probes want. Raises OptprobeError."""
        program, address = point.program, point.insn.address
        self._settle_calls(point)
        if not point.enabled:
            if point.placed is not None:
                self._disarm(point, user, arena)
            self.steps.end(point, user, arena)
            return
        emulation = self.settings().emulation
        copy, tail = self.steps.copied(point, emulation, user)
        steps = tail is not None and not emulation
        if tail is not None and steps:
            self.steps.begin(point, tail, user, arena)
        code = self._code(point, copy, not steps, user, arena)
        self._note_hooks()
        stood = point.placed is not None
        self._lead(point, code, user, arena)
        if not steps:
            self.steps.end(point, user, arena)
        if not stood:
            try:
                trap_records.note(point.number, program, address, point.insn.data[: len(point.trap)], arena.journal)
                user.texts.arm(program, {address: user.kernel.isa.trap})
            except BaseException:
                self._disarm(point, user, arena)
                raise

    def _lead(self, point: Point, parts: Sequence[Part], user: UserTarget, arena: Arena) -> None:
        """Have traps at `point` come to these, one behind the other. Raises Refused."""
        code, near = joined([part.code for part in parts]), user.kernel.calls.handler
        placed = self.optimizer.with_memory(lambda: self.traps.place(code, near, arena), arena)
        try:
            self.optimizer.with_memory(lambda: self.traps.lead(point.key, placed.detour.address), arena)
        except OptprobeError:
            placed.release(self.target, arena, reached=False)
            raise
        self._give_up(point, arena)
        point.placed, point.parts = placed, tuple(in_place(parts, placed.detour.address))

    def _disarm(self, point: Point, user: UserTarget, arena: Arena) -> None:
        """Raises OptprobeError where traps are left; they lead to what does nothing but the instruction."""
        try:
            user.texts.disarm(point.program, [point.insn.address])
        except OptprobeError:
            copy = self._copies.known(point.insn, point.program)
            self._lead(point, self._code(point, copy, point.step is None, user, arena), user, arena)
            raise
        self.traps.forget(point.key)
        self._give_up(point, arena)
        arena.journal.drop(Item.USER, point.number)

    def _give_up(self, point: Point, arena: Arena) -> None:
        if point.placed is not None:
            point.placed.release(self.target, arena, reached=True)
            point.placed = None

    def _settle_calls(self, point: Point) -> None:
        """Calls are entered for the return probes that are switched on, and for no others."""
        returns = [probe for probe in point.probes if probe.spec.returns]
        if not returns:
            self.calls.release(point.program, point.insn.address)
        elif not any(probe.enabled for probe in returns):
            self.calls.retire(point.program, point.insn.address)

    def _code(
        self, point: Point, copy: int | None, emulates: bool, user: UserTarget, arena: Arena
    ) -> Sequence[Part]:
        """What a trap at `point` comes to."""
        parts: list[Part] = []
        here = [probe for probe in point.enabled if not probe.spec.returns]
        # Who is shown where the guest stops has been counted by all others.
        for probe in sorted(here, key=lambda each: each.handler.stops):
            code = self.stops.code(probe, probe.handler, dead_at_trap(user.kernel.isa), user, arena)
            parts.append(Part(f"the program of probe {probe.number}: {', '.join(probe.spec.actions)}", code, True))
        if returns := [probe for probe in point.enabled if probe.spec.returns]:
            program, address = point.program, point.insn.address
            entry = self.optimizer.with_memory(
                lambda: self.calls.entry(program, address, returns, user, arena), arena
            )
            parts.append(Part("the entry of a call whose return is probed", entry))
        return [*parts, *self._instruction(point, copy, emulates, self.traps.writable, user)]

    def _instruction(
        self, point: Point, copy: int | None, emulates: bool, writable: int, user: UserTarget
    ) -> Iterator[Part]:
        """What does, or has done, what the probed instruction does."""
        isa, insn = user.kernel.isa, point.insn
        emulated = isa.emulation(insn, point.program.bits, writable)
        if emulated is not None and emulates:
            yield Part(f"{insn.text}, done to the saved registers", emulated.code)
        if copy is not None:
            moved = isa.moved(copy - insn.address - isa.behind)
            yield Part(f"on in a copy of {insn.text}, at {copy:#x} in the program", moved)

    def would_be(self, spec: Spec) -> tuple[Point, bytes]:
        """The instruction that a probe would be on, and code as long as what a hit of a count would run.

        Raises OptprobeError.
        """
        user, point, _ = self._would(spec)
        near = user.kernel.calls.handler
        count = Handler().code(self.target.isa, At(near), dead_at_trap(user.kernel.isa), near, None)
        copy = None if not point.needs_copy else point.insn.address
        done = [part.code for part in self._instruction(point, copy, True, near, user)]
        return point, joined([count, *done])(near)
