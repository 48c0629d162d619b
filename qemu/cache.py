"""Where fetched and built files are kept between runs, outside the source tree."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_directory", "guests_directory", "locked", "say"]


def cache_directory() -> Path:
    """`$OPTPROBE_CACHE`, else `optprobe` under `$XDG_CACHE_HOME` or `~/.cache`; made if missing."""
    given = os.environ.get("OPTPROBE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    path = Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "optprobe"
    path.mkdir(parents=True, exist_ok=True)
    return path


def guests_directory() -> Path:
    """Where running guests have their sockets; short, because a unix socket's path has at most 107 bytes."""
    path = Path(tempfile.gettempdir()) / f"optprobe-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that two processes do not fill one place of the cache at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Tell the user, on stderr, what takes longer than a moment."""
    print(f"optprobe: {text}", file=sys.stderr, flush=True)
