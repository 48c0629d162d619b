"""Discover a running kernel in memory: its address, its build, its symbols.

    an arch's `find` ─► image, how it is mapped ─► build-id ─► cache: tables of this hash ─┬─► symbols
                             └─► kallsyms (first time) ───────────────────────────────────┤
                                   and the vmlinux that GDB has ──────────────────────────┘
Nothing is needed but a stopped vCPU; address randomization and page-table isolation do not matter. Where the kernel
has no symbols, or none of its data, those of the vmlinux are taken, if it has the running kernel's build-id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest import kallsyms, kernel_image, vmlinux
from gdb_optprobe.guest.cache import NOTE, NOTE_SIZE, Cache, Shelf
from gdb_optprobe.guest.kallsyms import NoSymbolTable
from gdb_optprobe.guest.kallsyms_tables import KallsymsTables
from gdb_optprobe.guest.kernel_image import Image
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import Dump, KernelMemory, VirtualMemory
from gdb_optprobe.guest.symbols import Symbols, SymbolTable

CHUNK = 1 << 16
NO_SYMBOLS = Symbols(array("Q"), (), "")

TABLES = "tables"
Read = Callable[[int, int], bytes]
Files = Mapping[str, Path]
"""The files that GDB has loaded symbols from, by build-id."""


class RawMachine(Machine, VirtualMemory, Protocol):
    """A machine with its raw view of virtual memory."""


class View(Protocol):
    """Translation of one kernel's addresses, independent of what the vCPUs do."""

    def walk(self, address: int) -> tuple[int, int] | None:
        """Translate by the kernel's tables: a `guest.memory.Walk`."""

    def now(self, address: int) -> int | None:
        """Return the physical address of `address` if a vCPU runs a kernel there now; else None.

        A reset leaves the old kernel's memory behind, page tables and all.
        """


class Finder(Protocol):
    """The addresses of a kernel: the part of LinuxArch that finds it (arch/base.py)."""

    def find(self, machine: Machine) -> tuple[Image, View] | None:
        """Return the image, as far as it is known without symbols; None where no kernel is mapped. Raises
        OptprobeError.
        """

    def complete(self, where: Image, view: View, symbols: SymbolTable) -> tuple[Image, View]:
        """Return image and view, completed by means of the symbols."""

    def notes(self, where: Image, symbols: SymbolTable, read: Read) -> tuple[int, int]:
        """Return [start, end) of memory that has the kernel's ELF notes."""


@dataclass(frozen=True, slots=True)
class DiscoveredKernel:
    """A kernel found in guest memory. note: address of the note with the build-id.
    shelf: the cache of a kernel with these symbols; None where they are not only its own.
    """

    image: Image
    build: str
    symbols: SymbolTable
    note: int
    view: View
    shelf: Shelf | None = None

    def is_same_kernel(self, machine: Machine) -> bool:
        """Return whether a vCPU still runs this build at this address."""
        physical = self.view.now(self.note)
        return physical is not None and kernel_image.is_note_of(self.build, machine.read_physical(physical, NOTE_SIZE))

    @property
    def text(self) -> tuple[int, int]:
        return self.image.text.start, self.image.text.end


@dataclass(frozen=True, slots=True)
class Known:
    """A DiscoveredKernel before its symbols were used."""

    build: str
    symbols: Symbols
    note: int
    shelf: Shelf | None


@dataclass(slots=True)
class KnownFailures:
    """Why a search for symbols failed, by the kernel's address and the start of its constants."""

    known: dict[tuple[Image, bytes], NoSymbolTable] = field(default_factory=dict)


def discover(
    machine: RawMachine,
    finder: Finder,
    cache: Cache,
    say: Callable[[str], None],
    vain: KnownFailures,
    files: Files | None = None,
    dump: Dump | None = None,
) -> DiscoveredKernel | None:
    """Return the kernel of this guest; None where no kernel is mapped. Raises OptprobeError (not booted yet).

    vain: remembers failed searches, so that the same kernel is not searched by each command.
    files: a file with the running kernel's build-id gives the symbols that the kernel lacks. dump: reads much at once.
    """
    found = finder.find(machine)
    if found is None:
        return None
    where, view = found
    reader = KernelMemory(machine, machine, view.walk, dump)
    known = _cached(where, reader, cache) or _sought(where, finder, reader, cache, say, vain, files or {})
    known = _completed(known, where, files or {})
    table = SymbolTable(known.symbols)
    where, view = finder.complete(where, view, table)
    table.text = ((where.text.start, where.text.end),)
    return DiscoveredKernel(where, known.build, table, known.note, view, known.shelf)


