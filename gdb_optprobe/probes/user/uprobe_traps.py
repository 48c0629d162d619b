"""Traps in user programs: each leads to code that runs the probes and the instruction, and then returns.

    trap ──► the kernel's entry code ──► dispatcher ── table ──► code of the trap ──► back to the program
The dispatcher and its table are in ../trap_dispatcher.py. What traps in programs have for themselves: routines that the
traps' code calls, and code for removed traps, which reads the program's text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable
from gdb_optprobe.handlers.lower_user_traps import lower_removed_trap, lower_user_trap_handler
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.maps.trap_table import USER_KEY
from gdb_optprobe.probes.hooks import NOT_INSTALLED, InstalledBytes
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.trap_dispatcher import NO_CODES, Codes, Dispatch, TrapDispatcher
from gdb_optprobe.probes.user.target import UserTarget


@dataclass(frozen=True, slots=True)
class _Routines:
    """writable: says whether the kernel may write what is at a user's address."""

    removed: InstalledDetour
    writable: InstalledDetour

    @property
    def all(self) -> tuple[InstalledDetour, ...]:
        return self.removed, self.writable


@dataclass
class UprobeTraps:
    """The traps of a session in user programs."""

    guest: Guest
    dispatcher: TrapDispatcher = field(init=False)
    _routines: _Routines | None = None

    def __post_init__(self) -> None:
        self.dispatcher = TrapDispatcher(self.guest, TableKind.USER_TRAPS, USER_KEY)

    def install(
        self,
        user: UserTarget,
        readers: ProbeReadRoutines,
        arena: Arena,
        standing: InstalledBytes = NOT_INSTALLED,
        codes: Codes = NO_CODES,
    ) -> None:
        """Install the dispatcher and its routines, once. Raises Refused, TextChanged with the guest as it was.

        codes: what an earlier session's traps lead to from then on; None for those that were removed.
        """
        if self._routines is not None:
            return
        kernel, near, placed = user.kernel, user.kernel.calls.handler, list[InstalledDetour]()

        def put(code: Code) -> InstalledDetour:
            placed.append(self.install_or_reuse(code, near, arena))
            return placed[-1]

        try:
            writable = put(lambda at: kernel.writable)
            removed = put(lower_removed_trap(near, readers, kernel.isa))

            def lower(table: PlacedTrapTable) -> Code:
                return lower_user_trap_handler(table, kernel.mapped, near, kernel.isa)

            dispatch = Dispatch(kernel.calls, lower, removed.detour.address)
            self.dispatcher.install(dispatch, arena, codes, standing)
        except OptprobeError:
            for one in placed:
                one.release(self.guest, arena, reached=False)
            raise
        self._routines = _Routines(removed, writable)

    @property
    def writable(self) -> int:
        """Return the address of the routine."""
        assert self._routines is not None, "install"
        return self._routines.writable.detour.address

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Return where a thread may be on behalf of any trap: the way to the dispatcher, its code and the routines."""
        return (*self.dispatcher.ranges, *self._routine_ranges)

    @property
    def _routine_ranges(self) -> tuple[Range, ...]:
        return tuple(one.range for one in self._routines.all) if self._routines is not None else ()

    def install_or_reuse(self, code: Code, near: int, arena: Arena) -> InstalledDetour:
        """Install code that traps lead to, or reuse the same of an earlier session. Raises Refused."""
        return InstalledDetour.install_or_reuse(near, lambda at: Detour(at, code(at), near, ()), self.guest, arena)

    def install_code(self, code: Code, near: int, arena: Arena) -> InstalledDetour:
        """Install code that traps lead to. Raises Refused."""
        return InstalledDetour.install(near, lambda at: Detour(at, code(at), near, ()), self.guest, arena)

    def remove(self, user: UserTarget, arena: Arena) -> None:
        """Remove the dispatcher and its routines, if no trap is left and no thread is in them. Raises TextChanged."""
        beside = (*user.kernel.calls.beside, *arena.ranges.code)
        if self._routines is not None and self.dispatcher.remove(self._routine_ranges, beside):
            for one in self._routines.all:
                one.release(self.guest, arena, reached=True)
            self._routines = None

    def abandon(self) -> None:
        """Forget all: the guest that held it is gone."""
        self.dispatcher.abandon()
        self._routines = None
