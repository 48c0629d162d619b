"""Reads of memory that may not be mapped, by this kernel's page tables and its direct map.

page_offset_base, vmalloc_base   where the direct map begins and what comes behind it (arch/x86/mm/kaslr.c); a kernel
                                 that does not choose (without DYNAMIC_MEMORY_LAYOUT) has neither
sme_me_mask                      the bit of page-table entries that is no address, where memory is encrypted
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64 import probe_read
from gdb_optprobe.guest.linux.arch.x86_64.find import FIVE_LEVELS
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.translated_reads import HINT, TranslatedReads
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.codegen import ProbeReadCode

BASES = ("page_offset_base", "vmalloc_base")
# Its start and end in such a kernel (Documentation/arch/x86/x86_64/mm.rst).
FIXED = (0xFFFF_8880_0000_0000, 0xFFFF_C880_0000_0000)
FIXED_IN_FIVE_LEVELS = (0xFF11_0000_0000_0000, 0xFF91_0000_0000_0000)
GIGABYTE = 1 << 30
LARGEST = 1 << 55


@dataclass(frozen=True)
class Reads(TranslatedReads):
    """See guest.linux.arch.base.Reads. read: kernel memory by virtual address."""

    direct: Direct
    memory: Callable[[int, int], bytes]

    @cached_property
    def routine(self) -> ProbeReadCode:
        return probe_read.routine(self.direct)

    def _place(self, registers: Mapping[str, int], address: int) -> int | None:
        return probe_read.place(self._physical, registers["cr3"], address, self.direct)

    def _physical(self, address: int, size: int) -> bytes:
        return self.memory(self.direct.start + address, size)


def reads(machine: Machine, kernel: Kernel, physical: Callable[[int], int | None]) -> Reads:
    """Return how to read. Raises OptprobeError. physical: translates by the kernel's page tables."""
    control = machine.registers(machine.vcpus()[0], ("cr4",))
    la57 = bool(control["cr4"] & FIVE_LEVELS)
    frame = physical(kernel.address("_stext"))
    start, end = FIXED_IN_FIVE_LEVELS if la57 else FIXED
    if any(map(kernel.symbols.address, BASES)) or frame is None or physical(start + frame) != frame:
        start, end = (kernel.word(kernel.address(name)) for name in BASES)
    encrypted = kernel.symbols.address("sme_me_mask")
    if encrypted is not None and kernel.word(encrypted):
        raise OptprobeError("this guest's memory is encrypted", HINT)
    direct = Direct(start, end - start, la57)
    if start % GIGABYTE or not 0 < direct.size <= LARGEST or frame is None or physical(start + frame) != frame:
        raise OptprobeError("the address of this kernel's direct map is not known", HINT)
    return Reads(direct, kernel.memory.read)
