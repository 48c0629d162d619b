"""Kernel memory by virtual address, whatever the vCPUs are doing.

QEMU's stub translates with the page tables of the selected vCPU. Under page-table isolation a vCPU in user mode maps
next to nothing of the kernel, so what the stub cannot read is read through physical memory, at the addresses that a
walk of the kernel's own page tables gives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from mmap import mmap
from typing import Protocol

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.machine import Changed, PhysicalMemory

__all__ = ["Image", "KernelMemory", "VirtualMemory", "Walk", "by_page"]

PAGE = 4096
# Set in every kernel address. Others belong to the program of the selected vCPU: the kernel's tables do not have them.
KERNEL_BIT = 63

# From a virtual address to (its physical address, bytes from there to the end of the page or run); None where unmapped.
Walk = Callable[[int], tuple[int, int] | None]


# From pieces of physical memory, (address, size), to what they hold; None where that cannot be had at once.
Dump = Callable[[Sequence[tuple[int, int]]], Sequence[bytes | mmap] | None]
NEAR, MOST_AT_ONCE = 1 << 18, 1 << 26
"""Bytes between two pieces that are read along; bytes of a piece."""
MUCH = 1 << 16
"""Bytes that are read at once where that is possible: 32 packets."""


def by_page(read_physical: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """Return a reader of page tables that reads each page of them once."""

    @cache
    def page(at: int) -> bytes:
        return read_physical(at, PAGE)

    return lambda address, size: page(address & -PAGE)[address % PAGE : address % PAGE + size]


class VirtualMemory(Protocol):
    """Memory as the selected vCPU sees it. Raises errors.Unreadable."""

    def read_virtual(self, address: int, size: int) -> bytes: ...

    def write_virtual(self, address: int, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Image:
    """What memory held from `start` on when the image was taken. Later writes are not in it."""

    start: int
    data: bytes | mmap

    def read(self, address: int, size: int) -> bytes:
        at = address - self.start
        if not 0 <= at <= at + size <= len(self.data):
            raise Unreadable(address, size)
        return self.data[at : at + size]


class KernelMemory:
    """`machine.Memory` over a fast view that may lack the kernel and a slow one that has it.

    walk: the kernel's page tables, as they are now; its answers are kept until `forget`. dump: reads much at once.
    """

    def __init__(
        self, virtual: VirtualMemory, physical: PhysicalMemory, walk: Walk, dump: Dump | None = None
    ) -> None:
        self._dump = dump
        self._virtual = virtual
        self._physical = physical
        self._walk = walk
        self._blind = False
        self._starts: list[int] = []
        self._runs: list[tuple[int, int]] = []
        self._imaged: set[tuple[int, int, int, Changed]] = set()

    def forget(self) -> None:
        """Drop cached translations: the guest has run, so page tables may have changed, and the selected vCPU's view
        too.
        """
        self._blind = False
        self._starts.clear()
        self._runs.clear()

    def read(self, address: int, size: int) -> bytes:
        if size <= 0:
            return b""
        is_kernel = address >> KERNEL_BIT & 1
        if size >= MUCH and is_kernel:
            with suppress(Unreadable):
                if (found := self._dumped([(address, address + size)])) is not None:
                    return found[0]
        if not self._blind or not is_kernel:
            try:
                return self._virtual.read_virtual(address, size)
            except Unreadable:
                pass
        read = self._physical.read_physical
        data = b"".join([read(at, length) for at, length in self.extents(address, size)])
        self._blind = True
        return data

    def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """See machine.ReadsMany: what lies near each other in physical memory is read at once, if that is possible."""
        if all(start >> KERNEL_BIT & 1 for start, _ in spans) and (found := self._dumped(spans)) is not None:
            return found
        return [self.read(start, end - start) for start, end in spans]

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """See machine.ReadsMany."""
        is_whole = bool(places) and places[0][0] >> KERNEL_BIT & 1 and self._whole(places) is not None
        return self._dumped(places) if is_whole else None

    def image(self, start: int, end: int, changed: Changed | None = None) -> Image | None:
        """See machine.HasImages. Memory in several physical pieces has no image."""
        try:
            pieces = self.extents(start, end - start) if self._dump is not None else ()
        except Unreadable:
            return None
        if self._dump is None or len(pieces) != 1 or end - start > MOST_AT_ONCE:
            return None
        if (held := self._dump(pieces)) is None:
            return None
        if changed is not None:
            self._imaged.add((start, end, pieces[0][0], changed))
        return Image(start, held[0])

    def _dumped(self, spans: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Return what the kernel's memory holds in each of `spans`; None where it cannot be read at once."""
        if self._dump is None:
            return None
        if (whole := self._whole(spans)) is not None:
            first, data = spans[0][0], self._dump([whole])
            return [data[0][start - first : end - first] for start, end in spans] if data is not None else None
        extents = [self.extents(start, end - start) for start, end in spans]
        pieces: list[tuple[int, int]] = []
        for at, size in sorted(extent for some in extents for extent in some):
            if pieces and at - pieces[-1][1] <= NEAR and at + size - pieces[-1][0] <= MOST_AT_ONCE:
                pieces[-1] = pieces[-1][0], max(pieces[-1][1], at + size)
            else:
                pieces.append((at, at + size))
        if (held := self._dump([(start, end - start) for start, end in pieces])) is None:
            return None
        starts = [start for start, _ in pieces]

        def part(at: int, size: int) -> bytes:
            place = bisect_right(starts, at) - 1
            return held[place][at - starts[place] : at - starts[place] + size]

        return [b"".join([part(at, size) for at, size in some]) for some in extents]

    def _whole(self, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the piece of physical memory that ascending `spans` are in, which are near each other; None where they
        are not, or not in one.
        """
        first, size = spans[0][0], spans[-1][1] - spans[0][0]
        if not 0 < size <= min(MOST_AT_ONCE, NEAR * len(spans)):
            return None
        try:
            pieces = self.extents(first, size)
        except Unreadable:
            return None
        return pieces[0] if len(pieces) == 1 else None

    def write(self, address: int, data: bytes) -> None:
        if not data:
            return
        self._drop_images([one for one in self._imaged if one[0] < address + len(data) and address < one[1]])
        if not self._blind or not address >> KERNEL_BIT & 1:
            try:
                self._virtual.write_virtual(address, data)
                return
            except Unreadable:
                pass
        # All is translated before the first byte is written.
        written = 0
        for at, length in self.extents(address, len(data)):
            self._physical.write_physical(at, data[written : written + length])
            written += length
        self._blind = True

    def note_write(self, address: int, size: int) -> None:
        """Note that physical memory is written past this: what was read of it is dropped."""
        end = address + size
        self._drop_images([one for one in self._imaged if one[2] < end and address < one[2] + one[1] - one[0]])

    def _drop_images(self, images: Sequence[tuple[int, int, int, Changed]]) -> None:
        for image in images:
            self._imaged.remove(image)
            image[-1]()

    def physical(self, address: int) -> int | None:
        """Return the physical address of `address`; None where the kernel maps nothing."""
        run = self._translate(address)
        return None if run is None else run[0]

    def extents(self, address: int, size: int) -> list[tuple[int, int]]:
        """Return the physical runs (address, size) of a virtual one, each as long as it can be. Raises Unreadable."""
        extents: list[tuple[int, int]] = []
        for at, length in self._pieces(address, size):
            if extents and sum(extents[-1]) == at:
                extents[-1] = extents[-1][0], extents[-1][1] + length
            else:
                extents.append((at, length))
        return extents

    def _pieces(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        at, end = address, address + size
        while at < end:
            run = self._translate(at)
            if run is None:
                raise Unreadable(at, end - at)
            length = min(run[1], end - at)
            yield run[0], length
            at += length

    def _translate(self, address: int) -> tuple[int, int] | None:
        """Return what `Walk` returns, from earlier walks where they suffice."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            physical, size = self._runs[index]
            offset = address - self._starts[index]
            if offset < size:
                return physical + offset, size - offset
        run = self._walk(address)
        if run is not None:
            self._keep(address, *run)
        return run

    def _keep(self, address: int, physical: int, size: int) -> None:
        """Cache the run from the start of the page of `address`, cut where a known one begins."""
        into = address % PAGE
        start, end = address - into, address + size
        index = bisect_left(self._starts, start)
        if index < len(self._starts):
            end = min(end, self._starts[index])
        if start < end and self._starts[index : index + 1] != [start]:
            self._starts.insert(index, start)
            self._runs.insert(index, (physical - into, end - start))
