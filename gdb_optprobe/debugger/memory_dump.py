"""Read much of physical memory at once: QEMU's monitor writes it to a file, which is read here.

    pieces ──monitor pmemsave──► a file in a folder of this process alone ──► bytes      15 MB in 20 ms, by packets 1 s
It needs a QEMU on this host that may write there, so it is tried once, with a page that packets read too.
The folder's name has the process in it: what a GDB that was killed has left there is removed by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

import gdb

from gdb_optprobe.debugger.machine import carry_out
from gdb_optprobe.interrupts import held

_PAGE = 4096
_MAPPED = 1 << 20
"""Bytes of a file that is mapped."""
_PREFIX = "optprobe-memory-"
_NAME = re.compile(rf"{_PREFIX}([1-9]\d{{0,8}})-[a-z0-9_]{{8}}")
"""Of a folder: a process, and what `tempfile` adds."""
_FOLDERS = "/dev/shm", None
"""Where the file may be: in memory, which takes a third of the time where little is read; or where temporary files are.
"""


@dataclass
class MemoryDump:
    """read: physical memory by packets. check_stopped: raises NeedsStop where the guest runs.

    _folders: in which it was not found to fail. _is_tried: whether the first of them was found to serve.
    """

    read: Callable[[int, int], bytes]
    check_stopped: Callable[[], None]
    _folders: Sequence[str | None] = _FOLDERS
    _is_tried: bool = False

    def __call__(self, pieces: Sequence[tuple[int, int]]) -> Sequence[bytes | mmap] | None:
        """Return what these pieces of physical memory, (address, size), hold; None where it cannot be had so."""
        self.check_stopped()
        if not pieces:
            return []
        while self._folders:
            folder = self._folders[0]
            if self._is_tried or self._serves(folder, pieces[0]):
                self._is_tried = True
                if (found := _dumped(pieces, folder)) is not None:
                    return found
            self._folders, self._is_tried = self._folders[1:], False
        return None

    def _serves(self, folder: str | None, piece: tuple[int, int]) -> bool:
        """Return whether a page is read by this folder as packets read it; what others left there is removed."""
        _remove_left(folder or tempfile.gettempdir())
        page = piece[0], min(piece[1], _PAGE)
        return (found := _dumped([page], folder)) is not None and found == [self.read(*page)]


def _dumped(pieces: Sequence[tuple[int, int]], among: str | None) -> Sequence[bytes | mmap] | None:
    """Read `pieces` by a file in a new folder, `among` others or where temporary files are.

    A long file is mapped, not copied: it lives on without a name as long as that is used.
    """
    try:
        # `held`: after a user's own monitor command the guest may be another one (debugger/lifecycle.py).
        with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=among) as folder, held():
            path = Path(folder) / "memory"
            found = list[bytes | mmap]()
            for address, size in pieces:
                if carry_out(f'monitor pmemsave {address:#x} {size:#x} "{path}"'):
                    return None  # it answers only where it fails
                with path.open("rb") as file:
                    found.append(mmap(file.fileno(), 0, access=ACCESS_READ) if size >= _MAPPED else file.read())
                if len(found[-1]) != size:
                    return None
                path.unlink()
            return found
    except (gdb.error, OSError, ValueError):  # of an empty file
        return None


def _remove_left(among: str) -> None:
    """Remove this user's folders of processes that are gone: guest memory would stay there."""
    with suppress(OSError):  # it cannot be listed
        for entry in os.scandir(among):
            if (named := _NAME.fullmatch(entry.name)) is None or _is_alive(int(named[1])):
                continue
            with suppress(OSError):  # another GDB removes it, too
                known = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(known.st_mode) and known.st_uid == os.geteuid():
                    shutil.rmtree(entry.path)  # it follows no links


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True
