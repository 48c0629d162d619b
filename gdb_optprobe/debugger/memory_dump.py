"""Read much of physical memory at once: QEMU's monitor writes it to a file, which is read here.

    pieces ──monitor pmemsave──► a file in a folder of this process alone ──► bytes      15 MB in 20 ms, by packets 1 s
It needs a QEMU on this host that may write there, so it is tried once, with a page that packets read too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

import gdb

from gdb_optprobe.interrupts import held

_PAGE = 4096
_MAPPED = 1 << 20
"""Bytes of a file that is mapped."""
_FOLDERS = "/dev/shm", None
"""Where the file may be: in memory, which takes a third of the time where little is read; or where temporary files are.
"""


@dataclass
class MemoryDump:
    """read: physical memory by packets. check_stopped: raises NeedsStop where the guest runs."""

    read: Callable[[int, int], bytes]
    check_stopped: Callable[[], None]
    _folders: Sequence[str | None] = _FOLDERS
    _works: bool | None = None

    def __call__(self, pieces: Sequence[tuple[int, int]]) -> Sequence[bytes | mmap] | None:
        """Return what these pieces of physical memory, (address, size), hold; None where it cannot be had so."""
        self.check_stopped()
        if not pieces:
            return []
        if self._works is None:
            self._folders = self._tried(pieces[:1])
            self._works = bool(self._folders)
        if not self._works:
            return None
        found = _dumped(pieces, self._folders[0])
        self._works = found is not None
        return found

    def _tried(self, pieces: Sequence[tuple[int, int]]) -> Sequence[str | None]:
        """Return the first folder by which a page is read as packets read it."""
        page = [(address, min(size, _PAGE)) for address, size in pieces]
        for folder in self._folders:
            if (found := _dumped(page, folder)) is not None and found == [self.read(*one) for one in page]:
                return [folder]
        return []


def _dumped(pieces: Sequence[tuple[int, int]], among: str | None) -> Sequence[bytes | mmap] | None:
    """Read `pieces` by a file in a new folder, `among` others or where temporary files are.

    A long file is mapped, not copied: it lives on without a name as long as that is used.
    """
    try:
        # `held`: after a user's own monitor command the guest may be another one (debugger/lifecycle.py).
        with tempfile.TemporaryDirectory(prefix="optprobe-", dir=among) as folder, held():
            path = Path(folder) / "memory"
            found = list[bytes | mmap]()
            for address, size in pieces:
                if gdb.execute(f'monitor pmemsave {address:#x} {size:#x} "{path}"', to_string=True):
                    return None  # it answers only where it fails
                with path.open("rb") as file:
                    found.append(mmap(file.fileno(), 0, access=ACCESS_READ) if size >= _MAPPED else file.read())
                if len(found[-1]) != size:
                    return None
                path.unlink()
            return found
    except (gdb.error, OSError, ValueError):  # of an empty file
        return None
