"""Make the initramfs: a gzip'd cpio archive (format "newc") of busybox and our init.

    entry      110-byte ASCII header ─ name NUL ─ pad to 4 ─ data ─ pad to 4
    archive    entry … entry, an entry named TRAILER!!!

Written here rather than by cpio, so that device nodes need no root and the same input gives the same bytes.
"""

from __future__ import annotations

import gzip
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Entry", "archive", "initramfs"]

INIT = Path(__file__).with_name("init")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the archive.

    path:   without a leading slash.
    mode:   type and permission bits, as in `st_mode`.
    data:   content of a file, target of a symbolic link.
    device: (major, minor) of a device node.
    """

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the entries as an uncompressed newc archive; a directory must come before what it holds."""
    trailer = Entry("TRAILER!!!", 0)
    return b"".join(_record(number, entry) for number, entry in enumerate([*entries, trailer], start=1))


def initramfs(busybox: bytes, files: Mapping[str, bytes] | None = None) -> bytes:
    """Return the compressed archive a kernel boots from.

    busybox: the statically linked program for the guest's architecture.
    files:   further files by path; each is made executable, its directories are made.
    """
    return gzip.compress(archive(_entries(busybox, files or {})), compresslevel=1, mtime=0)


def _entries(busybox: bytes, files: Mapping[str, bytes]) -> Iterable[Entry]:
    made = {"bin", "dev", "proc", "sys", "tmp", "root"}
    yield from (_directory(path) for path in sorted(made))
    yield Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    yield Entry("dev/null", stat.S_IFCHR | 0o666, device=(1, 3))
    yield _program("bin/busybox", busybox)
    yield Entry("bin/sh", stat.S_IFLNK | 0o777, b"busybox")
    yield _program("init", INIT.read_bytes())
    for path, data in sorted(files.items()):
        path = path.strip("/")
        for parent in reversed([str(parent) for parent in Path(path).parents][:-1]):
            if parent not in made:
                made.add(parent)
                yield _directory(parent)
        yield _program(path, data)


def _directory(path: str) -> Entry:
    return Entry(path, stat.S_IFDIR | 0o755)


def _program(path: str, data: bytes) -> Entry:
    return Entry(path, stat.S_IFREG | 0o755, data)


def _record(number: int, entry: Entry) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
