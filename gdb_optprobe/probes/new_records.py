"""Records that are new in rings: read at any time, taken away at a stop or once the guest runs.

    read_ring ──► contents of one ring ──RecordReader──► NewRecords of several probes ──show, take──► Drained
At a stop a ring is emptied. While the guest runs (Machine.runs) only our own position moves: what was read is not read
again, and its places are free from the next stop on.

Several rings are read one after the other then, and in the first there may be records by now that are older than the
newest of the last. So that all come in the order of time, those that are later than all of the look before are left for
the next one: when that begins, every record of an earlier time has its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.errors import NeedsStop
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.maps.ring import HEADER, RingContents, RingLayout, RingPosition
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Results, Row, rows_of

WANTED = 0.5
"""How full a ring is to be when it is emptied; 1 is full, more has lost."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What the rings had. lost: hits that found one full. fullness: of the fullest one, since it was emptied."""

    records: int = 0
    lost: int = 0
    fullness: float = 0.0


@dataclass(frozen=True, slots=True)
class OfProbe:
    """What a probe has that is new: results with these records alone. ring: None where its ring had nothing."""

    probe: Probe
    results: Results
    ring: RingContents | None


@dataclass(frozen=True, slots=True)
class NewRecords:
    """What some probes have that is new."""

    of_probes: Sequence[OfProbe]

    @property
    def rows(self) -> Iterator[Row]:
        return (row for one in self.of_probes for row in one.results.records)

    @property
    def drained(self) -> Drained:
        rings = [one.ring for one in self.of_probes if one.ring is not None]
        fullness = max((ring.fullness for ring in rings), default=0)
        return Drained(sum(1 for _ in self.rows), sum(ring.dropped for ring in rings), fullness)

    def take(self, machine: Machine) -> None:
        """Take these away, those of hits that we saw too. How many were dropped is kept."""
        for one in self.of_probes:
            probe, ring = one.probe, one.ring
            if ring is not None and probe.counter is not None:
                if not machine.runs:
                    machine.write(probe.counter.address + probe.handler.ring_offset, ring.header)
                probe.since = ring.position
            probe.forget_records(ring.dropped if ring is not None else 0)


@dataclass
class RecordReader:
    """Reads what probes have that is new, again and again."""

    machine: Machine
    _latest: int = field(default=0, init=False)

    def read(self, probes: Sequence[Probe]) -> NewRecords:
        """Return what these have that is new. Raises NeedsStop as `read_ring`."""
        found = []
        rings = sum(probe.handler.ring is not None and probe.counter is not None for probe in probes)
        until = self._latest if self.machine.runs and rings > 1 else None
        for probe in probes:
            results, contents, ring = probe.seen, None, probe.handler.ring
            if ring is not None and probe.counter is not None:
                at = probe.counter.address + probe.handler.ring_offset
                contents = read_ring(ring, at, probe.since, self.machine, until)
            if contents is not None:
                self._latest = max(self._latest, contents.latest)
                results = replace(results, records=results.records + rows_of(contents), dropped=contents.dropped)
            if contents is not None or results.records:
                found.append(OfProbe(probe, results, contents))
        return NewRecords(found)


def read_ring(
    layout: RingLayout, address: int, since: RingPosition, machine: Machine, until: int | None = None
) -> RingContents | None:
    """Return what a ring has since a position; None where that is nothing, and it need not be emptied.

    until: see RingLayout.decode.
    Raises NeedsStop where the guest runs, and the ring is to be emptied, or its records are not proven to be whole.
    """
    header = machine.read(address, HEADER)
    keeps_places = not (machine.runs or layout.overwrites or layout.is_empty(header))
    if not (keeps_places or layout.has_more(header, since)):
        return None
    if not machine.runs:
        return layout.decode(machine.read(address, layout.size), since)
    check_readable(layout)
    before = machine.read(address, layout.size)
    found = layout.decode(machine.read(address, layout.size), since, before, until)
    if found.fullness >= WANTED:
        raise NeedsStop("the ring is half full")
    return found


def check_readable(layout: RingLayout | None) -> None:
    """Raise NeedsStop where records are never proven to be whole while the guest runs."""
    if layout is not None and layout.overwrites:
        raise NeedsStop("records may be overwritten while they are read")
