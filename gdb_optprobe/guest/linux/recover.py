"""Recover a running x86-64 kernel from its memory: where it lies, which build it is, its symbols, its page tables.

    CR3 ─► mappings of the kernel's image ─► text, rodata, data ─► build-id ─► cache ─┬─► symbols
                                                       └─► kallsyms (first time) ─────┘
Nothing is needed but a vCPU's control registers; KASLR and page-table isolation do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import image, kallsyms
from gdb_optprobe.guest.cache import NOTE, NOTE_SIZE, Cache
from gdb_optprobe.guest.image import Image, Run
from gdb_optprobe.guest.machine import Machine, PhysicalMemory
from gdb_optprobe.guest.memory import KernelMemory, VirtualMemory
from gdb_optprobe.guest.symbols import Symbols, SymbolTable
from gdb_optprobe.isa.x86_64 import paging

# __START_KERNEL_map up to the modules (arch/x86/include/asm/page_64_types.h).
IMAGE_AREA = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)
PAGING, PROTECTED = 1 << 31, 1 << 0
LONG_MODE_ACTIVE = 1 << 10
FIVE_LEVELS = 1 << 12
CHUNK = 1 << 16
LARGEST_NOTES = 1 << 16

# The build-id, the symbols, and where the note with the build-id lies.
Known = tuple[str, Symbols, int]

CONTROL = ("cr0", "cr3", "cr4", "efer")


class Guest(Machine, VirtualMemory, Protocol):
    """A machine whose raw view of virtual memory is at hand too."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A kernel found in guest memory.

    note: where the note with the build-id lies.
    root: the physical address of the kernel's own top page table, which no process takes away.
    """

    image: Image
    build: str
    symbols: SymbolTable
    note: int
    root: int
    la57: bool

    def still_there(self, machine: Machine) -> bool:
        """Whether a vCPU still runs this build at this address.

        Asked of the vCPUs' page tables as they are now: a reset leaves the old kernel's memory behind, tables and all.
        """
        for root in _roots(machine):
            page = paging.translate(machine.read_physical, root, self.note, la57=self.la57)
            if page is not None:
                return image.is_note_of(self.build, machine.read_physical(page.frame_of(self.note), NOTE_SIZE))
        return False

    @property
    def text(self) -> tuple[int, int]:
        return self.image.text.start, self.image.text.end


def recover(machine: Guest, cache: Cache, say: Callable[[str], None]) -> Recovered | None:
    """The kernel of this guest; None where no kernel is mapped at all. Raises OptprobeError (not booted yet)."""
    control = machine.registers(machine.vcpus()[0], CONTROL)
    check_mode(control)
    la57 = bool(control["cr4"] & FIVE_LEVELS)
    found = _find(machine, la57)
    if found is None:
        return None
    where, root = found
    reader = KernelMemory(machine, machine, walker(machine, root, la57))
    known = _cached(where, reader, cache)
    if known is None:
        say("recovering the kernel's symbols from guest memory")
        known = _recover(where, reader, cache)
    build, symbols, note = known
    table = SymbolTable(symbols, [(where.text.start, where.text.end)])
    own = table.address("init_top_pgt") or table.address("swapper_pg_dir")
    physical = reader.physical(own) if own is not None else None
    return Recovered(where, build, table, note, physical if physical is not None else root, la57)


def check_mode(control: Mapping[str, int]) -> None:
    """Raises OptprobeError unless the CPU runs 64-bit code with paging."""
    if not control["cr0"] & PROTECTED or not control["efer"] & LONG_MODE_ACTIVE:
        raise OptprobeError("the guest's CPU is not in 64-bit mode", "let the guest boot, then try again")
    if not control["cr0"] & PAGING:
        raise OptprobeError("the guest has not switched paging on yet", "let the guest boot, then try again")


def walker(physical: PhysicalMemory, root: int, la57: bool) -> Callable[[int], tuple[int, int] | None]:
    """A `guest.memory.Walk` over the page tables at `root`."""

    def walk(address: int) -> tuple[int, int] | None:
        page = paging.translate(physical.read_physical, root, address, la57=la57)
        return (page.frame_of(address), page.end - address) if page is not None else None

    return walk


def kernel_memory(machine: VirtualMemory, physical: PhysicalMemory, root: int, la57: bool) -> KernelMemory:
    """Kernel memory through the selected vCPU where it sees it, else through the kernel's own page tables."""
    return KernelMemory(machine, physical, walker(physical, root, la57))


def _find(machine: Machine, la57: bool) -> tuple[Image, int] | None:
    """The image and page tables that show it. A vCPU in user mode may have tables without the kernel."""
    failure: OptprobeError | None = None
    for root in _roots(machine):
        try:
            runs = [
                Run(page.address, page.size, page.writable, page.executable)
                for page in paging.mappings(machine.read_physical, root, *IMAGE_AREA, la57=la57)
                if not page.user
            ]
            if runs:
                return image.find(runs), root
        except OptprobeError as error:
            failure = error
    if failure is not None:
        raise failure
    return None


def _roots(machine: Machine) -> Iterator[int]:
    """Candidates: the kernel's half of each vCPU's pair of tables (page-table isolation), then what CR3 has."""
    vcpus = sorted(machine.vcpus(), key=lambda vcpu: vcpu != machine.selected())
    values = []
    for vcpu in vcpus:
        values.append(machine.registers(vcpu, ("cr3",))["cr3"])
        yield values[-1] & paging.ADDRESS
    for value in values:
        yield paging.kernel_cr3(value)


def _cached(where: Image, memory: KernelMemory, cache: Cache) -> Known | None:
    build = cache.recognise(where.text.start, memory.read)
    symbols = cache.symbols(build, where.text.start) if build is not None else None
    if build is None or symbols is None:
        return None
    return build, symbols, where.text.start + int(cache.facts(build)[NOTE])


def _recover(where: Image, memory: KernelMemory, cache: Cache) -> Known:
    symbols = kallsyms.read(_in_chunks(memory), where.rodata.start, where.rodata.size)
    start, end = symbols.address("__start_notes"), symbols.address("__stop_notes")
    if start is None or end is None or not 0 < end - start <= LARGEST_NOTES:
        start, end = where.rodata.start, where.rodata.end
    note = image.build_id(_in_chunks(memory)(start, end - start))
    cache.store_symbols(note.hex, symbols, where.text.start, start + note.offset)
    return note.hex, symbols, start + note.offset


def _in_chunks(memory: KernelMemory) -> Callable[[int, int], bytes]:
    def read(address: int, size: int) -> bytes:
        end = address + size
        return b"".join(memory.read(at, min(CHUNK, end - at)) for at in range(address, end, CHUNK))

    return read
