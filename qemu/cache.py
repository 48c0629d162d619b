"""Where fetched and built files are kept between runs, outside the source tree."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import lines
from gdb_optprobe.host_files import folder

__all__ = ["cache_directory", "guests_directory", "locked", "say"]


def cache_directory() -> Path:
    """Return `$OPTPROBE_CACHE`, else `optprobe` under `$XDG_CACHE_HOME` or `~/.cache`; made if missing.
    Programs and kernels in it are run. Raises OSError where another user may change them.
    """
    given = os.environ.get("OPTPROBE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    path = Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "optprobe"
    return _own(path)


def guests_directory() -> Path:
    """Return the folder for sockets of running guests. Its path is short: a unix socket's has at most 107 bytes.

    A user that can connect to them can do anything to a guest, and through QEMU to this user's files. Raises OSError
    where another user made the folder first, or may look into it.
    """
    return _own(Path(tempfile.gettempdir()) / f"optprobe-{os.getuid()}", alone=True)


def _own(path: Path, alone: bool = False) -> Path:
    try:
        return folder(path, alone)
    except OptprobeError as refused:
        raise PermissionError(str(refused)) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that two processes do not fill one place of the cache at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Print to stderr a step that takes time, or an error with the end of the guest's log."""
    print(lines(f"optprobe: {text}"), file=sys.stderr, flush=True)
