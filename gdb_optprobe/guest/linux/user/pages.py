"""Pages of an address space, and which of them are private: those can be written without changing the file.

    mm_struct ─► pgd ─► page tables ─► frame ─► struct page: mapping & 3 == 1: anonymous, no page of a file's
                                    (include/linux/page-flags.h, PAGE_MAPPING_ANON; 3: merged with others, KSM)

A page with an entry that is not dirty may have a copy on disk: a write to it may get lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.physical_patch import Changed
from gdb_optprobe.guest.linux.user.mmu import Leaf, Mmu
from gdb_optprobe.guest.linux.user.page_frames import PageFrames

ANONYMOUS, KIND = 1, 3
SMALLEST = 4096
"""Bytes of a page, on any machine at least."""


@dataclass(frozen=True, slots=True)
class Pages:
    kernel: Kernel
    frames: PageFrames
    mmu: Mmu

    def of(self, mm: int) -> StoppedPages:
        """Return the pages of a space, valid while the guest is stopped."""
        return StoppedPages(self, mm)

    def read(self, mm: int, address: int, size: int) -> bytes | None:
        """See StoppedPages."""
        return self.of(mm).read(address, size)

    def find(self, mm: int, address: int) -> Leaf | None:
        """Return the page that a program of the space may use at `address` now."""
        top = self.kernel.word(mm + self.kernel.offset("mm_struct", "pgd")) - self.frames.start
        return self.mmu.leaf(self.frames.read, top, address)

    def is_private(self, page: Leaf) -> bool:
        """Return whether it can be written: it is the space's own, or shared only with its forks."""
        if not page.is_kept:
            return False
        record = self.frames.record(page.frame)
        mapping = self.kernel.word(record + self.kernel.offset("page", "mapping"))
        return mapping & KIND == ANONYMOUS


@dataclass
class StoppedPages:
    """The pages of a space while the guest is stopped: each is looked up once."""

    pages: Pages
    mm: int
    _found: dict[int, tuple[int, bool] | None] = field(default_factory=dict)

    def read(self, address: int, size: int) -> bytes | None:
        """Read within one page; None where no page is there now."""
        found = self._page(address)
        return None if found is None else self.pages.frames.read(found[0] + address % self.pages.frames.page, size)

    def write(self, address: int, old: bytes, new: bytes) -> bool:
        """Replace `old` by `new`; False, nothing written, where the page is not the space's own.

        Both within one page. Raises Changed where the page has neither.
        """
        found = self._page(address)
        if found is None or not self.is_own(address):
            return False
        frames, at = self.pages.frames, found[0] + address % self.pages.frames.page
        there = frames.read(at, len(old))
        if there not in (old, new):
            raise Changed(f"the program's memory at {address:#x} is not what was written there")
        if there != new:
            frames.write(at, new)
            if frames.read(at, len(new)) != new:
                raise Changed(f"the program's memory at {address:#x} cannot be written")
        return True

    def is_own(self, address: int) -> bool:
        """Return whether `write` can write at `address`."""
        found = self._page(address)
        return found is not None and found[1]

    def _page(self, address: int) -> tuple[int, bool] | None:
        """Return the physical address, and whether the page is the space's own."""
        start = address - address % self.pages.frames.page
        if start not in self._found:
            page = self.pages.find(self.mm, start)
            self._found[start] = None if page is None else (page.frame, self.pages.is_private(page))
        return self._found[start]


def within_pages(address: int, data: bytes) -> tuple[tuple[int, bytes], ...]:
    """Return `data` at `address` as pieces that lie in one page each."""
    starts = [0, *range(SMALLEST - address % SMALLEST, len(data), SMALLEST)]
    ends = [*starts[1:], len(data)]
    return tuple((address + start, data[start:end]) for start, end in zip(starts, ends, strict=True))
