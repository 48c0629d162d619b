"""Probes that wait for the guest's kernel to start, and move up once it has booted.

    reset ──a read of the first memory that a kernel reads──► its symbols are there
          ──a breakpoint where its text is patched──► the probes go in; they stop the guest
          ──a stop point where it has booted──► they move up

A kernel that has patched its text when the first probe is added stops where it has booted, and all is done there.
Each stop is a breakpoint of QEMU's: the guest runs at full speed, and nothing of it is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial

import gdb

from gdb_optprobe.debugger.interrupter import mark_stopped
from gdb_optprobe.debugger.locations import Locations
from gdb_optprobe.debugger.machine import GdbMachine
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.stops import GdbStops, Hidden
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import NotBooted, OptprobeError
from gdb_optprobe.guest.linux import boot
from gdb_optprobe.guest.linux.arch.base import LinuxArch
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.interrupts import held, unbroken
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import Hit, StopPoint
from gdb_optprobe.probes.target import NoModules

LOOK_COMMAND = "optprobe-boot"
LOOKING = f"silent\n{LOOK_COMMAND}\ncontinue"
PIECE = 1 << 16
"""Bytes of one watchpoint: GDB reads no value above its `max-value-size`."""
INTERRUPTED = "optprobe: interrupted: the guest is stopped while its kernel starts\nHINT: continue"
NOT_STARTED = "the guest's kernel has not started yet"


class Stage(Enum):
    """Where the guest stops as its kernel boots."""

    STARTING = auto()
    PATCHED = auto()
    BOOTED = auto()


Look = Callable[[Stage | None], None]


class BootTracker(NoModules):
    """Stops the guest where its kernel may have come far enough for probes. A StopPoint of its own.

    find: returns the guest's kernel, None where it has not started. Raises OptprobeError.
    look: looks how far it is, and arms this or puts the probes in. Its argument: the stop that the guest is at.
    """

    stepped = moved = 0

    def __init__(
        self, machine: GdbMachine, arch: LinuxArch, find: Callable[[], LinuxGuest | None], look: Look
    ) -> None:
        self._machine = machine
        self.arch = arch
        self._find = find
        self._look = look
        self._places: Mapping[str, Stage] = {}
        self._set: list[_BootStop] = []
        self._retired: list[_BootStop] = []
        self._is_closed = self._is_driven = False
        self._reached: Stage | None = None
        Hidden(LOOK_COMMAND, self._stopped)
        gdb.events.before_prompt.connect(self._prompted)

    def can_wait(self, spec: Spec) -> bool:
        if spec.is_return or (spec.tier and Tier(spec.tier) not in (Tier.BREAKPOINT, Tier.EMULATED)):
            what = "a return probe" if spec.is_return else f"-tier {spec.tier}"
            raise OptprobeError(
                f"{what} needs memory of the guest, and while its kernel boots none is free", "add it without -pending"
            )
        return not spec.location.strip().startswith("*")

    def waits(self, location: str, why: str) -> Reason:
        return Refusal.KERNEL_PENDING.because(location=location, why=why)

    def on_load(self, call: Callable[[int], None]) -> StopPoint:
        if not self._machine.translates_pages():
            raise OptprobeError("only under TCG can the guest be stopped where its kernel starts", "continue, then add")
        if not self.arch.first_reads:
            why = f"where a kernel of {self.arch.isa.name} starts is not known"
            raise OptprobeError(why, "continue until it has booted, then add")
        self.arm(self._find())
        return self

    def remove(self) -> None:
        self.disarm()

    def arm(self, linux: LinuxGuest | None) -> None:
        """Have the guest stop where `linux` has patched its text, and where it has booted: that is next for one that is
        behind the former. None: where a kernel starts. Raises OptprobeError.
        """
        if linux is None:
            areas = [
                f"*(char(*)[{min(PIECE, start + size - at)}]){at:#x}"
                for start, size in self.arch.first_reads
                for at in range(start, start + size, PIECE)
            ]
            self._arm(dict.fromkeys(areas, Stage.STARTING), gdb.BP_WATCHPOINT)
        else:
            stages = {self.arch.beginning.symbol: Stage.PATCHED, boot.END: Stage.BOOTED}
            places = {linux.entry(linux.kernel.address(symbol)): stage for symbol, stage in stages.items()}
            self._arm({f"*{place:#x}": stage for place, stage in places.items()}, gdb.BP_BREAKPOINT)

    def _note_reached(self, stage: Stage) -> None:
        self._reached = stage

    @contextmanager
    def driven(self) -> Iterator[Callable[[], bool]]:
        """Leave the guest stopped at our stops within the block. Yield a function that looks at the guest there, and
        returns False at any other stop. The breakpoints' own commands would resume it when the run is over.
        """
        self._is_driven = True
        for stop in self._set:
            stop.commands = ""
        try:
            yield self._look_if_reached
        finally:
            self._is_driven = False
            for stop in self._set:
                stop.commands = LOOKING

    def _look_if_reached(self) -> bool:
        if self._reached is None:
            return False
        self._stopped()
        return True

    def _arm(self, places: Mapping[str, Stage], kind: int) -> None:
        if places == self._places:
            return
        self.disarm()
        try:
            for place, stage in places.items():
                reached = partial(self._note_reached, stage)
                self._set.append(_BootStop(place, kind, "" if self._is_driven else LOOKING, reached))
        except gdb.error as error:
            self.disarm()
            raise OptprobeError(f"GDB cannot stop the guest where its kernel starts: {error}") from error
        self._places = places

    def disarm(self) -> None:
        """Disable the breakpoints now; they are deleted at the next prompt, because GDB may be at one of them."""
        for stop in self._set:
            if stop.is_valid():
                stop.enabled = False
        self._retired += self._set
        self._set, self._places = [], {}

    def close(self) -> None:
        """Remove everything: no probe waits any more, or the guest is gone."""
        self.disarm()
        self._is_closed = True

    def _prompted(self, *_: object) -> None:
        for stop in self._retired:
            if stop.is_valid():
                stop.delete()
        self._retired.clear()
        if self._is_closed:
            gdb.events.before_prompt.disconnect(self._prompted)

    def _stopped(self) -> None:
        """Look at the guest at a stop. The guest is resumed in any case but a Ctrl-C, which waits: a look that ends
        half-way would lose the probes.
        """
        reached, self._reached = self._reached, None
        try:
            with held(firmly=True):
                try:
                    self._look(reached)
                except (OptprobeError, gdb.error) as error:
                    warn(error)
                    self.disarm()
        except KeyboardInterrupt:
            raise gdb.GdbError(INTERRUPTED) from None


class _BootStop(gdb.Breakpoint):
    """An internal breakpoint, or watchpoint of reads, of which the commands look at the guest and resume it."""

    def __init__(self, place: str, kind: int, commands: str, reached: Callable[[], None]) -> None:
        super().__init__(place, type=kind, wp_class=gdb.WP_READ, internal=True)
        self.silent = True
        self.commands = commands
        self._reached = reached

    def stop(self) -> bool:
        unbroken(mark_stopped)()
        self._reached()
        return True


class Nowhere(Locations):
    """Of a guest of which the kernel has not started: nothing is anywhere."""

    def __init__(self) -> None:
        super().__init__(None, lambda starts: starts)

    def resolve(self, location: str, glob: bool = False) -> tuple[int, ...]:
        raise NotBooted(NOT_STARTED)


def move_up_when_booted(linux: LinuxGuest, stops: GdbStops, session: Session) -> None:
    """Have the guest stop where its kernel has booted, to move its probes up. Raises OptprobeError."""

    def hit(_: Hit) -> None:
        point.remove()
        move_up(linux, session)

    point = stops.set(linux.entry(linux.kernel.address(boot.END)), hit)


def move_up(linux: LinuxGuest, session: Session) -> None:
    """Move the probes of a kernel that has booted up."""
    linux.note_boot(ended=True)
    try:
        session.kernel_booted()
    except OptprobeError as error:
        warn(error)
