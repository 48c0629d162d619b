"""Memory for detours on aarch64: what the kernel's own image ends in, of its code and of all.

    … __idmap_text_end │ linker's tables │ zeros │ _etext …          … .bss │ init_pg_dir │ zeros │ its end
                                         └ code ─┘ R X                                    └ data ─┘ RW

Segments are aligned to 64 KiB (SEGMENT_ALIGN), so that either tail is less than that, of a size that is chance. Page
tables stay as they are. Code is taken if all of it is zero; it belongs to the text, which is never freed. Of the data
the kernel may have given the first page tables to its allocator, and that to others: only pages are taken of which the
kernel's record (struct page) says that they are reserved, and that no symbol is in.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import find as finding
from gdb_optprobe.guest.linux.arch.aarch64.find import PageTables
from gdb_optprobe.guest.linux.arch.aarch64.page_records import PageRecords
from gdb_optprobe.guest.linux.arch.base import Room
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Machine

FILL = 0
SEGMENT = 1 << 16
PAGE = 1 << 12
LINE = 128  # counters share no cache line with the guest's data
LEAST_CODE, LEAST_DATA = 1 << 10, 1 << 12
LARGE_CODE, JOURNAL = 1 << 14, 3 << 13
"""Bytes of code beside which there is room for a journal, and those of the journal; see detours/journal.py."""
ADVICE = "set optprobe arena code=START-END data=START-END"

Range = tuple[int, int]


class NoPadding(OptprobeError):
    """This kernel's image has no gap that could hold detours."""


def find(machine: Machine, kernel: Kernel) -> Room:
    """Return the memory. Raises NoPadding."""
    first, second = places(machine, kernel)
    free, end = _zeros(kernel, second.code[0])
    if end - free < LEAST_CODE:
        raise NoPadding(f"the text of this kernel ends in {end - free:,} bytes that no code uses", ADVICE)
    place = first if end - free >= LARGE_CODE + JOURNAL else second
    code = free, place.code[0][1]
    if any(kernel.read(*place.data)) or any(kernel.read(*place.journal)):
        raise NoPadding("what should be a gap of this kernel's image holds something", ADVICE)

    def give_back() -> None:
        used = kernel.read(*place.data).rstrip(b"\0")
        kernel.memory.write(place.data[0], bytes(len(used)))

    return Room((code,), place.data, FILL, give_back=give_back, journal=place.journal)


def places(machine: Machine, kernel: Kernel) -> Iterator[Room]:
    """Yield the places where `find` may have found memory before, whatever they hold now: with the journal behind the
    code, where that is large, or behind the data. Raises OptprobeError.
    """
    end = kernel.address("_etext")
    start, last = _data(machine, kernel)
    yield _place(kernel, (end - SEGMENT, end - JOURNAL), (start, last), (end - JOURNAL, end))
    middle = start + (last - start) // 2 // PAGE * PAGE
    yield _place(kernel, (end - SEGMENT, end), (start, middle), (middle, last))


def _place(kernel: Kernel, code: Range, data: Range, journal: Range) -> Room:
    return Room((code,), data, FILL, journal=journal, as_found=lambda: (_zeros(kernel, code),))


def _zeros(kernel: Kernel, code: Range) -> Range:
    """Return the part of a range, at its end, that is zero."""
    used = len(kernel.read(*code).rstrip(bytes([FILL])))
    return min(code[0] + -(-used // LINE) * LINE, code[1]), code[1]


def _data(machine: Machine, kernel: Kernel) -> Range:
    """Return the pages at the image's end that are reserved, of one segment. Whether they are zero is another question:
    what they hold changes, and where they are must not. Raises NoPadding.
    """
    found = finding.find(machine)
    if found is None or not isinstance(found[1], PageTables):
        raise NoPadding("the kernel's page tables are not found")
    image, view = found[0], found[1]
    records = PageRecords.of(kernel, view)
    end = image.data.end & -PAGE
    start = _behind_all(kernel, records, image.data.start, end)
    if end - start < 2 * LEAST_DATA:
        raise NoPadding("the data of this kernel end in no page that only the kernel's image has", ADVICE)
    return start, end


def _behind_all(kernel: Kernel, records: PageRecords, data: int, end: int) -> int:
    """Return where what the image has in [data, end) ends: at the last of its symbols, or else behind the last page
    that the allocator has got. Raises NoPadding.
    """
    last = kernel.symbols.at(end - 1)
    named = end - 1 - last.offset if last is not None else 0
    least = max(end - SEGMENT, named + PAGE - 1 & -PAGE)
    start = end
    while start > least and records.is_reserved(start - PAGE):
        start -= PAGE
    # Without symbols, pages that are reserved without an end may be data.
    if named < data and start == least:
        raise NoPadding("where the data of this kernel's image end is not known", ADVICE)
    return start
