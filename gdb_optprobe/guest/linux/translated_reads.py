"""Reads of memory that may not be mapped: what the routine in the guest would read, by page and by physical memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from gdb_optprobe.errors import Unreadable

PAGE = 4096
"""Bytes, or a part of them, that have one translation."""
HINT = "memory that is known to be mapped can be read: $task, $comm, the kernel's own variables"


class TranslatedReads(ABC):
    """See guest.linux.arch.base.Reads."""

    def read(self, registers: Mapping[str, int], address: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            at = address + len(data)
            if (place := self._place(registers, at)) is None:
                raise Unreadable(at, size - len(data))
            data += self._physical(place, min(size - len(data), PAGE - at % PAGE))
        return data

    @abstractmethod
    def _place(self, registers: Mapping[str, int], address: int) -> int | None:
        """Return the physical address from which a vCPU with these registers would read; None where it would not."""

    @abstractmethod
    def _physical(self, address: int, size: int) -> bytes:
        """Read physical memory. Raises Unreadable."""
