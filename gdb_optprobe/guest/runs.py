"""Read memory at thousands of places within one stop: what lies near each other is read as one run, and written so.

    places      ▌ ▌   ▌            ▌▌  ▌
    runs        [------]           [----]       the bytes between are written back as they were read
A run is one packet to the stub, which is carried out whole or not at all: no place is ever half written.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.machine import Changed, HasImages, Memory, Readable, ReadsMany
from gdb_optprobe.guest.memory import MUCH

LONGEST = 1984
"""Bytes of a run: a packet of QEMU 7.2 holds no more."""
MANY = 64
"""Runs that are worth reading at once where that is possible."""
GAP = 1024
"""Bytes between two places that cost less than another packet."""


@dataclass(frozen=True, slots=True)
class Run:
    """The bytes that memory holds at `address`."""

    address: int
    data: bytes

    @property
    def end(self) -> int:
        return self.address + len(self.data)


def bounds(places: Iterable[tuple[int, int]], gap: int = GAP, longest: float = LONGEST) -> Iterator[tuple[int, int]]:
    """Yield the runs (start, end) that hold all of `places`, (start, end) pairs in ascending order.

    gap: bytes between two places that are read along. longest: bytes of a run.
    """
    following = iter(places)
    start, end = next(following, (None, 0))
    if start is None:
        return
    limit = start + longest
    for first, last in following:
        if first - end <= gap and last <= limit:
            end = max(end, last)
        else:
            yield start, end
            start, end, limit = first, last, first + longest
    yield start, end


def read(places: Iterable[tuple[int, int]], memory: Readable) -> list[Run]:
    """Return the runs that hold `places`, ascending pairs, as memory holds them now."""
    spans = list(bounds(places))
    return [Run(start, data) for (start, _), data in zip(spans, read_spans(spans, memory), strict=True)]


@dataclass
class Ahead:
    """Memory that is asked for piece by piece in one stop, `size` bytes in all: a read takes the pieces to come along.

    _known: the runs that were read, in ascending order. No byte of them is read ahead again.
    """

    memory: Memory
    size: int
    _known: list[Run] = field(default_factory=list)

    def read(self, address: int, size: int) -> bytes:
        """Return what memory holds, or held since it was read first. Raises Unreadable."""
        place = bisect_right(self._known, address, key=lambda run: run.address)
        run = self._known[place - 1] if place else None
        if run is None or run.end < address + size:
            following = self._known[place].address - address if place < len(self._known) else self.size
            try:
                run = Run(address, self.memory.read(address, max(size, min(self.size, following))))
            except Unreadable:  # not all that is ahead is memory
                self.size //= 2
                return self.memory.read(address, size)
            self._known.insert(place, run)
        self.size = max(0, self.size - size)
        return run.data[address - run.address :][:size]

    def forget(self) -> None:
        """Read all anew: it was changed."""
        self._known.clear()


def held(places: Sequence[tuple[int, int]], memory: Memory) -> list[bytes]:
    """Return what memory holds at each of `places`, ascending (start, end) pairs. Raises Unreadable."""
    found = _each(places, memory)
    return found if found is not None else list(at(places, read(places, memory)))


def _each(places: Sequence[tuple[int, int]], memory: Readable) -> list[bytes] | None:
    """Return what memory holds at each of many `places`; None where they are read as runs."""
    return memory.read_each(places) if len(places) >= MANY and isinstance(memory, ReadsMany) else None


def read_spans(spans: Sequence[tuple[int, int]], memory: Readable) -> list[bytes]:
    """Return what memory holds in each of `spans`, ascending (start, end) pairs. Raises Unreadable."""
    many = len(spans) >= MANY or sum(end - start for start, end in spans) >= MUCH
    if many and isinstance(memory, ReadsMany):
        return memory.read_many(spans)
    return [memory.read(start, end - start) for start, end in spans]


def heads(addresses: Sequence[int], size: int, memory: Readable) -> Iterator[bytes]:
    """Yield `size` bytes at each of the ascending `addresses`; none of those in a run that cannot be read."""
    places = [(one, one + size) for one in addresses]
    if (found := _each(places, memory)) is not None:
        yield from found
        return
    following = iter(addresses)
    address = next(following, None)
    spans = list(bounds(places))
    for (start, end), data in zip(spans, _readable(spans, memory), strict=True):
        while address is not None and address + size <= end:
            yield data[address - start : address - start + size]
            address = next(following, None)


def _readable(spans: Sequence[tuple[int, int]], memory: Readable) -> Iterator[bytes]:
    """Yield what memory holds in each of `spans`; nothing of those that cannot be read."""
    try:
        yield from read_spans(spans, memory)
        return
    except Unreadable:
        pass
    for start, end in spans:
        try:
            yield memory.read(start, end - start)
        except Unreadable:
            yield b""


def fill(address: int, data: bytes, memory: Memory) -> None:
    """Write `data` at `address`; of what is read at once, only the runs that differ."""
    held = image(address, address + len(data), memory) if len(data) >= MUCH else None
    if held is None:
        memory.write(address, data)
        return
    pieces = [(at, data[at : at + LONGEST]) for at in range(0, len(data), LONGEST)]
    differ = [at for at, piece in pieces if held.read(address + at, len(piece)) != piece]
    for start, end in bounds(((at, at + LONGEST) for at in differ), 0, math.inf):
        memory.write(address + start, data[start:end])


def image(start: int, end: int, memory: Readable, changed: Changed | None = None) -> Readable | None:
    """See machine.HasImages."""
    return memory.image(start, end, changed) if isinstance(memory, HasImages) else None


def at(places: Sequence[tuple[int, int]], runs: Sequence[Run]) -> Iterator[bytes]:
    """Yield what `runs`, which were read for at least these ascending places, hold at each of them."""
    of = iter(runs)
    run = next(of, None)
    for start, end in places:
        while run is not None and run.end < end:
            run = next(of, None)
        assert run is not None and run.address <= start, "the runs were read for other places"
        yield run.data[start - run.address : end - run.address]
