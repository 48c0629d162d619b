"""Reads of memory that may not be mapped, by this kernel's radix trees and its linear map.

    init_new_context          ld r7,process_tb; stdbrx r10,r7,r8     a process's tree, by its number, which SPR PID has
    _raw_spin_lock_irqsave    lbz r31,SOFT(r13); …; stb r9,SOFT(r13) Linux's soft mask of interrupts

The process table is accepted if its first entry leads to the kernel's own tree (arch/powerpc/mm/book3s64).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le import image_padding, kernel_tree, probe_read, radix
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import ADDRESS_BITS, LINEAR_BITS, LINEAR_MAP, Linear
from gdb_optprobe.guest.linux.derived_data import LARGEST_FUNCTION
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.translated_reads import HINT, PAGE, TranslatedReads
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.codegen import ProbeReadCode
from gdb_optprobe.isa.ppc64le.fields import opcode, ra, simm

PRIVILEGED, READ = 8, 4
ENTRY = 16
LBZ, STB, PACA = 34, 38, 13
USES_PROCESSES = ("init_new_context", "destroy_context")
MASKS_INTERRUPTS = "_raw_spin_lock_irqsave"
UPPER_INDEXES = (radix.ROOT_BITS, 9, 9)
RADIX = "boot the guest with radix page tables: a CPU since POWER9, without disable_radix"


@dataclass(frozen=True)
class Reads(TranslatedReads):
    """See guest.linux.arch.base.Reads. memory: the kernel's, by virtual address."""

    linear: Linear
    memory: Callable[[int, int], bytes]

    @cached_property
    def routine(self) -> ProbeReadCode:
        return probe_read.routine(self.linear)

    def _place(self, registers: Mapping[str, int], address: int) -> int | None:
        # Only user addresses (quadrant 0) depend on the vCPU's process.
        pid = registers["pid"] if address >> 62 == 0 else 0
        return place(self._physical, pid, address, self.linear)

    def _physical(self, address: int, size: int) -> bytes:
        return self.memory(LINEAR_MAP | address, size)


def place(read_physical: Callable[[int, int], bytes], pid: int, address: int, linear: Linear) -> int | None:
    """Return the physical address from which the routine would read `address`; None where it would not read it."""
    root = _root(read_physical, pid, address, linear)
    if root is None or address >> ADDRESS_BITS & 0x3FF:
        return None
    page = radix.translate(read_physical, root, address)
    if page is None or not page.entry & READ:
        return None
    frame = page.physical + address - page.address
    if address >> LINEAR_BITS == LINEAR_MAP >> LINEAR_BITS:
        return frame
    if frame >> LINEAR_BITS or (not address >> 63 and page.entry & PRIVILEGED):
        return None
    return place(read_physical, pid, LINEAR_MAP | frame, linear)


def _root(read_physical: Callable[[int, int], bytes], pid: int, address: int, linear: Linear) -> int | None:
    if address >> 62 == 3:
        return linear.root
    if address >> 62 or not pid:
        return None
    entry = int.from_bytes(read_physical(linear.processes + ENTRY * pid, 8), "big")
    return entry & radix.NEXT_TABLE if entry & radix.NEXT_SIZE == linear.indexes[0] else None


def reads(machine: Machine, kernel: Kernel) -> Reads:
    """Return how to read. Raises OptprobeError."""
    root = kernel_tree.of(machine, kernel)
    if root is None:
        raise OptprobeError("page tables of this guest cannot be walked: they are no radix tree", f"{RADIX}; {HINT}")
    pages = image_padding.page_size(kernel)
    indexes = (*UPPER_INDEXES, ADDRESS_BITS - pages.bit_length() + 1 - sum(UPPER_INDEXES))
    linear = Linear(root, _processes(machine, kernel, root), indexes, soft_mask(kernel))
    return Reads(linear, kernel.memory.read)


def _processes(machine: Machine, kernel: Kernel, root: int) -> int:
    """Return the physical address of the process table."""
    symbols = kernel.symbols
    assert isinstance(symbols, DerivedSymbols)
    for variable in (used for name in USES_PROCESSES for used in symbols.constants_of(name).used):
        table = symbols.word(variable)
        if table is None or table % PAGE or table >> LINEAR_BITS != LINEAR_MAP >> LINEAR_BITS:
            continue
        entry = int.from_bytes(machine.read(table, 8), "big")
        if entry & radix.NEXT_TABLE == root and entry & radix.NEXT_SIZE == radix.ROOT_BITS:
            return table - LINEAR_MAP
    raise OptprobeError("the address of this kernel's process table is not known", HINT)


def soft_mask(kernel: Kernel) -> int:
    """Return the offset of the one byte of the paca that the function both reads and writes."""
    start, end = kernel.symbols.function_bounds(kernel.symbols.address(MASKS_INTERRUPTS) or 0) or (0, 0)
    code = kernel.memory.read(start, min(end - start, LARGEST_FUNCTION)) if start else b""
    words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, len(code), 4)]
    of_paca = [(opcode(word), simm(word)) for word in words if opcode(word) in (LBZ, STB) and ra(word) == PACA]
    found = {offset for form, offset in of_paca if form == LBZ} & {offset for form, offset in of_paca if form == STB}
    if len(found) != 1:
        raise OptprobeError("the paca's soft mask of interrupts is not known for this kernel", HINT)
    return found.pop()
