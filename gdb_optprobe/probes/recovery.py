"""Take over what an earlier GDB left in the guest, or take it out.

    Left ──► everything is checked ──► branches go ──► detours are left, memory stays ──► probes are added anew
                   an error: nothing was changed              somebody may be inside       with the memory they had
A kill in between leaves a journal that tells as much as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours import patch, quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.left import Left, Text, undoing
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.objects.journal import Damaged
from gdb_optprobe.probes.gathered import Gathered
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.noting import Noted, fingerprint, noted
from gdb_optprobe.probes.old_points import points_of
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.user import notes as user_notes
from gdb_optprobe.probes.views import ProbeView

TRIES, PAUSE = 20, 0.05
CHANGED = "it would not do here what it did there"


@dataclass(frozen=True, slots=True)
class Recovered:
    """probes: that are there again. lost: what is not, and why, in words."""

    probes: tuple[ProbeView, ...]
    lost: tuple[str, ...]


def recover(session: Session) -> Recovered:
    """Every probe that an earlier GDB left, with what it has counted. Raises OptprobeError, nothing changed."""
    left, found, undone = _left(session)
    arena = _take(session, left, undone)
    probes: list[Probe] = []
    lost: list[str] = []
    programs = [one for one in found if one.spec.in_program]
    for one in found:
        if one.spec.in_program:
            continue
        try:
            probes.append(_again(session, one, left))
        except OptprobeError as error:
            lost.append(f"probe {one.number}, {one.spec.location}, is not recovered: {error.message}")
    counters = {probe.counter for probe in probes if probe.counter is not None}
    kept = (left.at(one.data) for one in programs if one.data is not None)
    arena.release_data(counters.union(filter(None, kept), session.optimizer.traps.memory, session.users.calls.memory))
    there = [probe for probe in probes if probe.waits is None]
    for probe in there:
        _reserve(session, probe)
    session.optimizer.settle([session.registry.site_of(probe) for probe in there])
    for one in programs:
        try:
            probes.append(session.users.again(one, left.at(one.data) if one.data is not None else None))
        except OptprobeError as error:
            lost.append(f"probe {one.number}, {one.spec.location}, is not recovered: {error.message}")
    recovered = {probe.number for probe in probes}
    for one in found:
        if one.number not in recovered:
            arena.journal.drop(Item.PROBE, one.number)
    session.optimizer.note(probes)
    session.comings.listen()
    session.comings.notice()
    return Recovered(session.views([probe.number for probe in probes]) if probes else (), tuple(lost))


def remove(session: Session, timeout: float) -> int:
    """Take out what an earlier GDB left, and give its memory back; how many probes that were.

    The guest runs in slices until nobody is inside. Raises OptprobeError, with nothing changed, or when somebody still
    is inside after `timeout` seconds.
    """
    left, found, undone = _left(session)
    arena = _take(session, left, undone)
    arena.release_data((*session.optimizer.traps.memory, *session.users.calls.memory))
    for one in found:
        arena.journal.drop(Item.PROBE, one.number)
    session.optimizer.note()
    session.users.tidy()
    if not session.optimizer.give_back_arena():
        session.commit(timeout)
        session.optimizer.give_back_arena()
    return len(found)


def _left(session: Session) -> tuple[Left, Sequence[Noted], Sequence[Patch]]:
    """What is left, its probes, and how the branches go; checked as far as it can be before anything is changed."""
    session.target.alive()
    left = session.target.left()
    if left is None:
        raise OptprobeError("no probes of an earlier GDB are in this guest")
    found = [noted(number, value) for number, value in sorted((left.probes or {}).items())]
    for one in found:
        if one.data is not None and left.at(one.data) is None:
            raise Damaged(f"probe {one.number} has no memory at {one.data:#x}")
    points_of(left, None)
    if traps := user_notes.noted(left.users or {}):
        if any(trap.calls and left.at(trap.calls) is None for trap in traps):
            raise Damaged("calls of programs have no memory")
        _await_writers(session, left)
    texts, ways = undoing(left, session.target.machine, session.target.isa)
    return left, found, (*texts, *ways)


def _await_writers(session: Session, left: Left) -> None:
    """Have the guest run until nobody may be about to write traps into programs, in code of its own.

    Raises OptprobeError where somebody stays there.
    """
    own, run = session.users.writers(), session.target.user().texts.run
    routines = [(at.address, at.end) for at, detour in left.detours.items() if detour.head in (at.address, *own)]
    for _ in range(TRIES):
        if not quiescence.busy(routines, session.target.saved()):
            return
        run(PAUSE)
    raise OptprobeError("a thread runs code of the earlier GDB's just now", "continue for a moment, then try again")


def _take(session: Session, left: Left, undone: Sequence[Patch]) -> Arena:
    """Take the arena, and the branches out of the text."""
    arena = session.optimizer.take_arena()
    if left.users:
        # Nobody is in the code that writes traps into new mappings, and nobody comes there any more.
        first = session.users.leading_there(undone)
        patch.apply(first, session.target.machine)
        undone = [change for change in undone if change not in first]
    gone = session.users.take_out(user_notes.noted(left.users or {}), arena)
    ours = session.users.take_over(gone, undone, arena)
    patch.apply([change for change in undone if change.address not in ours], session.target.machine)
    for text in left.texts:
        _let_tracer_in(session, text)
        arena.journal.drop(Item.TEXT, text.address)
    for number in left.users or {}:
        arena.journal.drop(Item.USER, number)
    # Its patches are at the same addresses: what is noted of them now stays.
    session.optimizer.traps.adopt(left.texts, arena)
    session.users.adopt(gone, arena)
    return arena


def _let_tracer_in(session: Session, text: Text) -> None:
    if text.traced:
        for site in session.target.text.ftrace_sites(text.address, text.address + 1):
            session.target.tracer.release(site)


def _again(session: Session, one: Noted, left: Left) -> Probe:
    """The probe, as it is to be settled. Raises OptprobeError where it would be another one."""
    if one.python:
        raise OptprobeError("its Python handler went with the GDB that had it")
    if one.waits or session.target.modules.home(one.address) != one.home:
        return _awaited(session, one, left)
    settings = replace(session.settings(), **one.sizes)  # type: ignore[arg-type]
    plan = session.optimizer.plan(one.address, [one.spec])
    handler = session.handler(one.spec, plan, settings)
    data = left.at(one.data) if one.data is not None else None
    fits = data is None or handler.size <= data.size
    if not fits or (not handler.is_plain and fingerprint(handler) != one.program):
        raise OptprobeError(CHANGED)
    site = session.registry.site(one.address) or Site(one.address, plan)
    probe = Probe(one.number, one.spec, one.address, handler, one.sizes, one.enabled, data, since=one.since)
    if len(one.seen) == len(handler.head()):
        probe.seen = replace(Gathered.nothing(handler), head=one.seen)
    session.registry.reserve_number(one.number)
    session.registry.add(probe, site)
    session.comings.settled_in(probe, site)
    return probe


def _awaited(session: Session, one: Noted, left: Left) -> Probe:
    """A probe whose module was unloaded meanwhile, or that was pending. Raises OptprobeError."""
    if one.program:
        raise OptprobeError("its module was unloaded, and without it what was gathered cannot be told")
    data = left.at(one.data) if one.data is not None else None
    probe = Probe(one.number, one.spec, one.address, Handler(), one.sizes, one.enabled, data, home=one.home)
    if len(one.seen) == len(probe.handler.head()):
        probe.seen = replace(Gathered.nothing(probe.handler), head=one.seen)
    session.registry.reserve_number(one.number)
    if one.home:
        session.comings.unloaded(probe)
    else:
        session.comings.wait_for(probe)
    return probe


def _reserve(session: Session, probe: Probe) -> None:
    """Memory that the probe did not have; of a return probe, for calls from now on. Those under way count too."""
    site = session.registry.site_of(probe)
    session.optimizer.reserve(probe, site.plan)
    if site.next_point is not None:
        points = session.optimizer.returns.points
        site.next_point.older = [point for point in points if point.closed and point.address == probe.address]
