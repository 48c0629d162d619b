"""Read much of physical memory at once: QEMU's monitor writes it to a file, which is read here.

    pieces ──monitor pmemsave──► a file in a folder of this process alone ──► bytes      15 MB in 20 ms, by packets 1 s
It needs a QEMU on this host that may write there, so it is tried once, with a page that packets read too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gdb

from gdb_optprobe.interrupts import held

_PAGE = 4096


@dataclass
class MemoryDump:
    """read: physical memory by packets. check_stopped: raises NeedsStop where the guest runs."""

    read: Callable[[int, int], bytes]
    check_stopped: Callable[[], None]
    _works: bool | None = None

    def __call__(self, pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Return what these pieces of physical memory, (address, size), hold; None where it cannot be had so."""
        self.check_stopped()
        if self._works is False:
            return None
        found = _dumped(pieces)
        if found is not None and self._works is None:
            address, size = pieces[0]
            size = min(size, _PAGE)
            self._works = self.read(address, size) == found[0][:size]
        if found is None or not self._works:
            self._works = False
            return None
        return found


def _dumped(pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
    try:
        # `held`: after a user's own monitor command the guest may be another one (debugger/lifecycle.py).
        with tempfile.TemporaryDirectory(prefix="optprobe-") as folder, held():
            path = Path(folder) / "memory"
            found = []
            for address, size in pieces:
                if gdb.execute(f'monitor pmemsave {address:#x} {size:#x} "{path}"', to_string=True):
                    return None  # it answers only where it fails
                found.append(path.read_bytes())
                if len(found[-1]) != size:
                    return None
                path.unlink()
            return found
    except (gdb.error, OSError):
        return None