def _cached(where: Image, memory: KernelMemory, cache: Cache) -> Known | None:
    """Return a cached kernel with the same tables. They are read whole: a build-id can be forged."""
    keys: dict[KallsymsTables, str | None] = {}
    for claim in cache.claims(where.text.start, memory.read):
        tables = KallsymsTables.of(claim.shelf.facts().get(TABLES))
        if tables is None:
            continue
        if tables not in keys:
            keys[tables] = tables.key(where.text.start, memory.read_many)
        if keys[tables] == claim.shelf.key and (symbols := claim.shelf.symbols(where.text.start)) is not None:
            return Known(claim.build, symbols, claim.note, claim.shelf)
    return None


def _sought(
    where: Image,
    finder: Finder,
    memory: KernelMemory,
    cache: Cache,
    say: Callable[[str], None],
    vain: KnownFailures,
    files: Files,
) -> Known:
    """Return the kernel with its own symbols, or those of the vmlinux that GDB has. Raises NoSymbolTable."""
    kernel = where, memory.read(where.rodata.start, CHUNK)

    def read(address: int, size: int) -> bytes:
        # Much at once: what is no Linux may have a quarter of a gigabyte to search, and 17 MB are read of a kernel.
        return memory.read_many([(address, address + size)])[0]

    if kernel not in vain.known:
        say("recovering the kernel's symbols from guest memory")
        try:
            recorded = RecordedMemory(where.rodata.start, read)
            found = kallsyms.find(recorded.read, where.rodata.start, where.rodata.size)
            return _kept(found, where, *_note(where, finder, found.symbols, read), recorded, cache)
        except NoSymbolTable as missing:
            vain.known[kernel] = missing
    if not files:
        raise vain.known[kernel]
    build, note = _note(where, finder, NO_SYMBOLS, read)
    if build not in files:
        raise vain.known[kernel]
    return Known(build, vmlinux.load(files[build]).at(where.text.start), note, None)


def _note(where: Image, finder: Finder, symbols: Symbols, read: Read) -> tuple[str, int]:
    """Return the build-id and the address of its note."""
    start, end = finder.notes(where, SymbolTable(symbols), read)
    found = kernel_image.build_id(read(start, min(end - start, kallsyms.LARGEST)))
    return found.hex, start + found.offset


@dataclass(slots=True)
class RecordedMemory:
    """Memory from `start` on, as it was read once: a guest may answer the next read differently."""

    start: int
    memory: Read
    data: bytearray = field(default_factory=bytearray)

    def read(self, address: int, size: int) -> bytes:
        assert address == self.start + len(self.data), "in a row"
        data = self.memory(address, size)
        self.data += data
        return data

    def again(self, address: int, size: int) -> bytes:
        """Read from the copy. Raises Unreadable beyond it."""
        start = address - self.start
        if not 0 <= start <= start + size <= len(self.data):
            raise Unreadable(address, size)
        return bytes(self.data[start : start + size])

    def again_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.again(start, end - start) for start, end in spans]


def _kept(found: kallsyms.Found, where: Image, build: str, note: int, recorded: RecordedMemory, cache: Cache) -> Known:
    text = where.text.start
    names, offsets = ((start - text, end - text) for start, end in (found.names, found.offsets))
    tables = KallsymsTables(names, offsets)
    key = tables.key(text, recorded.again_many)
    shelf = cache.shelf(build, key) if key is not None else None
    if shelf is not None:
        shelf.store_symbols(found.symbols, text)
        shelf.remember({NOTE: note - text, TABLES: tables.fact()})
    return Known(build, found.symbols, note, shelf)


def _completed(known: Known, where: Image, files: Files) -> Known:
    """Add the data symbols of GDB's vmlinux, where the kernel has none of its own."""
    if known.build not in files or vmlinux.has_data(known.symbols):
        return known
    others = vmlinux.load(files[known.build]).at(where.text.start)
    return Known(known.build, vmlinux.completed(known.symbols, others), known.note, None)
