"""Adopt the probes that an earlier GDB left in the guest, or remove them.

    Left ──probes/leftovers.py──► Arena ──► probes are added anew, with the memory that they had
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.journal_records import ProbeRecord, read_block, restored_probe
from gdb_optprobe.probes.leftovers import adopt_arena, read_leftovers
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import with_sizes
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.views import ProbeView

LOST = "the journal could not hold it: add it anew"
WENT = "their handlers in Python, or their script, went with the GDB that had them"


@dataclass(frozen=True, slots=True)
class Recovered:
    """probes: those adopted. lost: for each other one, why it is not adopted."""

    probes: Sequence[ProbeView]
    lost: tuple[str, ...]


def recover(session: Session) -> Recovered:
    """Adopt every probe that an earlier GDB left, with its counts.

    Raises OptprobeError. The guest then still holds all that was left, for another try.
    """
    session.check_alive()
    left, found, undone = read_leftovers(session.target, session.optimizer, session.uprobes)
    arena = adopt_arena(left, undone, session.target, session.optimizer, session.uprobes)
    try:
        return _adopt_probes(session, left, found, arena)
    except BaseException:
        session.target.debugger.forget()
        raise


def _adopt_probes(session: Session, left: ArenaContents, found: Sequence[ProbeRecord], arena: Arena) -> Recovered:
    """Add the recorded probes anew. The branches of the earlier GDB have been removed."""
    probes: list[Probe] = []
    lost: list[str] = []
    numbers = {one.number for one in found}
    lost += [f"probe {one.number}, {one.spec.location}, is not recovered: {LOST}" for one in found if one.lost]
    lost += _went([one for one in found if one.python])
    found = [one for one in found if not one.python]
    programs = [one for one in found if one.spec.in_program and not one.lost]
    in_blocks = [read_block(block, left) for block in left.live_blocks]
    maps = _shared_maps([*found, *in_blocks], left)
    for one in found:
        if one.spec.in_program or one.lost:
            continue
        try:
            probes.append(_adopt_probe(session, one, left, maps))
        except OptprobeError as error:
            lost.append(f"probe {one.number}, {one.spec.location}, is not recovered: {error.message}")
    there = [probe for probe in probes if probe.is_in_kernel]
    returns = session.optimizer.rethooks
    for site in session.registry.sites(there):
        returns.adopt(site, session.target.guest, arena)
    counters = {probe.counter for probe in probes if probe.counter is not None}
    maps_of_blocks = {one.maps.address for one in in_blocks if one.maps is not None}
    memory = {one.memory for at, one in maps.items() if one.memory and (one.users or at in maps_of_blocks)}
    memory |= {*session.optimizer.maps.slots}
    memory |= {point.memory for point in returns.known if not point.closed}
    kept = (left.data_at(one.data) for one in programs)
    maps_of_programs = {place[1] for one in programs for place in _named_maps(one, left).values()}
    memory |= maps_of_programs
    memory |= {data for block in left.live_blocks for _, data in block.pieces()}
    memory |= session.returns.memory(left)
    memory = memory.union(
        filter(None, kept),
        session.optimizer.traps.dispatcher.memory,
        session.uprobes.rethooks.memory,
        session.optimizer.tracepoints.memory,
    )
    arena.release_data(memory.union(counters, returns.keep_adopted(counters, memory)))
    blocks, alone = _adopt_blocks(session, left, in_blocks, maps, lost)
    for at in maps_of_blocks:
        maps[at].release_unused(arena)
    for probe in there:
        if _needs_no_hook_yet(session, probe):
            session.returns.unsettled.append((probe, session.registry.site_of(probe)))
            continue
        try:
            _reserve(session, probe)
        except OptprobeError as error:
            lost.append(f"probe {probe.number}, {probe.spec.location}, is not recovered: {error.message}")
            session.optimizer.release_counter(probe)
            session.registry.remove(probe)
            probes.remove(probe)
    there = [probe for probe in there if session.registry.has(probe)]
    session.optimizer.settle(session.registry.sites([*there, *alone]))
    probes += alone
    for one in programs:
        try:
            maps_of_one = _named_maps(one, left)
            probes.append(session.uprobes.add_recovered(one, left.data_at(one.data), maps_of_one))
        except OptprobeError as error:
            lost.append(f"probe {one.number}, {one.spec.location}, is not recovered: {error.message}")
    for unused in maps_of_programs.difference(session.optimizer.maps.slots):
        arena.data.release(unused)
    for number in numbers - {probe.number for probe in probes}:
        arena.journal.drop(Item.PROBE, number)
    points = (session.registry.site_of(probe).latest_rethook for probe in there)
    returns.end_adopted(arena, [table for point in points if point is not None for table in point.tables])
    session.optimizer.write_records(probes)
    # What is left of the earlier GDB's code goes now: the guest may not stop again before this GDB is killed too.
    session.optimizer.collector.collect(arena, Trigger.GARBAGE)
    arena.refill_reserve()
    session.module_tracker.update_load_hook()
    session.watch_traces()
    session.module_tracker.update()
    try:
        session.optimizer.tracepoints.release_unused(arena)
    except OptprobeError as error:
        lost.append(f"{error.message} ({error.hint})" if error.hint else error.message)
    return Recovered(session.views_of(probes, blocks), tuple(lost))


def _went(found: Sequence[ProbeRecord]) -> Iterator[str]:
    """Yield what is to be known of probes that did what went with their GDB: they are taken out."""
    if len(found) == 1:
        yield f"probe {found[0].number}, {found[0].spec.location}, is taken out: {WENT}"
    elif found:
        first, last = min(one.number for one in found), max(one.number for one in found)
        yield f"{len(found)} probes ({first} to {last}) are taken out: {WENT}"


def _adopt_blocks(
    session: Session,
    left: ArenaContents,
    records: Sequence[ProbeRecord],
    maps: Mapping[int, SharedMaps],
    lost: list[str],
) -> tuple[list[CountBlock], list[Probe]]:
    """Adopt the blocks of counts. Return them, and the probes that must be settled by themselves.

    records: of the first probes of the live blocks. lost: gets reasons.
    """
    blocks: list[CountBlock] = []
    enabled: list[CountBlock] = []
    alone: list[Probe] = []
    known = [*zip(left.live_blocks, records, strict=True)]
    session.block_adoption.plan((one, record.spec) for one, record in known if not record.python)
    for one, record in known:
        if record.python:
            lost.append(f"probes {one.first}-{one.first + len(one.sites) - 1} are taken out: {WENT}")
            session.block_adoption.leave(one)
            continue
        try:
            shared = maps[record.maps.address] if record.maps is not None else None
            block, others = session.block_adoption.adopt(one, record, shared)
        except OptprobeError as error:
            numbers = f"probes {one.first}-{one.first + len(one.sites) - 1}"
            lost.append(f"{numbers}, {record.spec.location}, are not recovered: {error.message}")
            session.block_adoption.leave(one)
            continue
        alone += others
        blocks.append(block)
        enabled += [block] if record.enabled and len(block) else []
    # To enable one may wipe what is retired, and the code of those to be adopted is.
    alone.extend(session.batches.switch(enabled, True))
    return [block for block in blocks if len(block)], alone


def remove(session: Session, timeout: float) -> int:
    """Remove what an earlier GDB left and give its memory back. Return how many probes there were.

    The guest runs in slices until no thread is in the code. Raises OptprobeError with nothing changed, or when a thread
    is still inside after `timeout` seconds.
    """
    session.check_alive()
    left, found, undone = read_leftovers(session.target, session.optimizer, session.uprobes)
    arena = adopt_arena(left, undone, session.target, session.optimizer, session.uprobes)
    kept = (session.optimizer.traps.dispatcher, session.uprobes.rethooks, session.optimizer.tracepoints)
    arena.release_data([memory for each in kept for memory in each.memory])
    for one in found:
        arena.journal.drop(Item.PROBE, one.number)
    for block in left.live_blocks:
        session.block_adoption.leave(block, release=False)
    session.optimizer.rethooks.end_adopted(arena)
    session.optimizer.tracepoints.release_unused(arena)
    session.optimizer.write_records()
    session.uprobes.tidy()
    if not session.optimizer.release_arena():
        session.commit(timeout)
        session.optimizer.release_arena()
    return len(found) + sum(map(len, left.live_blocks))


def _shared_maps(found: Sequence[ProbeRecord], left: ArenaContents) -> Mapping[int, SharedMaps]:
    """Return the maps that probes shared, by address, with the memory that they had."""
    records = {one.maps.address: one.maps for one in found if one.maps is not None}
    return {
        at: SharedMaps(0, 0, bits=one.bits, cells=one.cells, memory=left.data_at(at)) for at, one in records.items()
    }


def _adopt_probe(
    session: Session, one: ProbeRecord, left: ArenaContents, maps: Mapping[int, SharedMaps]
) -> Probe:
    """Create the probe of a record, not yet settled. Raises OptprobeError where it would do something else."""
    if one.waits or session.target.modules.location(one.address) != one.home:
        return _adopt_absent(session, one, left)
    plan = session.optimizer.plan(one.address, [one.spec])
    shared = maps[one.maps.address] if one.maps is not None else None
    settings, function = with_sizes(session.settings(), one.sizes), one.maps.function if one.maps is not None else None
    handler = session.kprobes.compile(one.spec, plan, settings, shared, function)
    if one.bare:
        handler = handler.made_bare() or handler
    probe = restored_probe(one, one.address, handler, left.data_at(one.data))
    _adopt_maps(session, one, handler, left)
    site = session.registry.site(one.address) or Site(one.address, plan)
    session.registry.add(probe, site)
    session.module_tracker.track([probe])
    if handler.shared is not None:
        handler.shared.users.add(probe.number)
    return probe


def _adopt_maps(session: Session, one: ProbeRecord, handler: Handler, left: ArenaContents) -> None:
    """Have the session's maps that a probe uses where they were. Raises OptprobeError."""
    found = _named_maps(one, left)
    for target in handler.program.maps:
        if target.name in found:
            session.optimizer.maps.adopt(one.number, target, *found[target.name])


