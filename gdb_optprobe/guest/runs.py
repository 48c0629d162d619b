"""Read memory at thousands of places within one stop: what lies near each other is read as one run, and written so.

    places      ▌ ▌   ▌            ▌▌  ▌
    runs        [------]           [----]       the bytes between are written back as they were read
A run is one packet to the stub, which is carried out whole or not at all: no place is ever half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.machine import Memory

LONGEST = 1984
"""Bytes of a run: a packet of QEMU 7.2 holds no more."""
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


def bounds(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the runs (start, end) that hold all of `places`, (start, end) pairs in ascending order."""
    start = end = None
    for first, last in places:
        if start is None or end is None:
            start, end = first, last
        elif first - end <= GAP and last - start <= LONGEST:
            end = max(end, last)
        else:
            yield start, end
            start, end = first, last
    if start is not None and end is not None:
        yield start, end


def read(places: Iterable[tuple[int, int]], memory: Memory) -> list[Run]:
    """Return the runs that hold `places`, ascending pairs, as memory holds them now."""
    return [Run(start, memory.read(start, end - start)) for start, end in bounds(places)]


def heads(addresses: Sequence[int], size: int, memory: Memory) -> Iterator[bytes]:
    """Yield `size` bytes at each of the ascending `addresses`; none of those in a run that cannot be read."""
    following = iter(addresses)
    address = next(following, None)
    for start, end in bounds((one, one + size) for one in addresses):
        try:
            data = memory.read(start, end - start)
        except Unreadable:
            data = b""
        while address is not None and address + size <= end:
            yield data[address - start : address - start + size]
            address = next(following, None)


def at(places: Sequence[tuple[int, int]], runs: Sequence[Run]) -> Iterator[bytes]:
    """Yield what `runs`, which were read for at least these ascending places, hold at each of them."""
    of = iter(runs)
    run = next(of, None)
    for start, end in places:
        while run is not None and run.end < end:
            run = next(of, None)
        assert run is not None and run.address <= start, "the runs were read for other places"
        yield run.data[start - run.address : end - run.address]
