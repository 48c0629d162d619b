"""From a connected GDB to a `Session`: recognise the guest, or say why not, before anything is written.

    no target ─ running ─ wrong architecture ─ wrong CPU mode ─ not booted ─ ready
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import gdb

from gdb_optprobe.debugger import kernel_symbols, kernel_types, objfiles, unwinder
from gdb_optprobe.debugger.boot import NOT_STARTED, BootTracker, Look, Nowhere, Stage, move_up, move_up_when_booted
from gdb_optprobe.debugger.gdb_symbols import GdbSymbols
from gdb_optprobe.debugger.guardian_process import GuardianProcess
from gdb_optprobe.debugger.guest_command import GuestCommand
from gdb_optprobe.debugger.interrupter import is_running
from gdb_optprobe.debugger.live_reader import live_memory
from gdb_optprobe.debugger.locations import Locations
from gdb_optprobe.debugger.machine import GdbMachine
from gdb_optprobe.debugger.memory_dump import MemoryDump
from gdb_optprobe.debugger.messages import note, progress, warn
from gdb_optprobe.debugger.modules import LinuxModules
from gdb_optprobe.debugger.parameters import current_settings, on_change
from gdb_optprobe.debugger.running import Ends, describe, is_stopped, run_for
from gdb_optprobe.debugger.stop_pcs import StopPcs
from gdb_optprobe.debugger.stops import GdbStops, addresses_of_users
from gdb_optprobe.debugger.unwinder import Kernel as UnwindKernel
from gdb_optprobe.errors import NotBooted, OptprobeError, Unreachable
from gdb_optprobe.garbage import collect_what_is_over
from gdb_optprobe.guest.bare import BareGuest
from gdb_optprobe.guest.cache import default_cache
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux import boot
from gdb_optprobe.guest.linux.arch import registry as linux_arches
from gdb_optprobe.guest.linux.arch.base import LinuxArch
from gdb_optprobe.guest.linux.arch.registry import ARCHES
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel, KnownFailures, discover
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.interrupts import held, interruptible
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.registry import ISAS, by_name
from gdb_optprobe.probes.arena_source import GivenArena
from gdb_optprobe.probes.leftovers import CALLS, LEFT, RECOVER
from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.probe import Presence
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.site_tracer import SiteTracer
from gdb_optprobe.probes.stops import Caller, Hit
from gdb_optprobe.probes.target import Command, NoTracer, Target, Ticks
from gdb_optprobe.probes.unpatched_text import UnpatchedText

RUNNING, INTERRUPT = "the guest is running", "interrupt it first"


@dataclass(frozen=True)
class KnownMemory:
    """What reads `spans` of a guest that runs, as these settings have it; None where nothing does, and why."""

    spans: Sequence[tuple[int, int]]
    settings: tuple[str, str]
    memory: LiveMemory | None
    why: str


@dataclass
class Attachment:
    """One guest that GDB is connected to. `connection` changes when GDB reconnects to the same guest.

    symbols: the start of the code for which GDB got our symbols; None where it had symbols.
    types: the file of the kernel's types that GDB got; None where it had them, or the kernel carries none.
    build: the build-id of the kernel; "" without one.
    untold: the line that names probes of an earlier GDB, until a command prints it.
    leaving: a breakpoint of the user that is being deleted, and that GDB still lists.
    unguarded: GDB has printed that the guest has no guardian.
    gone: GDB has printed that the guest is another one now.
    breaks: addresses of the user's breakpoints when probes last moved down for them; at first, those that there were.
    boot: set while probes wait for a kernel to start.
    live: how the data of probes are read should the guest run in the background.
    """

    connection: gdb.RemoteTargetConnection
    session: Session
    machine: GdbMachine
    stops: GdbStops
    linux: LinuxGuest | None
    unwind: UnwindKernel | None
    symbols: int | None = None
    types: Path | None = None
    build: str = ""
    untold: str = ""
    leaving: gdb.Breakpoint | None = None
    unguarded: bool = False
    gone: bool = False
    breaks: frozenset[int] = field(default_factory=addresses_of_users)
    boot: BootTracker | None = None
    live: KnownMemory | None = None

    def is_current(self) -> bool:
        """Return whether GDB is connected to that guest now, and the guest still has what was written; nothing is
        changed.
        """
        return gdb.selected_inferior().connection is self.connection and self.session.is_same_guest()


class Attachments:
    """The attachment of the selected inferior, made when it is first needed."""

    def __init__(self, isas: Sequence[Isa] = ISAS, arches: Sequence[LinuxArch] = ARCHES) -> None:
        self._isas, self._arches = isas, arches
        self.current: Attachment | None = None
        self._unsettled = self._moved = self._has_forgotten = self._is_abandoned = False
        self.installed: list[object] = []
        self.guard = GuardianProcess()
        self.pcs = StopPcs()
        self._vain = KnownFailures()

    def session(self, pending: bool = False) -> Session:
        """Return the session. Raises OptprobeError where there is no guest to work on.

        pending: whether probes may wait for its kernel to start; else one that has not is an error.
        """
        connection = stopped_guest()
        if self.current is not None:
            if self.current.connection is not connection:
                self._reconnect(connection)
            if self.current is not None and self.current.boot is not None:
                self.look_at_boot()
            if self.current is not None:
                self._tell_of_earlier(self.current)
                self._settle(self.current.session)
                return self.current.session
        made = self._made(connection, pending)
        self._tell_of_earlier(made)
        return made.session

    def look_at_boot(self, stage: Stage | None = None) -> None:
        """Put the probes that wait for the guest's kernel into it, if it has come far enough; else see that the guest
        stops where it may have. Raises OptprobeError.

        stage: the stop for that which the guest is at.
        """
        waiting = self.current
        if waiting is None or waiting.boot is None:
            return
        if not waiting.session.registry.probes():
            self.forget()
            return
        if not any(probe.enabled for probe in waiting.session.registry.probes()):
            return
        found = self._starting(waiting, waiting.boot)
        if found is None:
            if stage is not None:
                raise NotBooted("the guest's kernel is not known where it starts", "continue until it has booted")
            waiting.boot.arm(None)
            return
        if stage is Stage.STARTING or (stage is None and found.is_early):
            waiting.boot.arm(found.linux)
            return
        if stage is not None:
            found.linux.note_boot(ended=False)
        with held(firmly=True):  # a probe is no longer one that waits, and is not in the kernel yet
            waiting.boot.close()
            is_there = stage is Stage.BOOTED
            self.current = _linux(waiting.connection, found, waiting.stops, waiting.session, moves_up=not is_there)
            if is_there:
                move_up(found.linux, waiting.session)
        probes = waiting.session.registry.probes()
        here = sum(probe.presence is Presence.HERE for probe in probes)
        is_first = stage is Stage.PATCHED
        when = f"before {waiting.boot.arch.beginning.what}" if is_first else "what ran before is not counted"
        note(f"the guest's kernel has started: {here} of {len(probes)} probes in it, {when}")

    def _starting(self, waiting: Attachment, boot: BootTracker) -> _Found | None:
        """Return the kernel that probes wait for, as far as it has come; None where it has not started."""
        isa = waiting.session.target.guest.isa
        try:
            return _find(waiting.machine, isa, boot.arch, self._vain, waiting.session.registry)
        except NotBooted:
            return None

    def find_starting(self) -> LinuxGuest | None:
        """Return the kernel that probes wait for, if it has started. Raises OptprobeError."""
        assert self.current is not None and self.current.boot is not None, "a probe is added"
        found = self._starting(self.current, self.current.boot)
        return found.linux if found is not None else None

    def seen(self, tell: bool = True) -> Attachment:
        """Return the attachment, made where there is none. The guest is not changed, and pending work is not done.

        tell: whether to print that there are probes of an earlier GDB; once is enough.
        Raises OptprobeError where there is no guest, or another one than the attachment's.
        """
        connection = stopped_guest()
        found = self.current or self._made(connection)
        if found.boot is not None:
            raise NotBooted(NOT_STARTED)
        if not found.is_current():
            raise OptprobeError("the guest is not the one that was probed (rebooted, or a snapshot?)", "optprobe list")
        if tell:
            self._tell_of_earlier(found)
        return found

    def _tell_of_earlier(self, attachment: Attachment) -> None:
        line, attachment.untold = attachment.untold, ""
        if line:
            note(line)

    def _made(self, connection: gdb.RemoteTargetConnection, pending: bool = False) -> Attachment:
        if self._has_forgotten:
            collect_what_is_over()
            self._has_forgotten = False
        self.current = attach(connection, self._vain, self._isas, self._arches, self.look_at_boot if pending else None)
        on_change(self._setting_changed)
        return self.current

    def here(self) -> Attachment | None:
        """Return the attachment, if GDB is connected to its guest now. Events use it: they attach to none."""
        connection = gdb.selected_inferior().connection
        if self.current is not None and self.current.connection is not connection:
            if not isinstance(connection, gdb.RemoteTargetConnection) or not is_stopped():
                return None
            self._reconnect(connection)
        return self.current

    def forget(self) -> None:
        """Drop the attachment: the guest is gone."""
        if self.current is not None:
            attachment, self.current = self.current, None
            self._has_forgotten = True
            drop_live_memory(attachment)
            attachment.session.abandon()
            attachment.stops.close()
            if attachment.boot is not None:
                attachment.boot.close()
            if attachment.symbols is not None:
                kernel_symbols.withdraw(attachment.symbols)
            if attachment.types is not None:
                kernel_types.withdraw(attachment.types)

    def _reconnect(self, connection: gdb.RemoteTargetConnection) -> None:
        """Take over a new connection of GDB. The same guest keeps its probes; any other guest is forgotten."""
        assert self.current is not None
        self.current.connection = connection
        self.current.machine.connection = connection
        if self.current.machine.leave_physical_mode():
            self.pcs.keep(connection)
        self.current.session.target.guest.forget()
        try:
            self.current.session.check_alive()
        except OptprobeError as error:
            self.forget()
            warn(error.message)
        if self.current is not None and len(self.current.session.registry):
            self.guarded()

    def guarded(self) -> None:
        """Start the guardian before the guest is changed, or print in a line why there is none."""
        if self.current is None or not current_settings().guardian or self.guard.is_running:
            return
        why = self.guard.start(self.current.connection.details or "")
        if why and not self.current.unguarded:
            self.current.unguarded = True
            note(f"no guardian will free the guest if GDB dies (set optprobe guardian): {why}.")

    def parted(self, connection: gdb.TargetConnection) -> None:
        """End what depends on `connection`, which GDB has closed."""
        self.pcs.part(connection)
        if self.current is not None and self.current.connection is connection and not self._is_abandoned:
            self.guard.dismiss()

    def abandon(self) -> None:
        """Have the guardian free the guest as if GDB had died: GDB ends without detaching from it."""
        self._is_abandoned = True

    @held()
    def _setting_changed(self, name: str) -> None:
        if self.current is None:
            return
        if name == "guardian":
            if not current_settings().guardian:
                self.guard.dismiss()
            elif len(self.current.session.registry):
                self.guarded()
        if name in ("optimization", "boost", "emulation", "trap", "arena"):
            self._moved = self._moved or name == "arena"
            self._unsettled = True
            if is_stopped():
                self._tell_failure(self.current.session)

    def _tell_failure(self, session: Session) -> None:
        """Print a failure: GDB has no error path for what follows from a setting."""
        try:
            self._settle(session)
        except OptprobeError as error:
            warn(error)

    def _settle(self, session: Session) -> None:
        """Carry out what a setting changed, perhaps while the guest ran."""
        if not self._unsettled:
            return
        moved, self._unsettled, self._moved = self._moved, False, False
        session.check_alive()
        try:
            if moved:
                session.move_arena()
        finally:
            session.resettle()


attachments = Attachments()


def current_session(pending: bool = False) -> Session:
    """Return the session of the connected guest, made now if there was none. Raises OptprobeError.

    pending: see Attachments.session.
    """
    return attachments.session(pending)


def session_or_none() -> Session | None:
    """Return the session if there is one already."""
    return attachments.current.session if attachments.current is not None else None


def is_connected() -> bool:
    """Return whether there is a session, or a guest to attach to (which may have probes of an earlier GDB)."""
    connection = gdb.selected_inferior().connection
    return attachments.current is not None or isinstance(connection, gdb.RemoteTargetConnection)


@held()
def choose_live_memory() -> None:
    """Choose how the data of probes are read while the guest runs: only QEMU's monitor knows, and only at a stop."""
    current = attachments.current
    if current is None or current.boot is not None or not len(current.session.registry) or not is_stopped():
        return
    spans, settings, known = current.session.data_spans, current_settings(), current.live
    chosen = settings.live, settings.qmp_socket
    if not spans or (known is not None and (known.spans, known.settings) == (spans, chosen)):
        return
    drop_live_memory(current)
    try:
        current.session.target.guest.clock()  # asked for at a stop, it is known while the guest runs
        memory, why = live_memory(current.machine, spans, to_keep=True)
    except OptprobeError as error:
        memory, why = None, error.message
    current.live = KnownMemory(spans, chosen, memory, why)


