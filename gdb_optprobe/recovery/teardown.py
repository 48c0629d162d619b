"""Remove the probes and their memory from a guest. Code that a thread is in is kept; the error names the thread."""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.detours import quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session

STAYS = "the probes are removed, their memory in the guest is still in use"


def teardown(session: Session) -> None:
    """Remove all probes and give the arena back.

    Raises OptprobeError where the arena is still in use: the next GDB uses it again.
    """
    target, optimizer = session.target, session.optimizer
    session.check_alive()
    session.delete()
    session.uprobes.tidy()
    arena = optimizer.arena
    if optimizer.release_arena() or arena is None:
        return
    if not target.guest.stacks_missing:
        target.guest.step_out(arena.ranges.code)
        session.uprobes.tidy()
        if optimizer.release_arena():
            return
    arena.journal.flush()
    if not target.guest.stacks_missing:
        raise OptprobeError(f"{STAYS}: {_describe_busy(session, arena)}")


def _describe_busy(session: Session, arena: Arena) -> str:
    """Describe the threads that are in the arena's code."""
    try:
        inside = {one.owner for one in quiescence.busy(_busy_ranges(session, arena), session.target.guest.saved())}
    except OptprobeError as error:
        return error.message
    if not inside:
        return "programs may still enter it"
    first, *others = sorted(inside)
    owners = f"{first} and {len(others)} more are" if others else f"{first} is"
    return f"{owners} in a detour, or will return to one, and continue from there"


def _busy_ranges(session: Session, arena: Arena) -> Iterator[Range]:
    """Yield the code that no thread may be in when the arena is given back."""
    yield from ((slot.address, slot.end) for slot in arena.dirty())
    yield from session.optimizer.traps.dispatcher.ranges
    yield from session.uprobes.traps.ranges
