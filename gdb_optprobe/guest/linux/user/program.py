"""A program of the guest: its file, and the content from the guest's memory or from the same file on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user import files
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.page_frames import PageFrames
from gdb_optprobe.guest.linux.user.pagecache import NotInMemory, PageCache
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.handlers.ctype import CType
from gdb_optprobe.host_files import expanded, read_regular

SOME = 4096
LARGEST = 1 << 32
"""Of a file on the host: a browser with all its debug information has some 3 GB."""
"""Bytes of code that are compared."""


@dataclass(frozen=True)
class Program:
    """file: the guest's. elf: its content; its symbols may be those of a file of the host.
    written: see files.written, as it was when `elf` was read.
    """

    file: File
    elf: Elf
    written: int = 0

    def is_as(self, other: Program) -> bool:
        """Return whether it is the same file with the same layout."""
        files = [(each.file.inode, each.file.number, each.file.device, each.file.size) for each in (self, other)]
        elves = [(each.elf.bits, each.elf.entry, each.elf.segments, each.elf.build_id) for each in (self, other)]
        return files[0] == files[1] and elves[0] == elves[1]

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def inode(self) -> int:
        return self.file.inode

    @property
    def bits(self) -> int:
        return self.elf.bits

    @property
    def pie(self) -> bool:
        return self.elf.pie

    @property
    def first_code(self) -> int:
        return self.elf.first_code

    @property
    def filler(self) -> tuple[int, int]:
        return self.elf.filler

    def resolve(self, location: str) -> int:
        return self.elf.resolve(location)

    def spell(self, address: int) -> str:
        """Return an address as text: busybox:main+0x4."""
        return f"{self.path.rpartition('/')[2]}:{self.elf.spell(address)}"

    def function(self, address: int) -> tuple[int, int] | None:
        return self.elf.function(address)

    def code_start(self, address: int) -> int:
        """Return the start of the code that contains `address`."""
        return next(segment.address for segment in self.elf.code if segment.holds(address))

    def is_entry(self, address: int) -> bool:
        """Return whether arguments are where the ABI has them: at a function's symbol, and at its local entry."""
        bounds = self.elf.function(address)
        return bounds is not None and address in (bounds[0], self.elf.entry_of(address))

    def parameters(self, address: int) -> Mapping[str, CType]:
        """Return the parameters of the function that is entered at an address, in order. Raises OptprobeError.

        None where the file has no debug information of it. A copy that a compiler has made of a function for some of
        its callers takes others.
        """
        bounds = self.elf.function(address)
        if self.bits != 64 or bounds is None or not self.is_entry(address):
            return {}
        return {} if "." in self.elf.spell(bounds[0]) else self.elf.debug_info.parameters(bounds[0])

    def offset(self, address: int) -> int:
        """Return the offset in the file of the page mapped there: code, or the rest of its last page.
        Raises OptprobeError.
        """
        start, end = self.filler
        if not start <= address < end:
            return self.elf.offset(address)
        return self.elf.offset(start - 1) + 1 + address - start

    def text(self, address: int, size: int) -> bytes:
        """Return the file's bytes for the program's memory there: code, or the rest of its last page.
        Raises OptprobeError.
        """
        start, end = self.filler
        if not start <= address < end:
            return self.elf.text(address, size)
        offset = self.offset(address)
        inside = max(min(size, self.file.size - offset), 0)
        return self.elf.read(offset, inside).ljust(size, b"\0")


def find(kernel: Kernel, frames: PageFrames, path: str, host: Path | None = None) -> Program:
    """Return the program at `path` in the guest. host: the same file on the host, or one with its symbols.
    Raises OptprobeError.
    """
    file = files.find(kernel, path)
    written = files.written(kernel, file.inode)
    cache = PageCache(kernel, frames, file)
    if host is None:
        return Program(file, Elf.of(path, cache.read, file.size, frames.kind), written)
    data = _contents(host)

    def read(offset: int, size: int) -> bytes:
        if offset + size > len(data):
            raise OptprobeError(f"{host} ends at {len(data):#x}")
        return data[offset : offset + size]

    theirs = Elf.of(str(host), read, len(data), frames.kind)
    try:
        own = Elf.of(path, cache.read, file.size, frames.kind)
    except NotInMemory:
        if file.size != len(data):
            raise _other(host, path) from None
        return Program(file, theirs, written)
    if not _same(own, theirs):
        raise _other(host, path)
    return Program(file, _both(own, theirs), written)


def inside(kernel: Kernel, frames: PageFrames, file: File) -> Program:
    """Return the program in a file that was found before. Raises OptprobeError."""
    elf = Elf.of(file.path, PageCache(kernel, frames, file).read, file.size, frames.kind)
    return Program(file, elf, files.written(kernel, file.inode))


def _same(own: Elf, theirs: Elf) -> bool:
    """Compare two files: by the build-id; without one, by their segments and the beginning of their code."""
    if own.build_id or theirs.build_id:
        return own.build_id == theirs.build_id and own.bits == theirs.bits
    at = own.first_code
    alike = (own.bits, own.entry, own.segments) == (theirs.bits, theirs.entry, theirs.segments)
    return alike and own.text(at, SOME) == theirs.text(at, SOME)


def _both(own: Elf, theirs: Elf) -> Elf:
    """Return the guest's code with the host's symbols; where both have the same segments, also with the host's bytes.
    """

    def read(offset: int, size: int) -> bytes:
        try:
            return own.read(offset, size)
        except NotInMemory:
            if own.segments == theirs.segments:
                return theirs.read(offset, size)
            raise

    return replace(own, read=read, named_by=theirs)


def _contents(host: Path) -> bytes:
    try:
        # The name may come from a journal, which is guest memory.
        return read_regular(expanded(host), LARGEST)
    except OSError as error:
        raise OptprobeError(f"{host} cannot be read: {error.strerror}") from None
    except ValueError:
        raise OptprobeError(f"'{one_line(str(host))}' is no name of a file here") from None


def _other(host: Path, path: str) -> OptprobeError:
    return OptprobeError(f"{host} is another program than {path} in the guest", "give a file with the same build-id")