def drop_live_memory(attachment: Attachment) -> None:
    """Close what reads the running guest."""
    known, attachment.live = attachment.live, None
    if known is not None and known.memory is not None:
        known.memory.close()


def running_session() -> tuple[Session, GdbMachine, LiveMemory]:
    """Return the session of a guest that runs in the background, and what reads its data. Raises OptprobeError."""
    current = attachments.current
    if current is None:
        raise OptprobeError(RUNNING, INTERRUPT)
    known = current.live
    if known is None or known.spans != current.session.data_spans:
        raise OptprobeError(f"{RUNNING}, and where its data are is asked at a prompt before that", INTERRUPT)
    if known.memory is None:
        raise OptprobeError(f"{RUNNING}, and cannot be read meanwhile: {known.why}", INTERRUPT)
    return current.session, current.machine, known.memory


def unwind_kernel() -> UnwindKernel | None:
    """Return the kernel for the unwinder, once one is attached to."""
    return attachments.current.unwind if attachments.current is not None else None


def stopped_guest() -> gdb.RemoteTargetConnection:
    """Return the connection. Raises OptprobeError where no stopped guest is connected."""
    inferior = gdb.selected_inferior()
    connection = inferior.connection
    # Asked for its threads, GDB would ask the guest, and refuse that while it runs.
    if isinstance(connection, gdb.RemoteTargetConnection) and is_running():
        raise OptprobeError(RUNNING, INTERRUPT)
    if connection is None or not inferior.threads():
        raise OptprobeError("no guest is connected", "target remote PATH-OF-THE-GDB-SOCKET (or :PORT)")
    if not isinstance(connection, gdb.RemoteTargetConnection):
        raise OptprobeError(f"the target is a {connection.description}, not a QEMU guest", "target remote …")
    if not is_stopped():
        raise OptprobeError(RUNNING, INTERRUPT)
    return connection


