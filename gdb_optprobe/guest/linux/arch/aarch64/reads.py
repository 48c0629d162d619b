"""Reads of memory that may not be mapped, by what the CPU translates and by this kernel's linear map.

Threads come from an allocator that gives memory by its address in the linear map, so one tells where that is. It is
accepted if the kernel's text, which is mapped at another address too, appears in it at the same physical address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import probe_read
from gdb_optprobe.guest.linux.arch.aarch64.paging import Regime
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import Linear
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.translated_reads import HINT, TranslatedReads
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.codegen import ProbeReadCode

CONTROL = "TCR_EL1"
ROOTS = ("TTBR0_EL1", "TTBR1_EL1")


@dataclass(frozen=True)
class Reads(TranslatedReads):
    """See guest.linux.arch.base.Reads. memory: the kernel's, by virtual address."""

    linear: Linear
    memory: Callable[[int, int], bytes]

    @cached_property
    def routine(self) -> ProbeReadCode:
        return probe_read.routine(self.linear)

    def _place(self, registers: Mapping[str, int], address: int) -> int | None:
        roots = registers[ROOTS[0]], registers[ROOTS[1]]
        return probe_read.place(self._physical, roots, address, self.linear) if address <= MASK else None

    def _physical(self, address: int, size: int) -> bytes:
        return self.memory(self.linear.at(address), size)


def reads(machine: Machine, kernel: Kernel, physical: Callable[[int], int | None]) -> Reads:
    """Return how to read. Raises OptprobeError. physical: translates by the kernel's page tables."""
    control = machine.registers(machine.vcpus()[0], (CONTROL,))[CONTROL]
    regime, user = Regime.of(control), Regime.of_user(control)
    thread = kernel.word(kernel.address("init_task") + kernel.offset("task_struct", "tasks"))
    frame, text = physical(thread), physical(kernel.address("_stext"))
    if regime is not None and user is not None and frame is not None and text is not None:
        linear = Linear(thread - frame & MASK, regime, user)
        image = linear.at(text)
        if linear.has(thread) and linear.has(image) and physical(image) == text:
            return Reads(linear, kernel.memory.read)
    raise OptprobeError("the address of this kernel's linear map is not known", HINT)
