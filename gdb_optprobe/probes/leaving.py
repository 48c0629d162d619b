"""Take all of ours out of a guest: what somebody is still in stays, and it is told who."""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.detours import quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session

STAYS = "the probes are removed, their memory in the guest is still in use"


def leave(session: Session) -> None:
    """The probes, and the arena. Raises OptprobeError where that is still in use: another GDB's probes use it again."""
    target, optimizer = session.target, session.optimizer
    session.check_alive()
    session.delete()
    session.uprobes.tidy()
    arena = optimizer.arena
    if optimizer.release_arena() or arena is None:
        return
    if not target.stacks_missing:
        target.step_out(arena.ranges.code)
        session.uprobes.tidy()
        if optimizer.release_arena():
            return
    arena.journal.flush()
    if not target.stacks_missing:
        raise OptprobeError(f"{STAYS}: {_who(session, arena)}")


def _who(session: Session, arena: Arena) -> str:
    """Who is in it, in words."""
    try:
        inside = {one.who for one in quiescence.busy(_ranges(session, arena), session.target.saved())}
    except OptprobeError as error:
        return error.message
    if not inside:
        return "programs may yet come to it"
    first, *others = sorted(inside)
    who = f"{first} and {len(others)} more are" if others else f"{first} is"
    return f"{who} in a detour, or will return to one, and will go on from there"


def _ranges(session: Session, arena: Arena) -> Iterator[Range]:
    """Where nobody may be when all goes."""
    yield from ((slot.address, slot.end) for slot in arena.dirty())
    yield from session.optimizer.traps.handler_ranges
    yield from session.uprobes.traps.handler_ranges
