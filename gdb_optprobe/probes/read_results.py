"""Read what hits have left, in guest memory and in ours, and clear it.

While the guest runs (Machine.runs), all that has more than one word is read twice: maps/ says what counts then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.new_records import check_readable
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Results
from gdb_optprobe.probes.shared_maps import SharedMaps

# Counters nearer to each other than this are read in one piece: a packet costs as much as some hundred bytes.
GAP = 256


def read_results(probes: Sequence[Probe], guest: Guest, whole: bool = False) -> dict[int, Results]:
    """Return results by probe number, of hits counted by us and in the guest, read in few packets. whole: with tables.
    """
    slots = sorted(
        Slot(probe.counter.address, probe.handler.size if whole else probe.handler.head_size)
        for probe in probes
        if probe.counter is not None
    )
    runs = guest.machine.runs
    if whole and runs:
        for probe in probes:
            check_readable(probe.handler.ring)
    before = _contents(slots, guest) if whole and runs else {}
    memory = _contents(slots, guest)
    found = {}
    maps = {id(one): one.read(guest.machine, runs) for one in _shared_maps(probes)} if whole else {}
    for probe in probes:
        found[probe.number] = probe.seen
        if probe.counter is not None:
            shared, at = maps.get(id(probe.handler.shared)), probe.counter.address
            theirs = Results.decode(probe.handler, memory[at], probe.since, shared, before.get(at))
            found[probe.number] = probe.seen.merged(probe.handler, theirs)
    return found


def _contents(slots: Sequence[Slot], guest: Guest) -> dict[int, bytes]:
    """Return what these hold by their addresses, read in few packets. slots: ascending."""
    memory: dict[int, bytes] = {}
    for run in _adjacent(slots):
        start = run[0].address
        data = guest.machine.read(start, run[-1].end - start)
        memory |= {slot.address: data[slot.address - start : slot.end - start] for slot in run}
    return memory


def clear_results(
    probes: Sequence[Probe], blocks: Sequence[CountBlock], guest: Guest, is_inside: Callable[[Probe | CountBlock], bool]
) -> None:
    """Set everything that hits left to what it was before the first.

    is_inside: whether a thread may be in a program of these; tables keep their keys then.
    """
    for maps in _shared_maps([*probes, *blocks]):
        _clear_maps(
            maps,
            [probe for probe in probes if probe.handler.shared is maps],
            [block for block in blocks if block.handler.shared is maps],
            guest,
            is_inside,
        )
    for block in blocks:
        for _, data in block.pieces():
            guest.machine.write(data.address, bytes(data.size))
    for probe in probes:
        probe.clear()
        if probe.counter is None:
            continue
        handler, start = probe.handler, probe.counter.address
        ring, at = handler.ring, handler.head_size
        if not handler.own_tables or not is_inside(probe):
            guest.machine.write(start, handler.initial()[: handler.ring_offset])
        else:
            guest.machine.write(start, handler.initial()[:at])
            for _, layout in handler.own_tables:
                guest.machine.write(start + at, layout.cleared(guest.machine.read(start + at, layout.size)))
                at += layout.size
        if ring is not None:
            at = start + handler.ring_offset
            found = ring.decode(guest.machine.read(at, ring.size), probe.since)
            guest.machine.write(at, found.header)
            probe.since = found.position


def _clear_maps(
    maps: SharedMaps,
    probes: Sequence[Probe],
    blocks: Sequence[CountBlock],
    guest: Guest,
    is_inside: Callable[[Probe | CountBlock], bool],
) -> None:
    """Clear what probes and blocks have in maps that they share, perhaps with others."""
    is_all = maps.users <= {probe.number for probe in probes} and maps.blocks <= {one.code.address for one in blocks}
    if is_all and not (any(map(is_inside, probes)) or any(map(is_inside, blocks))):
        maps.clear(None, guest.machine)
        return
    functions = {probe.handler.function for probe in probes}
    maps.clear(lambda key: key in functions or any(block.has_key(key) for block in blocks), guest.machine)


def _shared_maps(probes: Iterable[Probe | CountBlock]) -> list[SharedMaps]:
    """Return the maps that some of the probes share, each once."""
    return list({id(maps): maps for probe in probes if (maps := probe.handler.shared) is not None}.values())


def _adjacent(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Return all of `slots`, which are ascending, in groups that are read in one piece."""
    runs: list[list[Slot]] = []
    for slot in slots:
        if runs and slot.address - runs[-1][-1].end < GAP:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs
