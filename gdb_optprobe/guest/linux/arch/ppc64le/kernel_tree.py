"""The kernel's own radix tree: it maps modules and all else beside the linear map, whichever tree a vCPU uses.

    MSR[DR] = 0     firmware and the first instructions of some interrupts: addresses are physical, and the stub reads
                    the linear map alone
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.ppc64le import radix
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP, LinearMap
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.symbols import SymbolTable

VMALLOC = (LINEAR_MAP[1], 0xC00A_0000_0000_0000)
"""Where modules are: 2 PiB behind the linear map's start with radix page tables, and with hash ones of pages of 64K;
right behind its end with those of 4K (asm/book3s/64/radix.h, hash-64k.h, hash-4k.h)."""
LARGEST_POINTER = 1 << 44
SMALLEST_PAGE = 1 << 12
CHANGES_MAPPINGS = ("radix__change_memory_range", "__map_kernel_page")


def of(machine: Machine, kernel: Kernel) -> int | None:
    """Return the physical address of the kernel's tree; None where the code does not show it."""
    symbols = kernel.symbols
    return _root(machine, symbols, kernel.address("_stext")) if isinstance(symbols, DerivedSymbols) else None


def _root(machine: Machine, symbols: DerivedSymbols, text: int) -> int | None:
    """Return the tree that `pgd_offset_k` reads, in a function that changes mappings, if it maps text where text is."""
    for function in CHANGES_MAPPINGS:
        found = symbols.constants_of(function)
        for variable in (*found.used, *found.made):
            table = symbols.word(variable)
            if table is None or table % SMALLEST_PAGE or not LINEAR_MAP[0] <= table < LINEAR_MAP[0] + LARGEST_POINTER:
                continue
            physical = table - LINEAR_MAP[0]
            try:
                page = radix.translate(machine.read_physical, physical, text)
            except OptprobeError:
                continue
            if page is not None and page.executable and page.physical == page.address - LINEAR_MAP[0]:
                return physical
    return None


@dataclass
class KernelMap:
    """A `View` of all that the kernel maps: the linear map, and its tree's mappings where the tree is known."""

    linear: LinearMap
    symbols: SymbolTable
    _tree: int | None = None

    def walk(self, address: int) -> tuple[int, int] | None:
        if not VMALLOC[0] <= address < VMALLOC[1]:
            return self.linear.walk(address)
        machine = self.linear.machine
        if self._tree is None:
            memory = _Physical(machine, self.linear)
            self._tree = _root(machine, DerivedSymbols(self.symbols, memory), self.symbols.require("_stext"))
        page = radix.translate(machine.read_physical, self._tree, address) if self._tree is not None else None
        if page is None:
            return None
        into = address - page.address
        return page.physical + into, page.size - into

    def now(self, address: int) -> int | None:
        return self.linear.now(address)


@dataclass(frozen=True, slots=True)
class _Physical:
    """`guest.machine.Memory` of the linear map, whichever tree a vCPU uses."""

    machine: Machine
    linear: LinearMap

    def read(self, address: int, size: int) -> bytes:
        return self.machine.read_physical(self._at(address, size), size)

    def write(self, address: int, data: bytes) -> None:
        self.machine.write_physical(self._at(address, len(data)), data)

    def _at(self, address: int, size: int) -> int:
        found = self.linear.walk(address)
        if found is None or found[1] < size:
            raise Unreadable(address, size)
        return found[0]
