"""Where the arena comes from: the interface, and the ranges that the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.isa.record import Isa, slot_unit
from gdb_optprobe.probes.settings import Settings


class ArenaSource(Protocol):
    """Memory for detours in one guest."""

    @property
    def code(self) -> Sequence[tuple[int, int]]:
        """Return where detours are, in what `find` found last."""

    def find(self) -> Arena:
        """Find it; the guest is unchanged. Raises Refused (ARENA_MISSING) or OptprobeError."""

    def take(self) -> None:
        """Make what `find` found ready for use: page tables, say. The journal has it before. Raises OptprobeError."""

    def lends(self) -> bool:
        """Return whether `take` would run the guest, so that its kernel lends memory."""

    def give_back(self) -> None:
        """Undo `take`, once nothing is left in it. Raises OptprobeError where a loan stays."""

    def left(self) -> ArenaContents | None:
        """Return what an earlier GDB, or a snapshot, has in the guest; None where there is nothing (any more).

        Raises OptprobeError.
        """

    def finish(self) -> bool:
        """Give back what an earlier GDB had begun to take, or to give back, where `left` is None.

        Return whether it has left code there, which goes with the arena when no thread is in it. Raises OptprobeError.
        """

    def is_in_place(self) -> bool:
        """Return whether the guest has it as it was taken and last changed. Raises Unreadable."""

    @property
    def keeps_journal(self) -> bool:
        """Whether `is_in_place` notices a snapshot that was loaded meanwhile."""


@dataclass(frozen=True)
class GivenArena:
    """The ranges of `set optprobe arena`, in a guest of which no other memory is known."""

    settings: Callable[[], Settings]
    isa: Isa

    @property
    def code(self) -> Sequence[tuple[int, int]]:
        given = self.settings().arena
        return (given.code,) if given is not None else ()

    def find(self) -> Arena:
        return given_arena(self.settings(), self.isa)

    def take(self) -> None:
        """It is ready for use."""

    def lends(self) -> bool:
        return False

    def give_back(self) -> None:
        """It is the user's."""

    def left(self) -> ArenaContents | None:
        return None

    def finish(self) -> bool:
        return False

    def is_in_place(self) -> bool:
        return True

    @property
    def keeps_journal(self) -> bool:
        return False


def given_arena(settings: Settings, isa: Isa) -> Arena:
    """Return the ranges of `set optprobe arena`. Raises Refused where there are none."""
    if settings.arena is None:
        raise Refused(Refusal.ARENA_MISSING.because(why="this guest is no Linux with known memory"))
    ranges = Ranges(code=(settings.arena.code,), data=(settings.arena.data,))
    return Arena(ranges, isa.alignment, unit=slot_unit(isa))
