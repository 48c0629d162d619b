"""A page of the image's gap that the kernel maps like text, made one of data: detours need more than other gaps have.

    … rodata │ gap: zero, one leaf of the radix tree for each 2 MiB                     │ __init_begin
             │                 │ data: R X becomes R W  │ code: R X, as it is            │

One entry of 8 bytes changes. Nobody has ever used the page, so no translation of it is cached that lacks the right to
write (Power ISA 3.1B, Book III, 6.10: those that are need a tlbie).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.guest.linux.physical import PhysicalPatch
from gdb_optprobe.guest.linux.ppc64le import radix
from gdb_optprobe.guest.linux.ppc64le.find import LINEAR_MAP

LEAST, MOST = 1 << 16, 1 << 22


@dataclass(frozen=True, slots=True)
class DataPage:
    """start, end: of the page. switch: makes it one of data. is_data: it is already, since an earlier session."""

    start: int
    end: int
    switch: PhysicalPatch
    is_data: bool


def below(code: int, bottom: int, read_physical: Callable[[int, int], bytes], root: int) -> DataPage | None:
    """The next whole page below `code` and above `bottom`; None where it is not mapped like text or as this makes it.

    root: the physical address of the kernel's tree.
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
    return DataPage(page.address, page.address + page.size, switch, is_data=page.writable)
