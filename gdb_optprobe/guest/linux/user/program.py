"""A program of the guest's: its file, and what is in it, from the guest's memory or the same file on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user import files
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.frames import Frames
from gdb_optprobe.guest.linux.user.pagecache import NotInMemory, PageCache

HEADERS = 4096


@dataclass(frozen=True)
class Program:
    """file: the guest's. elf: what is in it; its symbols may be those of a file of the host's."""

    file: File
    elf: Elf

    @property
    def name(self) -> str:
        return self.file.path.rpartition("/")[2]

    def spell(self, address: int) -> str:
        """busybox:main+0x4"""
        return f"{self.name}:{self.elf.spell(address)}"


def find(kernel: Kernel, frames: Frames, path: str, host: Path | None = None) -> Program:
    """The program at `path` in the guest. host: the same on the host, or with its symbols. Raises OptprobeError."""
    file = files.find(kernel, path)
    cache = PageCache(kernel, frames, file)
    if host is None:
        return Program(file, Elf.of(path, cache.read, file.size))
    data = _contents(host)

    def read(offset: int, size: int) -> bytes:
        if offset + size > len(data):
            raise OptprobeError(f"{host} ends at {len(data):#x}")
        return data[offset : offset + size]

    theirs = Elf.of(str(host), read, len(data))
    try:
        own = Elf.of(path, cache.read, file.size)
    except NotInMemory:
        if file.size != len(data):
            raise _other(host, path) from None
        return Program(file, theirs)
    if not _same(own, theirs, file.size, len(data)):
        raise _other(host, path)
    return Program(file, _both(own, theirs, same=file.size == len(data)))


def _same(own: Elf, theirs: Elf, size: int, host_size: int) -> bool:
    """By the build-id; without one they have the same size and beginning."""
    if own.build_id or theirs.build_id:
        return own.build_id == theirs.build_id and own.bits == theirs.bits
    first = min(size, HEADERS)
    return size == host_size and own.read(0, first) == theirs.read(0, first)


def _both(own: Elf, theirs: Elf, same: bool) -> Elf:
    """The guest's code with the host's symbols; where the files are alike, the host's bytes serve too."""

    def read(offset: int, size: int) -> bytes:
        try:
            return own.read(offset, size)
        except NotInMemory:
            if same:
                return theirs.read(offset, size)
            raise

    return replace(own, read=read, named_by=theirs)


def _contents(host: Path) -> bytes:
    try:
        return host.expanduser().read_bytes()
    except OSError as error:
        raise OptprobeError(f"{host} cannot be read: {error.strerror}") from None


def _other(host: Path, path: str) -> OptprobeError:
    return OptprobeError(f"{host} is another program than {path} in the guest", "give a file with the same build-id")
