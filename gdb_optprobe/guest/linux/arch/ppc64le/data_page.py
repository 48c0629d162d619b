"""A page of the image's gap, which the kernel maps like text, remapped as data: other gaps are too small for detours.

    … rodata │ gap: zero, one leaf of the radix tree for each 2 MiB                     │ __init_begin
             │                 │ data: R X becomes R W  │ code: R X, as it is            │        `below`
         … rodata │ gap of less than a leaf                      │ table                │ __init_begin
                  │ data: R W          │ code: R X, as it is     │ of the leaf's pages           `split`

`below`: one entry of 8 bytes changes. The page was never accessed, so no translation of it is cached that lacks the
right to write (Power ISA 3.1B, Book III, 6.10: cached ones need a tlbie).
`split`: the leaf has constants too, and a processor may have cached it as a whole. It is used under QEMU's TCG alone,
which caches translations by its own pages: those of the gap were never accessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.ppc64le import radix
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch

LEAST, MOST = 1 << 16, 1 << 22
ReadPhysical = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class DataPage:
    """start, end: of the page or pages. switch: makes them data. is_data: an earlier session has made them data."""

    start: int
    end: int
    switch: tuple[PhysicalPatch, ...]
    is_data: bool


def below(code: int, bottom: int, read_physical: ReadPhysical, root: int) -> DataPage | None:
    """Return the next whole page below `code` and above `bottom`.
    None where it is not mapped like text, or as this makes it. root: the physical address of the kernel's tree.
    """
    page = radix.translate(read_physical, root, code - 1)
    if page is not None and page.address + page.size > code:
        page = radix.translate(read_physical, root, page.address - 1)
    if page is None or not LEAST <= page.size <= MOST or page.address < bottom:
        return None
    if page.physical != page.address - LINEAR_MAP[0] or page.writable is page.executable:
        return None
    text = page.entry & ~radix.WRITE | radix.EXECUTE
    data = page.entry & ~radix.EXECUTE | radix.WRITE | radix.REFERENCED | radix.CHANGED
    switch = PhysicalPatch(page.at, text.to_bytes(8, "big"), data.to_bytes(8, "big"))
    return DataPage(page.address, page.address + page.size, (switch,), is_data=page.writable)


def split(start: int, end: int, table: int, size: int, read_physical: ReadPhysical, root: int) -> DataPage | None:
    """Return [start, end) as data, the other pages of their leaf text as before; None where no leaf has them.
    table: where the entries of the leaf's pages go; size: bytes of each page.
    """
    leaf = radix.translate(read_physical, root, start)
    if leaf is None or leaf.writable or not leaf.executable or leaf.physical != leaf.address - LINEAR_MAP[0]:
        return None
    if leaf.size <= size or end > leaf.address + leaf.size or end % size or start % size:
        return None
    return DataPage(start, end, _switch(leaf.at, leaf, table - LINEAR_MAP[0], size, start, end), is_data=False)


def was_split(bottom: int, end: int, read_physical: ReadPhysical, root: int) -> DataPage | None:
    """Return what `split` has made of pages between `bottom` and `end`; None where it has made nothing."""
    pages, at = [], bottom
    while at < end and (page := radix.translate(read_physical, root, at)) is not None:
        pages.append(page)
        at = page.address + page.size
    data = [page for page in pages if page.writable and not page.executable and page.above]
    if not data or data[-1].address + data[-1].size - data[0].address != sum(page.size for page in data):
        return None
    first, size = data[0], data[0].size
    covered = size << (int.from_bytes(read_physical(first.above, 8), "big") & radix.NEXT_SIZE)
    start = first.address & -covered
    table = first.at - 8 * ((first.address - start) // size)
    text = first.entry & ~(radix.FRAME | radix.WRITE) | radix.EXECUTE | start - LINEAR_MAP[0]
    leaf = radix.Page(start, start - LINEAR_MAP[0], covered, text, first.above)
    last = data[-1].address + size
    switch = _switch(leaf.at, leaf, table, size, first.address, last)
    if any(read_physical(patch.address, len(patch.new)) != patch.new for patch in switch):
        return None
    return DataPage(first.address, last, switch, is_data=True)


def _switch(at: int, leaf: radix.Page, table: int, size: int, start: int, end: int) -> tuple[PhysicalPatch, ...]:
    """Return the patches that replace `leaf`, with its entry `at`, by a table in which [start, end) is data."""
    entries = b"".join(
        _entry(leaf.entry & ~radix.FRAME | address - LINEAR_MAP[0], start <= address < end).to_bytes(8, "big")
        for address in range(leaf.address, leaf.address + leaf.size, size)
    )
    leads = radix.VALID | table | (len(entries) // 8).bit_length() - 1
    pages = PhysicalPatch(table, bytes(len(entries)), entries)
    return pages, PhysicalPatch(at, leaf.entry.to_bytes(8, "big"), leads.to_bytes(8, "big"))


def _entry(entry: int, is_data: bool) -> int:
    """Return a page's entry. Referenced and changed are set, so that the machine does not write to it."""
    entry |= radix.REFERENCED | radix.CHANGED
    return entry & ~radix.EXECUTE | radix.WRITE if is_data else entry