@dataclass(frozen=True)
class GdbDebugger:
    """Implements probes.target.Debugger for the current attachment."""

    locations: Locations
    guest: Guest

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        return self.locations.resolve(location, glob)

    def breakpoints(self) -> frozenset[int]:
        leaving = attachments.current.leaving if attachments.current is not None else None
        return addresses_of_users(without=leaving)

    def callers(self, hit: Hit) -> Iterable[Caller]:
        current = attachments.current
        if current is None or current.unwind is None:
            return ()
        return unwinder.callers(hit.regs, current.session, current.unwind)

    def run(self, seconds: float | None, until: Ends | None = None, ticks: Ticks | None = None) -> str | None:
        current = attachments.current
        if current is not None and current.boot is not None:
            return self._run_boot(current.boot, seconds, until)
        stops = current.stops if current is not None else None
        stop = run_for(seconds, stops, until=until, ticks=ticks)
        if stop is None:
            return None
        return stops.announced.rstrip() if stops is not None and stops.announced else describe(stop)

    def _run_boot(self, boot: BootTracker, seconds: float | None, until: Ends | None) -> str | None:
        """Run a guest of which the kernel has not started: it also stops where that is to be looked at."""
        end = time.monotonic() + seconds if seconds is not None else None
        current = attachments.current
        with boot.driven() as look:
            while current is not None and current.boot is boot:
                left = None if end is None else max(0.0, end - time.monotonic())
                stop = run_for(left, current.stops, until=until)
                if not look():
                    return describe(stop) if stop is not None else None
                current = attachments.current
        return self.run(None if end is None else max(0.0, end - time.monotonic()), until)

    def live_memory(self, spans: Sequence[tuple[int, int]]) -> tuple[LiveMemory | None, str]:
        current = attachments.current
        if current is None:
            return None, "there is no guest"
        return live_memory(current.machine, spans)

    def begin(self, command: str) -> Command:
        connection = gdb.selected_inferior().connection
        return GuestCommand((connection.details if connection is not None else None) or "", command)

    def guard(self) -> None:
        attachments.guarded()

    def is_same_guest(self) -> bool | None:
        try:
            return self.guest.is_same_kernel()
        except gdb.error as error:
            raise Unreachable(str(error)) from error

    def forget(self) -> None:
        attachments.forget()


