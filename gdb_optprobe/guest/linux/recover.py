"""Recover a running kernel from its memory: where it lies, which build it is, its symbols.

    a port's `find` ─► image, how it is mapped ─► build-id ─► cache ─┬─► symbols
                             └─► kallsyms (first time) ──────────────┤
                                   and the vmlinux that GDB has ─────┘
Nothing is needed but a stopped vCPU; address randomization and page-table isolation do not matter. Where the kernel
has no symbols, or none of its data, those of the vmlinux are taken, if it has the running kernel's build-id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gdb_optprobe.guest import image, kallsyms, vmlinux
from gdb_optprobe.guest.cache import NOTE, NOTE_SIZE, Cache
from gdb_optprobe.guest.image import Image
from gdb_optprobe.guest.kallsyms import NoSymbolTable
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import KernelMemory, VirtualMemory
from gdb_optprobe.guest.symbols import Symbols, SymbolTable

CHUNK = 1 << 16
NO_SYMBOLS = Symbols(array("Q"), (), "")

# The build-id, the symbols, and where the note with the build-id lies.
Known = tuple[str, Symbols, int]
Read = Callable[[int, int], bytes]
Files = Mapping[str, Path]
"""By build-id, the files that GDB has symbols of."""


class Guest(Machine, VirtualMemory, Protocol):
    """A machine whose raw view of virtual memory is at hand too."""


class View(Protocol):
    """How one kernel's addresses are translated, whatever the vCPUs do."""

    def walk(self, address: int) -> tuple[int, int] | None:
        """A `guest.memory.Walk`."""

    def now(self, address: int) -> int | None:
        """The physical address behind `address` as the vCPUs have it now; None where none of them runs a kernel there.

        A reset leaves the old kernel's memory behind, page tables and all.
        """


class Finder(Protocol):
    """Where a kernel lies: the part that an architecture fills (port.py)."""

    def find(self, machine: Machine) -> tuple[Image, View] | None:
        """The image, as far as it is known without symbols; None where no kernel is mapped. Raises OptprobeError."""

    def settle(self, where: Image, view: View, symbols: SymbolTable) -> tuple[Image, View]:
        """The same, with what symbols add."""

    def notes(self, where: Image, symbols: SymbolTable, read: Read) -> tuple[int, int]:
        """Where the kernel's ELF notes are among: start and end."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A kernel found in guest memory. note: where the note with the build-id lies."""

    image: Image
    build: str
    symbols: SymbolTable
    note: int
    view: View

    def still_there(self, machine: Machine) -> bool:
        """Whether a vCPU still runs this build at this address."""
        physical = self.view.now(self.note)
        return physical is not None and image.is_note_of(self.build, machine.read_physical(physical, NOTE_SIZE))

    @property
    def text(self) -> tuple[int, int]:
        return self.image.text.start, self.image.text.end


@dataclass(slots=True)
class Vain:
    """The kernels whose symbols were looked for in vain, by where they are and how their constants begin, and why."""

    known: dict[tuple[Image, bytes], NoSymbolTable] = field(default_factory=dict)


def recover(
    machine: Guest,
    finder: Finder,
    cache: Cache,
    say: Callable[[str], None],
    vain: Vain,
    files: Files | None = None,
) -> Recovered | None:
    """The kernel of this guest; None where no kernel is mapped at all. Raises OptprobeError (not booted yet).

    vain: remembers where there are no symbols, so that the same kernel is not searched by each command.
    files: one of the running kernel, known by its build-id, has the symbols that the kernel lacks.
    """
    found = finder.find(machine)
    if found is None:
        return None
    where, view = found
    reader = KernelMemory(machine, machine, view.walk)
    known = _cached(where, reader, cache) or _sought(where, finder, reader, cache, say, vain, files or {})
    known = _completed(known, where, cache, files or {})
    build, symbols, note = known
    where, view = finder.settle(where, view, SymbolTable(symbols))
    return Recovered(where, build, SymbolTable(symbols, [(where.text.start, where.text.end)]), note, view)


def _cached(where: Image, memory: KernelMemory, cache: Cache) -> Known | None:
    build = cache.recognise(where.text.start, memory.read)
    symbols = cache.symbols(build, where.text.start) if build is not None else None
    if build is None or symbols is None:
        return None
    return build, symbols, where.text.start + int(cache.facts(build)[NOTE])


def _sought(
    where: Image,
    finder: Finder,
    memory: KernelMemory,
    cache: Cache,
    say: Callable[[str], None],
    vain: Vain,
    files: Files,
) -> Known:
    """By the kernel's own symbols, else by the vmlinux that GDB has. Raises NoSymbolTable."""
    kernel = where, memory.read(where.rodata.start, CHUNK)
    read = _in_chunks(memory)
    if kernel not in vain.known:
        say("recovering the kernel's symbols from guest memory")
        try:
            symbols = kallsyms.read(read, where.rodata.start, where.rodata.size)
            return _kept(symbols, where, *_note(where, finder, symbols, read), cache)
        except NoSymbolTable as missing:
            vain.known[kernel] = missing
    if not files:
        raise vain.known[kernel]
    build, note = _note(where, finder, NO_SYMBOLS, read)
    if build not in files:
        raise vain.known[kernel]
    return _kept(vmlinux.load(files[build]).at(where.text.start), where, build, note, cache)


def _note(where: Image, finder: Finder, symbols: Symbols, read: Read) -> tuple[str, int]:
    """The build-id and where its note lies."""
    start, end = finder.notes(where, SymbolTable(symbols), read)
    found = image.build_id(read(start, end - start))
    return found.hex, start + found.offset


def _kept(symbols: Symbols, where: Image, build: str, note: int, cache: Cache) -> Known:
    cache.store_symbols(build, symbols, where.text.start, note)
    return build, symbols, note


def _completed(known: Known, where: Image, cache: Cache, files: Files) -> Known:
    """With the symbols of data that GDB's vmlinux has, where the kernel has none of its own."""
    build, symbols, note = known
    if build not in files or vmlinux.has_data(symbols):
        return known
    others = vmlinux.load(files[build]).at(where.text.start)
    return _kept(vmlinux.completed(symbols, others), where, build, note, cache)


def _in_chunks(memory: KernelMemory) -> Read:
    def read(address: int, size: int) -> bytes:
        end = address + size
        return b"".join(memory.read(at, min(CHUNK, end - at)) for at in range(address, end, CHUNK))

    return read
