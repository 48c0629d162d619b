"""Page tables in physical memory, made entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gdb_optprobe.guest.linux.arch.x86_64 import paging, probe_read
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct

PAGE = 4096


@dataclass
class Tables:
    """The root first, in pages from there on. contents: what other pages hold, by their address."""

    direct: Direct
    root: int
    contents: Callable[[int], bytes]
    pages: dict[int, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pages[self.root] = bytearray(PAGE)

    def read_physical(self, address: int, size: int) -> bytes:
        page = self.pages.get(address & -PAGE)
        return bytes((page or self.contents(address & -PAGE))[address % PAGE : address % PAGE + size])

    def map(self, address: int, physical: int, level: int, user: bool = False) -> None:
        """A page of 4 KiB (level 1), 2 MiB or 1 GiB; nothing where a larger one is."""
        table = self.root
        for above in range(5 if self.direct.la57 else 4, level, -1):
            entry = self._entry(table, address, above)
            if not entry & paging.PRESENT:
                entry = (self.root + PAGE * len(self.pages)) | 7
                self.pages[entry & paging.ADDRESS] = bytearray(PAGE)
                self._set(table, address, above, entry)
            elif entry & paging.LARGE:
                return
            table = entry & paging.ADDRESS
        entry = physical & -(1 << 3 + 9 * level) | (0x87 if level > 1 else 7) | paging.NO_EXECUTE
        self._set(table, address, level, entry if user else entry & ~paging.USER)

    def place(self, address: int) -> int | None:
        return probe_read.place(self.read_physical, self.root | 0xFFF, address, self.direct)

    def _entry(self, table: int, address: int, level: int) -> int:
        at = (address >> 3 + 9 * level & 0x1FF) * 8
        return int.from_bytes(self.pages[table][at : at + 8], "little")

    def _set(self, table: int, address: int, level: int, entry: int) -> None:
        at = (address >> 3 + 9 * level & 0x1FF) * 8
        self.pages[table][at : at + 8] = entry.to_bytes(8, "little")