def attach(
    connection: gdb.RemoteTargetConnection,
    vain: KnownFailures,
    isas: Sequence[Isa],
    arches: Sequence[LinuxArch],
    look: Look | None = None,
) -> Attachment:
    """Look at the guest and build its session. Raises OptprobeError; the guest is unchanged then.

    vain: kernels known to have no symbols. isas, arches: the supported ones. look: where probes may wait for a kernel
    to start, what looks how far it is; else one that has not booted is an error.
    """
    isa = by_name(gdb.selected_inferior().architecture().name(), isas)
    arch = linux_arches.of(isa, arches)
    machine = GdbMachine(connection, attachments.guard, isa)
    isa = isa.for_cpus(machine.of_each_vcpu)
    if machine.leave_physical_mode():
        attachments.pcs.keep(connection)
    if kernel_symbols.of_another_program():
        return _bare(connection, isa, machine, GdbStops(machine, isa, attachments.guard))
    if arch is None:
        raise _no_kernel()
    unpatched = UnpatchedText()
    try:
        found = _find(machine, isa, arch, vain, unpatched.registry)
        if found is None:
            raise _no_kernel()
        if found.is_early or (look is None and found.linux.is_booting()):
            raise NotBooted("the guest's kernel has not booted yet")
    except NotBooted:
        if look is None:
            raise
        return _waiting(connection, isa, arch, machine, look)
    return _linux(connection, found, GdbStops(machine, isa, attachments.guard))