def _named_maps(one: ProbeRecord, left: ArenaContents) -> Mapping[str, tuple[int, Slot]]:
    """Return the session's maps that a probe used: how many keys they have room for, and their memory, by name."""
    places = ((name, most, left.data_at(at)) for name, (at, most) in one.named.items())
    return {name: (most, memory) for name, most, memory in places if memory is not None}


def _adopt_absent(session: Session, one: ProbeRecord, left: ArenaContents) -> Probe:
    """Create a probe that is gone with its module, or pending. Raises OptprobeError."""
    if one.program:
        raise OptprobeError("its module was unloaded, and without the module its results cannot be read")
    probe = restored_probe(one, one.address, Handler(), left.data_at(one.data))
    if one.home:
        session.module_tracker.mark_gone(probe)
    else:
        session.module_tracker.wait_for_load(probe)
    return probe


def _needs_no_hook_yet(session: Session, probe: Probe) -> bool:
    """Return whether a return probe had none in the earlier GDB either: it left its block to be disabled."""
    return probe.is_return and not probe.enabled and session.registry.site_of(probe).latest_rethook is None


def _reserve(session: Session, probe: Probe) -> None:
    """Reserve the memory that the probe lacks. Active calls of a return probe still count in the old tables."""
    site = session.registry.site_of(probe)
    session.kprobes.reserve(probe)
    if site.next_rethook is not None:
        returns = session.optimizer.rethooks
        points = [point for point in returns.known if point.closed and not point.ended]
        older = [point for point in points if point.address == probe.address]
        returns.put_before(site.next_rethook, older, session.optimizer.find_arena())
