"""Kernel memory beyond the linear map, whatever the vCPUs are doing: the records of pages (struct page) are there.

A vCPU that runs a program cannot translate it. The linear map is then read as physical memory (guest/memory.py); it has
all tables of the radix tree that maps the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.ppc64le import radix
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP
from gdb_optprobe.guest.machine import Memory


@dataclass(frozen=True, slots=True)
class RadixMemory:
    """`guest.machine.Memory`. root: the physical address of the kernel's tree. Each read lies in one page."""

    memory: Memory
    root: int

    def read(self, address: int, size: int) -> bytes:
        return self.memory.read(self._linear(address, size), size)

    def write(self, address: int, data: bytes) -> None:
        self.memory.write(self._linear(address, len(data)), data)

    def _linear(self, address: int, size: int) -> int:
        """Return the address in the linear map."""
        start, end = LINEAR_MAP
        if start <= address < end or not address >> 63:
            return address
        page = radix.translate(lambda at, length: self.memory.read(start + at, length), self.root, address)
        if page is None or address + size > page.address + page.size:
            raise Unreadable(address, size)
        return start + page.physical + address - page.address