def _no_kernel() -> NotBooted:
    return NotBooted(
        "no Linux kernel is mapped in the guest, and GDB has no symbols of another program",
        "continue until the kernel has booted, or load symbols with symbol-file",
    )


@dataclass(frozen=True)
class _Found:
    """A kernel that was found in the guest. is_early: it may still patch its text."""

    recovered: DiscoveredKernel
    machine: GdbMachine
    linux: LinuxGuest
    unpatched: UnpatchedText
    is_early: bool


def _find(
    machine: GdbMachine, isa: Isa, arch: LinuxArch, vain: KnownFailures, registry: Registry
) -> _Found | None:
    """Return the guest's kernel, as far as it has come; None where none is mapped. Raises NotBooted, OptprobeError."""
    cache = default_cache()
    if (why := cache.refused) is not None:
        warn(f"nothing is kept for the next session: {why}")
    dump = machine.dump = MemoryDump(machine.read_physical, machine.check_stopped)
    with interruptible():
        recovered = discover(machine, arch, cache, progress, vain, objfiles.files(), dump)
    if recovered is None:
        return None
    memory = KernelMemory(machine, machine, recovered.view.walk, dump)
    unpatched = UnpatchedText(registry)
    layouts = partial(objfiles.layouts, recovered.build)
    linux = LinuxGuest.of(recovered, machine, memory, isa, arch, unpatched, progress, GdbSymbols(), layouts)
    is_early = linux.is_booting() and not boot.is_behind(arch.beginning, linux.kernel.symbols, memory.read)
    return _Found(recovered, machine, linux, unpatched, is_early)


