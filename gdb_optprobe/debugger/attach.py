"""From a connected GDB to a `Session`: recognise the guest, or say why not, before anything is written.

    no target ─ running ─ wrong architecture ─ wrong CPU mode ─ not booted ─ ready
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import gdb

from gdb_optprobe.debugger import kernel_symbols, objfiles
from gdb_optprobe.debugger.gdb_symbols import GdbSymbols
from gdb_optprobe.debugger.guardian_process import GuardianProcess
from gdb_optprobe.debugger.guest_command import GuestCommand
from gdb_optprobe.debugger.locations import Locations
from gdb_optprobe.debugger.machine import GdbMachine
from gdb_optprobe.debugger.messages import note, progress, warn
from gdb_optprobe.debugger.modules import LinuxModules
from gdb_optprobe.debugger.parameters import current_settings, on_change
from gdb_optprobe.debugger.running import Ends, describe, is_stopped, run_for
from gdb_optprobe.debugger.stops import GdbStops, addresses_of_users
from gdb_optprobe.debugger.unwinder import Kernel as UnwindKernel
from gdb_optprobe.errors import OptprobeError, Unreachable
from gdb_optprobe.guest.bare import BareGuest
from gdb_optprobe.guest.cache import default_cache
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.arch import registry as linux_arches
from gdb_optprobe.guest.linux.arch.base import LinuxArch
from gdb_optprobe.guest.linux.arch.registry import ARCHES
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel, KnownFailures, discover
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.interrupts import held, interruptible
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.registry import ISAS, by_name
from gdb_optprobe.probes.arena_source import GivenArena
from gdb_optprobe.probes.leftovers import CALLS, LEFT, RECOVER
from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.site_tracer import SiteTracer
from gdb_optprobe.probes.target import Command, NoTracer, Target
from gdb_optprobe.probes.unpatched_text import UnpatchedText


@dataclass
class Attachment:
    """One guest that GDB is connected to. `connection` changes when GDB reconnects to the same guest.

    symbols: the start of the code for which GDB got our symbols; None where it had symbols.
    leaving: a breakpoint of the user that is being deleted, and that GDB still lists.
    unguarded: GDB has printed that the guest has no guardian.
    gone: GDB has printed that the guest is another one now.
    breaks: addresses of the user's breakpoints when probes last moved down for them; at first, those that there were.
    """

    connection: gdb.RemoteTargetConnection
    session: Session
    machine: GdbMachine
    stops: GdbStops
    linux: LinuxGuest | None
    unwind: UnwindKernel | None
    symbols: int | None = None
    leaving: gdb.Breakpoint | None = None
    unguarded: bool = False
    gone: bool = False
    breaks: frozenset[int] = field(default_factory=addresses_of_users)

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
        self._unsettled = self._moved = False
        self.installed: list[object] = []
        self.guard = GuardianProcess()
        self._vain = KnownFailures()

    def session(self) -> Session:
        """Return the session. Raises OptprobeError where there is no guest to work on."""
        connection = stopped_guest()
        if self.current is not None:
            if self.current.connection is not connection:
                self._reconnect(connection)
            if self.current is not None:
                self._settle(self.current.session)
                return self.current.session
        return self._made(connection).session

    def seen(self) -> Attachment:
        """Return the attachment, made where there is none. The guest is not changed, and pending work is not done.

        Raises OptprobeError where there is no guest, or another one than the attachment's.
        """
        connection = stopped_guest()
        found = self.current or self._made(connection)
        if not found.is_current():
            raise OptprobeError("the guest is not the one that was probed (rebooted, or a snapshot?)", "optprobe list")
        return found

    def _made(self, connection: gdb.RemoteTargetConnection) -> Attachment:
        self.current = attach(connection, self._vain, self._isas, self._arches)
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
            attachment.session.abandon()
            attachment.stops.close()
            if attachment.symbols is not None:
                kernel_symbols.withdraw(attachment.symbols)

    def _reconnect(self, connection: gdb.RemoteTargetConnection) -> None:
        """Take over a new connection of GDB. The same guest keeps its probes; any other guest is forgotten."""
        assert self.current is not None
        self.current.connection = connection
        self.current.machine.connection = connection
        self.current.machine.leave_physical_mode()
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
        if self.current is not None and self.current.connection is connection:
            self.guard.dismiss()

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


def current_session() -> Session:
    """Return the session of the connected guest, made now if there was none. Raises OptprobeError."""
    return attachments.session()


def session_or_none() -> Session | None:
    """Return the session if there is one already."""
    return attachments.current.session if attachments.current is not None else None


def is_connected() -> bool:
    """Return whether there is a session, or a guest to attach to (which may have probes of an earlier GDB)."""
    connection = gdb.selected_inferior().connection
    return attachments.current is not None or isinstance(connection, gdb.RemoteTargetConnection)


def unwind_kernel() -> UnwindKernel | None:
    """Return the kernel for the unwinder, once one is attached to."""
    return attachments.current.unwind if attachments.current is not None else None


def stopped_guest() -> gdb.RemoteTargetConnection:
    """Return the connection. Raises OptprobeError where no stopped guest is connected."""
    inferior = gdb.selected_inferior()
    connection = inferior.connection
    if connection is None or not inferior.threads():
        raise OptprobeError("no guest is connected", "target remote PATH-OF-THE-GDB-SOCKET (or :PORT)")
    if not isinstance(connection, gdb.RemoteTargetConnection):
        raise OptprobeError(f"the target is a {connection.description}, not a QEMU guest", "target remote …")
    if not is_stopped():
        raise OptprobeError("the guest is running", "interrupt it first")
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

    def run(self, seconds: float | None, until: Ends | None = None) -> str | None:
        stops = attachments.current.stops if attachments.current is not None else None
        stop = run_for(seconds, stops, until=until)
        if stop is None:
            return None
        return stops.announced.rstrip() if stops is not None and stops.announced else describe(stop)

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
    connection: gdb.RemoteTargetConnection, vain: KnownFailures, isas: Sequence[Isa], arches: Sequence[LinuxArch]
) -> Attachment:
    """Look at the guest and build its session. Raises OptprobeError; the guest is unchanged then.

    vain: kernels known to have no symbols. isas, arches: the supported ones.
    """
    isa = by_name(gdb.selected_inferior().architecture().name(), isas)
    arch = linux_arches.of(isa, arches)
    machine = GdbMachine(connection, attachments.guard, isa)
    machine.leave_physical_mode()
    cache = default_cache()
    if (why := cache.refused) is not None:
        warn(f"nothing is kept for the next session: {why}")
    other = kernel_symbols.of_another_program()
    with interruptible():
        recovered = None if other or arch is None else discover(machine, arch, cache, progress, vain, objfiles.files())
    if recovered is None and not other:
        raise OptprobeError(
            "no Linux kernel is mapped in the guest, and GDB has no symbols of another program",
            "continue until the kernel has booted, or load symbols with symbol-file",
        )
    stops = GdbStops(machine, isa, attachments.guard)
    if recovered is None or arch is None:
        return _bare(connection, isa, machine, stops)
    kernel_symbols.warn_of_others(recovered.build)
    memory = KernelMemory(machine, machine, recovered.view.walk)
    machine.memory = memory
    unpatched = UnpatchedText()
    layouts = partial(objfiles.layouts, recovered.build)
    linux = LinuxGuest.of(recovered, machine, memory, isa, arch, unpatched, progress, GdbSymbols(), layouts)
    arena = unpatched.earlier = LinuxArena(linux, current_settings, note)
    unwind = _unwind(linux, recovered, machine)
    loaded = kernel_symbols.provide(recovered, cache, isa.elf, unwound=unwind is not None)
    locations = Locations(recovered.symbols, linux.entry, linux.text)
    target = Target(
        guest=linux,
        debugger=GdbDebugger(locations, linux),
        stops=stops,
        tracer=SiteTracer(linux.text, memory),
        arena_source=arena,
        modules=LinuxModules(linux, locations, stops),
    )
    session = Session(target, current_settings, unpatched.registry)
    _tell_of_earlier(arena)
    return Attachment(connection, session, machine, stops, linux, unwind, loaded)


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
    unpatched = UnpatchedText()
    guest = BareGuest(machine, isa, unpatched, GdbSymbols())
    target = Target(
        guest=guest,
        debugger=GdbDebugger(Locations(None, lambda address: address), guest),
        stops=stops,
        tracer=NoTracer(),
        arena_source=GivenArena(current_settings, isa),
    )
    session = Session(target, current_settings, unpatched.registry)
    return Attachment(connection, session, machine, stops, None, None)


def _tell_of_earlier(arena: LinuxArena) -> None:
    try:
        left = arena.left()
        if left is not None and (left.probes or left.users):
            note(f"{LEFT if left.probes else CALLS}: {RECOVER}")
    except OptprobeError as error:
        warn(error)
