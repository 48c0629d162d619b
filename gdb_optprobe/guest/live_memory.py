"""Read a guest's memory while it runs: QEMU's own memory holds it, and QEMU says where.

    at a stop       virtual ──page tables──► guest-physical ──QEMU's monitor──► QEMU's own address
                                                  │ pmemsave (QMP)                  │ /proc/PID/mem
    while it runs                                 └──────────────► bytes ◄──────────┘
Nothing here writes. Words of 8 bytes are whole; what several words hold may be of different moments. What a way reads
is compared with what the stub reads of the stopped guest. A way that differs is not used: it may be another guest's
memory, or no guest's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreadable
from gdb_optprobe.guest.machine import Memory

PROOF = 64
"""Bytes that are compared at both ends of each extent."""
MOST_EXTENTS = 1024
"""Pieces of QEMU's memory that data may be in: asking for each takes milliseconds."""

HostAddress = Callable[[int], int]
"""From a guest-physical address to QEMU's own. Raises OptprobeError."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the guest that follow one another in its virtual, its physical, and QEMU's memory."""

    address: int
    size: int
    physical: int
    host: int

    @property
    def end(self) -> int:
        return self.address + self.size


class Way(Protocol):
    """A way to read what QEMU holds."""

    def read(self, extent: Extent, offset: int, size: int) -> bytes:
        """Return bytes of an extent, fewer or others where it cannot. Raises OSError, OptprobeError."""

    def close(self) -> None:
        """Give up what it has open."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way that may work. name: what `doctor` and `top` print. open: makes it. Raises OSError, OptprobeError."""

    name: str
    open: Callable[[], Way]


class LiveMemory:
    """Implements machine.Memory for some extents, by one way. name: of the way."""

    def __init__(self, name: str, way: Way, extents: Sequence[Extent]) -> None:
        self.name = name
        self._way = way
        self._extents = sorted(extents, key=lambda one: one.address)
        self._starts = [one.address for one in self._extents]

    def read(self, address: int, size: int) -> bytes:
        """Return what the guest has there now. Raises Unreadable; NeedsStop where it is in none of the extents."""
        found = bytearray()
        while len(found) < size:
            at = address + len(found)
            place = bisect_right(self._starts, at) - 1
            extent = self._extents[place] if place >= 0 else None
            if extent is None or at >= extent.end:
                raise NeedsStop(f"where {at:#x} is in QEMU's memory is not known")
            length = min(size - len(found), extent.end - at)
            try:
                data = self._way.read(extent, at - extent.address, length)
            except (OSError, OptprobeError):
                data = b""
            if len(data) != length:
                raise Unreadable(at, length)
            found += data
        return bytes(found)

    def write(self, address: int, data: bytes) -> None:
        """Raise NeedsStop: memory of a guest that runs is never written."""
        raise NeedsStop("memory of a guest that runs is not written")

    def close(self) -> None:
        self._way.close()

    def difference(self, stub: Memory) -> str:
        """Return what differs from what the stub reads of the stopped guest, in words; "" where nothing does.

        Memory without a byte that is not 0 is no proof.
        """
        seen = b""
        for extent in self._extents:
            size = min(PROOF, extent.size)
            for at in dict.fromkeys((extent.address, extent.end - size)):
                wanted = stub.read(at, size)
                try:
                    found = self.read(at, size)
                except Unreadable:
                    return f"it cannot be read at {at:#x}"
                if found != wanted:
                    return f"it is other memory at {at:#x}"
                seen += wanted
        return "" if any(seen) else "nothing in it tells it from other memory"


def extents(
    spans: Iterable[tuple[int, int]], physical: Callable[[int, int], Iterable[tuple[int, int]]], host: HostAddress
) -> list[Extent]:
    """Return where the bytes of `spans`, (start, end) pairs, are in QEMU's memory. Raises OptprobeError.

    physical: from an address and a size to guest-physical pieces, (address, size), in this order.
    """
    pieces: list[tuple[int, int, int]] = []
    for start, end in spans:
        for address, size in physical(start, end - start):
            pieces.append((start, address, size))
            start += size
            if len(pieces) > MOST_EXTENTS:
                raise OptprobeError(f"it is in more than {MOST_EXTENTS} pieces")
    known = _as_one(pieces, host) or host
    found: list[Extent] = []
    for at, address, size in pieces:
        for piece, length, there in _in_one(address, size, known):
            found.append(Extent(at, length, piece, there))
            at += length
            if len(found) > MOST_EXTENTS:
                raise OptprobeError(f"it is in more than {MOST_EXTENTS} pieces")
    return found


def _as_one(pieces: Sequence[tuple[int, int, int]], host: HostAddress) -> HostAddress | None:
    """Return where physical addresses are, if all pieces lie in one piece of QEMU's memory: then two are asked for.

    Each extent is compared with what the stub reads of it, whatever was found here.
    """
    if len(pieces) < 2:
        return None
    start, end = min(at for _, at, _ in pieces), max(at + size for _, at, size in pieces)
    distance = host(start) - start
    return (lambda address: address + distance) if host(end - 1) == end - 1 + distance else None


def _in_one(physical: int, size: int, host: HostAddress) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of guest-physical memory that are in one piece of QEMU's: (physical, size, host address)."""
    first = host(physical)
    if size == 1 or host(physical + size - 1) == first + size - 1:
        yield physical, size, first
        return
    half = size // 2
    yield from _in_one(physical, half, host)
    yield from _in_one(physical + half, size - half, host)


def chosen(
    candidates: Iterable[Candidate], where: Callable[[], Sequence[Extent]], stub: Memory
) -> tuple[LiveMemory | None, list[str]]:
    """Return the first way that reads what the stub does, or None; and why those before it are not used.

    where: returns the extents, once a way is there that needs them. Raises what `stub` raises.
    """
    why: list[str] = []
    known: Sequence[Extent] | None = None
    for candidate in candidates:
        try:
            way = candidate.open()
        except (OSError, OptprobeError) as error:
            why.append(f"{candidate.name}: {_words(error)}")
            continue
        try:
            known = where() if known is None else known
        except OptprobeError as error:
            way.close()
            return None, [*why, f"{candidate.name}: {_words(error)}"]
        memory = LiveMemory(candidate.name, way, known)
        if not (differs := memory.difference(stub)):
            return memory, why
        memory.close()
        why.append(f"{candidate.name}: {differs}")
    return None, why


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return error.message if isinstance(error, OptprobeError) else str(error)
