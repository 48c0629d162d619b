"""What probes have counted by now, read while the guest runs, or at a stop.

    at a stop      Sampler    which rows there are, and what they had lost
    at any time    sample     hits and losses of all rows, by words: each is whole, and never goes back
                   gathered   what some rows have in cells and tables: may differ by the hits under way
Nothing is asked of the guest here but bytes of the probes' data: a packet to its stub would stop it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from gdb_optprobe.detours.block import WORD
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.runs import bounds
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.call_table import MISSED
from gdb_optprobe.maps.hash_map import OVERFLOW
from gdb_optprobe.maps.ring import HEADER, START
from gdb_optprobe.probes import probe_views
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Results, Row
from gdb_optprobe.probes.return_block import ReturnBlock
from gdb_optprobe.probes.shared_maps import MapsContents
from gdb_optprobe.probes.views import ObjectView, SessionMapView

GAP = 4096
"""Bytes between two words that are read along."""
HITS = 0
"""Offset of a probe's hits in its memory; faults are the next word."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What all rows have at a moment. lost, faults: of those rows that have any, by their places.

    together: losses of which it is not known which row had them.
    """

    hits: Sequence[int]
    lost: dict[int, int] = field(default_factory=dict)
    faults: dict[int, int] = field(default_factory=dict)
    together: int = 0


@dataclass(frozen=True)
class Single:
    """A row of a probe by itself. missed: the words that count its missed calls or events. base: those of all that is
    not in these words.
    """

    probe: Probe
    label: str
    missed: tuple[int, ...] = ()
    base: int = 0

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield what is read of it at each moment, as (start, end)."""
        yield from ((at, at + WORD) for at in self.missed)
        if self.probe.counter is not None:
            at = self.probe.counter.address
            yield from ((at + start, at + end) for start, end in self._parts)

    @cached_property
    def _parts(self) -> tuple[tuple[int, int], ...]:
        """Return the parts of its memory that are read, as offsets."""
        handler = self.probe.handler
        ring = ((handler.ring_offset, handler.ring_offset + HEADER),) if handler.ring is not None else ()
        return ((HITS, handler.head_size), *((at, at + WORD) for at in self._overflows), *ring)

    @cached_property
    def _overflows(self) -> tuple[int, ...]:
        """Return the offsets of the words that count values without room."""
        handler = self.probe.handler
        at, found = handler.head_size, [WORD * place for place in handler.lost_words() if handler.counts_lost]
        for _, layout in handler.own_tables:
            found.append(at + OVERFLOW)
            at += layout.size
        return tuple(found)

    def counted(self, words: Words) -> tuple[int, int, int]:
        """Return its hits, what it has lost, and its faults."""
        probe, ring = self.probe, self.probe.handler.ring
        hits, faults = probe.seen.hits, probe.seen.faults
        lost = self.base + probe.seen.dropped + sum(map(words.word, self.missed))
        if probe.counter is None:
            return hits, lost, faults
        at = probe.counter.address
        hits += words.word(at + HITS)
        if self._parts[0] != (HITS, HITS + WORD):
            faults += words.word(at + WORD)
        lost += sum(words.word(at + word) for word in self._overflows)
        if ring is not None:
            lost += ring.lost(words.read(at + self._parts[-1][0], HEADER), probe.since)
        return hits, lost, faults


@dataclass(frozen=True, slots=True)
class Several:
    """Rows of the members of a block from one index to before another."""

    block: CountBlock
    start: int
    end: int

    @property
    def data(self) -> tuple[int, int]:
        _, data = self.block.piece(self.start, self.end)
        return data.address, data.end


