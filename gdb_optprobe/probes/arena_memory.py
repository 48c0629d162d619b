"""The arena of a session: found, the guest unchanged; taken at first need; given back.

    nothing ──find──► found ──take──► taken ──give_back──► nothing
                 └──► missing, with the reason
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused, reason_of
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.arena_source import ArenaSource

MUST_RUN = "the guest's kernel is to lend it, for which the guest runs: add or enable a probe"


@dataclass
class ArenaMemory:
    """arena: what was taken."""

    arena_source: ArenaSource
    arena: Arena | None = None
    _found: Arena | None = None
    _missing: Reason | None = None

    def find(self) -> Arena:
        """Return the arena, or what would be it, the guest unchanged. Raises Refused where there is no memory."""
        found = self.arena or self._found
        if found is None and self._missing is None:
            try:
                found = self._found = self.arena_source.find()
            except OptprobeError as error:
                self._missing = reason_of(error, Refusal.ARENA_MISSING)
        if found is None:
            assert self._missing is not None
            raise Refused(self._missing)
        return found

    def must_borrow(self) -> bool:
        """Return whether the guest must run before there is one, so that its kernel lends memory."""
        if self.arena is not None:
            return False
        try:
            self.find()
        except Refused:
            return False
        return self.arena_source.lends()

    def take(self, entered: Callable[[Arena], None], borrow: bool) -> Arena:
        """entered: called with what was taken. Raises Refused, also where the guest must run for it, unless `borrow`.

        Why it could not be borrowed is kept for those that may not.
        """
        found = self.find()
        if self.arena is not None:
            return found
        if not borrow and self.arena_source.lends():
            raise Refused(self._missing or Refusal.ARENA_MISSING.because(why=MUST_RUN))
        try:
            self.arena_source.take()
            self.arena, self._missing = found, None
            entered(found)
        except OptprobeError as error:
            self._missing = reason_of(error, Refusal.ARENA_MISSING)
            if self.arena is None:
                raise Refused(self._missing) from None
        return found

    def release(self) -> None:
        """Raises OptprobeError where it stays as it is."""
        if self.arena is not None:
            self.arena_source.give_back()
        self.arena = self._found = self._missing = None
