"""Find a running ppc64le kernel: it lies where its linear map begins, at physical 0 (arch/powerpc/kernel/head_64.S).

    c000000000000000 ┌────────┐ _stext     exception vectors first
                     │ text   │
                     ├────────┤ _etext     kallsyms, the note with the build-id
                     │ rodata │
                     │ a gap  │            zero, to the alignment of what follows
                     ├────────┤ __init_begin, 32 MiB further with STRICT_KERNEL_RWX
                     │ init   │            freed after boot
                     │ data   │
                     └────────┘
A kernel that runs elsewhere (a crash kernel) is not looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import NotBooted
from gdb_optprobe.guest.kernel_image import Image, Run
from gdb_optprobe.guest.linux.kernel_discovery import Read, View
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.symbols import SymbolTable

LINEAR_MAP = (0xC000_0000_0000_0000, 0xC000_3D00_0000_0000)
"""asm/book3s/64: where vmalloc begins at the soonest, with hash page tables and pages of 4K. Memory is less."""
LARGEST_IMAGE = 1 << 26
LITTLE_ENDIAN, SIXTY_FOUR = 1 << 0, 1 << 63  # MSR
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class LinearMap:
    """A `View`: an address is its physical address, plus a constant."""

    machine: Machine

    def walk(self, address: int) -> tuple[int, int] | None:
        start, end = LINEAR_MAP
        return (address - start, end - address) if start <= address < end else None

    def now(self, address: int) -> int | None:
        """Translate while a little-endian vCPU runs: firmware is big-endian, so without one no such kernel runs."""
        found = self.walk(address)
        return found[0] if found is not None and runs_little_endian(self.machine) else None


def runs_little_endian(machine: Machine) -> bool:
    states = (machine.registers(vcpu, ("msr",))["msr"] for vcpu in machine.vcpus())
    return any(msr & LITTLE_ENDIAN and msr & SIXTY_FOUR for msr in states)


def find(machine: Machine) -> tuple[Image, View] | None:
    """Return the image: its place is fixed, and its text is not known before its symbols are. Raises NotBooted."""
    if not runs_little_endian(machine):
        raise NotBooted("the guest's CPU is not in 64-bit little-endian mode")
    start = LINEAR_MAP[0]
    everything = Run(start, LARGEST_IMAGE, writable=False, executable=True)
    return Image(everything, everything, everything), LinearMap(machine)


def complete(where: Image, symbols: SymbolTable) -> Image:
    """Return the image's parts. Raises OptprobeError where the symbols are not a kernel's."""
    text, constants = symbols.require("_stext"), _constants(symbols)
    return Image(
        Run(text, constants[0] - text, writable=False, executable=True),
        Run(constants[0], constants[1] - constants[0], writable=False, executable=False),
        Run(constants[1], where.data.end - constants[1], writable=True, executable=False),
    )


def _constants(symbols: SymbolTable) -> tuple[int, int]:
    """Return read-only data, with the gap behind them. Raises OptprobeError, NotBooted."""
    if symbols.require("_stext") != LINEAR_MAP[0]:
        raise NotBooted("the guest's kernel is not where it runs yet")
    return symbols.require("_etext"), symbols.require("__init_begin")


def notes(where: Image, symbols: SymbolTable, read: Read) -> tuple[int, int]:
    """Return [start, end) from the first constant to the gap behind the last: kallsyms has no names for ELF notes."""
    start, end = _constants(symbols)
    end = min(end, start + LARGEST_IMAGE)
    for at in range(start, end, PIECE):
        if not any(read(at, min(PIECE, end - at))):
            return start, at
    return start, end
