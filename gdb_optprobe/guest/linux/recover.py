"""Recover a running kernel from its memory: where it lies, which build it is, its symbols.

    a port's `find` ─► image, how it is mapped ─► build-id ─► cache ─┬─► symbols
                             └─► kallsyms (first time) ──────────────┘
Nothing is needed but a stopped vCPU; address randomization and page-table isolation do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.guest import image, kallsyms
from gdb_optprobe.guest.cache import NOTE, NOTE_SIZE, Cache
from gdb_optprobe.guest.image import Image
from gdb_optprobe.guest.kallsyms import NoSymbolTable
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import KernelMemory, VirtualMemory
from gdb_optprobe.guest.symbols import Symbols, SymbolTable

CHUNK = 1 << 16

# The build-id, the symbols, and where the note with the build-id lies.
Known = tuple[str, Symbols, int]
Read = Callable[[int, int], bytes]


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
    machine: Guest, finder: Finder, cache: Cache, say: Callable[[str], None], vain: Vain
) -> Recovered | None:
    """The kernel of this guest; None where no kernel is mapped at all. Raises OptprobeError (not booted yet).

    vain: remembers where there are no symbols, so that the same kernel is not searched by each command.
    """
    found = finder.find(machine)
    if found is None:
        return None
    where, view = found
    reader = KernelMemory(machine, machine, view.walk)
    known = _cached(where, reader, cache)
    if known is None:
        kernel = where, reader.read(where.rodata.start, CHUNK)
        if kernel in vain.known:
            raise vain.known[kernel]
        say("recovering the kernel's symbols from guest memory")
        try:
            known = _recover(where, finder, reader, cache)
        except NoSymbolTable as missing:
            vain.known[kernel] = missing
            raise
    build, symbols, note = known
    where, view = finder.settle(where, view, SymbolTable(symbols))
    return Recovered(where, build, SymbolTable(symbols, [(where.text.start, where.text.end)]), note, view)


def _cached(where: Image, memory: KernelMemory, cache: Cache) -> Known | None:
    build = cache.recognise(where.text.start, memory.read)
    symbols = cache.symbols(build, where.text.start) if build is not None else None
    if build is None or symbols is None:
        return None
    return build, symbols, where.text.start + int(cache.facts(build)[NOTE])


def _recover(where: Image, finder: Finder, memory: KernelMemory, cache: Cache) -> Known:
    read = _in_chunks(memory)
    symbols = kallsyms.read(read, where.rodata.start, where.rodata.size)
    start, end = finder.notes(where, SymbolTable(symbols), read)
    note = image.build_id(read(start, end - start))
    cache.store_symbols(note.hex, symbols, where.text.start, start + note.offset)
    return note.hex, symbols, start + note.offset


def _in_chunks(memory: KernelMemory) -> Read:
    def read(address: int, size: int) -> bytes:
        end = address + size
        return b"".join(memory.read(at, min(CHUNK, end - at)) for at in range(address, end, CHUNK))

    return read