def _linux(
    connection: gdb.RemoteTargetConnection,
    found: _Found,
    stops: GdbStops,
    session: Session | None = None,
    moves_up: bool = True,
) -> Attachment:
    """Return the attachment to a Linux guest. Raises OptprobeError.

    session: of probes that waited for it. moves_up: whether a guest that boots stops where it has booted.
    """
    recovered, linux, machine = found.recovered, found.linux, found.machine
    kernel_symbols.warn_of_others(recovered.build)
    machine.memory = linux.memory
    arena = found.unpatched.earlier = LinuxArena(linux, current_settings, note)
    unwind = _unwind(linux, recovered, machine)
    loaded = kernel_symbols.provide(recovered, default_cache(), linux.isa.elf, unwound=unwind is not None)
    types = kernel_types.provide(linux.structures, recovered.shelf, default_cache(), linux.isa.elf)
    locations = Locations(recovered.symbols, linux.entries, linux.text, linux.event_addresses)
    target = Target(
        guest=linux,
        debugger=GdbDebugger(locations, linux),
        stops=stops,
        tracer=SiteTracer(linux.text, linux.memory),
        arena_source=arena,
        modules=LinuxModules(linux, locations, stops),
    )
    if session is None:
        session = Session(target, current_settings, found.unpatched.registry)
    else:
        for failure in session.kernel_started(target):
            warn(failure)
    traps = session.optimizer.traps
    found.unpatched.hooks = lambda: traps.dispatcher.patches
    if moves_up and linux.is_booting():
        move_up_when_booted(linux, stops, session)
    # Looked for now: it takes packets, and GDB 13 crashes where the unwinder is the first to need the answer.
    return Attachment(
        connection, session, machine, stops, linux, unwind, loaded, types, recovered.build, untold=_earlier(arena)
    )


def _waiting(
    connection: gdb.RemoteTargetConnection, isa: Isa, arch: LinuxArch, machine: GdbMachine, look: Look
) -> Attachment:
    """Return the attachment to a guest of which the kernel has not started: its probes can only wait."""
    tracker = BootTracker(machine, arch, attachments.find_starting, look)
    guest = BareGuest(machine, isa, UnpatchedText(), GdbSymbols())
    stops = GdbStops(machine, isa, attachments.guard)
    target = Target(
        guest=guest,
        debugger=GdbDebugger(Nowhere(), guest),
        stops=stops,
        tracer=NoTracer(),
        arena_source=GivenArena(current_settings, isa),
        modules=tracker,
    )
    return Attachment(connection, Session(target, current_settings), machine, stops, None, None, boot=tracker)


def _unwind(linux: LinuxGuest, recovered: DiscoveredKernel, machine: GdbMachine) -> UnwindKernel | None:
    # Packets of our own in the middle of unwinding make GDB 13 crash: an unwinder reads through GDB alone.
    unwinder = linux.unwinder(machine.read_selected, quietly=True)
    if unwinder is None:
        return None

    def start(address: int) -> int | None:
        module = linux.text.known(address)
        symbols = recovered.symbols if module is None else module.symbols.table
        bounds = symbols.function_bounds(address)
        return bounds[0] if bounds is not None else None

    return UnwindKernel(unwinder, linux.isa, start, machine.read_selected)


def _bare(connection: gdb.RemoteTargetConnection, isa: Isa, machine: GdbMachine, stops: GdbStops) -> Attachment:
    """Return the attachment to a guest without an operating system: GDB's symbols, the user's arena."""
    isa = isa.for_guarded_code(machine.of_each_vcpu)
    unpatched = UnpatchedText()
    guest = BareGuest(machine, isa, unpatched, GdbSymbols())
    target = Target(
        guest=guest,
        debugger=GdbDebugger(Locations(None, lambda starts: starts), guest),
        stops=stops,
        tracer=NoTracer(),
        arena_source=GivenArena(current_settings, isa),
    )
    session = Session(target, current_settings, unpatched.registry)
    return Attachment(connection, session, machine, stops, None, None)


def _earlier(arena: LinuxArena) -> str:
    """Return the line that names what an earlier GDB has left in the guest; "" where that is nothing."""
    try:
        left = arena.left()
    except OptprobeError as error:
        warn(error)
        return ""
    if left is None or not (left.probes or left.live_blocks or left.users):
        return ""
    return f"{LEFT if left.probes or left.live_blocks else CALLS}: {RECOVER}"
