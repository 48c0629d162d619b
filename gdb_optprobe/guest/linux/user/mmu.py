"""Page tables of programs, and the kernel's records of pages (struct page), as they differ by machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user.elf import Kind

ReadPhysical = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A page that a program may use. frame: the physical address of the smallest page around the requested address.

    is_kept: it is one of these, and marked dirty, so that data written there is not dropped.
    """

    frame: int
    is_kept: bool


class Mmu(Protocol):
    """kind: of programs. start, size: of the kernel's map of physical memory."""

    @property
    def kind(self) -> Kind: ...

    @property
    def start(self) -> int: ...

    @property
    def size(self) -> int: ...

    def records(self, kernel: Kernel) -> int:
        """Return the address of the record (struct page) of the page at 0."""

    def leaf(self, read: ReadPhysical, table: int, address: int) -> Leaf | None:
        """Return the page that maps `address`; None without one. table: the physical address of a space's top table."""