class Words:
    """Pieces of memory as they were read at one moment."""

    def __init__(self, places: Iterable[tuple[int, int]], memory: Memory) -> None:
        self._starts: list[int] = []
        self._data: list[bytes] = []
        for start, end in bounds(sorted(places), GAP, math.inf):
            self._starts.append(start)
            self._data.append(memory.read(start, end - start))

    def read(self, address: int, size: int) -> bytes:
        place = bisect_right(self._starts, address) - 1
        at = address - self._starts[place]
        return self._data[place][at : at + size]

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, WORD), "little")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a row has gathered. newest: its newest record, as text; "" where there is none."""

    objects: tuple[ObjectView, ...] = ()
    newest: str = ""


class Sampler:
    """Reads the rows of a session, chosen and named at a stop.

    singles, several: what is shown. shared: words that count losses of several rows. maps: makes text of those of
    scripts. symbol: names an address without asking the guest.
    """

    def __init__(
        self,
        singles: Sequence[Single],
        several: Sequence[Several],
        shared: Sequence[int],
        maps: Callable[[Memory], Sequence[SessionMapView]],
        symbol: probe_views.Symbol,
    ) -> None:
        self._singles = singles
        self._several = several
        self._shared = tuple(shared)
        self._maps = maps
        self._symbol = symbol
        self.labels: list[str] = [one.label for one in singles]
        self.numbers: list[int] = [one.probe.number for one in singles]
        for part in several:
            self.labels += part.block.symbols[part.start : part.end]
            self.numbers += range(part.block.first + part.start, part.block.first + part.end)

    def sample(self, memory: Memory) -> Sample:
        """Return what all rows have. Raises Unreadable."""
        places = [place for one in self._singles for place in one.places()]
        words = Words([*places, *((at, at + WORD) for at in self._shared)], memory)
        hits: list[int] = []
        lost: dict[int, int] = {}
        faults: dict[int, int] = {}
        for place, one in enumerate(self._singles):
            counted, gone, failed = one.counted(words)
            hits.append(counted)
            if gone:
                lost[place] = gone
            if failed:
                faults[place] = failed
        for part in self._several:
            start, end = part.data
            hits += aggregate.decode(memory.read(start, end - start))
        return Sample(hits, lost, faults, sum(map(words.word, self._shared)))

    def has_more(self, place: int) -> bool:
        """Return whether a row gathers more than hits."""
        probe, handler = self._row(place)
        return bool(handler.cells or handler.tables or (probe is not None and handler.ring is not None))

    def gathered(self, places: Sequence[int], memory: Memory, runs: bool) -> list[Shown]:
        """Return what rows have gathered. runs: whether the guest does. Raises Unreadable."""
        some = [self._row(place) for place in places]
        shared = {id(maps): maps for _, handler in some if (maps := handler.shared) is not None}
        contents = {key: maps.read(memory, runs) for key, maps in shared.items()}
        return [self._gathered(one, handler, contents.get(id(handler.shared)), memory, runs) for one, handler in some]

    def _gathered(
        self, probe: Probe | None, handler: Handler, shared: MapsContents | None, memory: Memory, runs: bool
    ) -> Shown:
        """Return what a row has gathered. probe: None for a member of a block. shared: what its maps hold."""
        if probe is None or probe.counter is None:
            found = probe.seen if probe is not None else Results.decode(handler, bytes(WORD), START, shared)
            return Shown(probe_views.object_views(handler, found, self._symbol))
        at, size = probe.counter.address, handler.ring_offset
        before = memory.read(at, size) if runs and handler.own_tables else None
        found = Results.decode(handler, memory.read(at, size), probe.since, shared, before)
        views = probe_views.object_views(handler, probe.seen.merged(handler, found), self._symbol)
        return Shown(views, self._newest(probe, memory))

    def maps(self, memory: Memory) -> Sequence[SessionMapView]:
        """Return the maps of scripts as text. Raises Unreadable."""
        return self._maps(memory)

    def _newest(self, probe: Probe, memory: Memory) -> str:
        ring = probe.handler.ring
        if ring is None or probe.counter is None:
            return ""
        at = probe.counter.address + probe.handler.ring_offset
        record = ring.newest(lambda offset, size: memory.read(at + offset, size))
        if record is None:
            return ""
        return probe_views.record_text(
            probe.handler, Row(record.kind, record.cpu, record.time, record.fields), self._symbol
        )

    def _row(self, place: int) -> tuple[Probe | None, Handler]:
        """Return the probe of a row, None for a member of a block, and its handler."""
        if place < len(self._singles):
            probe = self._singles[place].probe
            return probe, probe.handler
        place -= len(self._singles)
        for part in self._several:
            if place < part.end - part.start:
                return None, part.block.handler_of(part.start + place)
            place -= part.end - part.start
        raise AssertionError("the place is that of a row")


def is_chosen(pattern: str, label: str, name: str = "") -> bool:
    """Return whether a row is to be shown: its symbol, with an offset or without, or its name is what the glob says."""
    return not pattern or any(fnmatchcase(one, pattern) for one in (label, re.split("[+%]", label)[0], name) if one)


def shared_losses(probes: Iterable[Probe], blocks: Collection[CountBlock]) -> list[int]:
    """Return the words that count losses of several probes together."""
    found: dict[int, None] = {}
    handlers = [*(probe.handler for probe in probes), *(block.handler for block in blocks)]
    maps = {id(one.shared): one.shared for one in handlers if not one.counts_lost}
    for shared in filter(None, maps.values()):
        if shared.memory is not None:
            at = shared.memory.address
            for layout in shared.shapes:
                found[at + OVERFLOW] = None
                at += layout.size
    for block in blocks:
        if isinstance(block, ReturnBlock):
            found[block.rethook.memory.address + MISSED] = None
            if block.times is not None:
                found[block.times.table + OVERFLOW] = None
    return list(found)

