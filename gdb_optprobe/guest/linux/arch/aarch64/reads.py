"""Reads of memory that may not be mapped, by the CPU's own translation and the kernel's linear map.

memstart_addr is the physical address that the linear map begins with (arch/arm64/include/asm/memory.h): the map of
kernels for 48 bits begins at -(1 << 48). What that makes of the text's first page is compared with the page tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.aarch64 import find as finding
from gdb_optprobe.guest.linux.arch.aarch64 import paging, probe_read
from gdb_optprobe.guest.linux.arch.aarch64.find import PageTables
from gdb_optprobe.guest.linux.arch.aarch64.paging import Regime
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import KERNEL_HALF, PAGE
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.codegen import ProbeReadCode

BITS = (48, 52, 39)
"""Of addresses, for which kernels with 4 KiB pages are built."""
HINT = "memory that is known to be mapped can be read: $task, $comm, the kernel's own variables"


@dataclass(frozen=True)
class Reads:
    """See guest.linux.arch.base.Reads. linear: from a physical address to the linear map's. user: how programs' tables
    are read.
    """

    view: PageTables
    user: Regime
    linear: int

    @cached_property
    def routine(self) -> ProbeReadCode:
        return probe_read.routine(self.linear)

    def read(self, registers: Mapping[str, int], address: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            at = address + len(data)
            place = self._place(registers, at)
            if place is None:
                raise Unreadable(at, size - len(data))
            data += self.view.machine.read_physical(place, min(size - len(data), PAGE - at % PAGE))
        return data

    def _place(self, registers: Mapping[str, int], address: int) -> int | None:
        """Return the physical address from which the routine would read `address`; None where it would not read it."""
        if address >> KERNEL_HALF & 1:
            page = self.view.page(address)
        else:
            root = self.user.root(registers["TTBR0_EL1"])
            page = paging.translate(self.view.machine.read_physical, self.user, root, address)
            page = page if page is not None and page.entry & paging.USER else None
        if page is None:
            return None
        physical = page.physical + address - page.address
        return physical if self.view.page(self.linear + physical & MASK) is not None else None


def reads(machine: Machine, kernel: Kernel) -> Reads:
    """Return how to read. Raises OptprobeError."""
    found = finding.find(machine)
    user = Regime.of_user(machine.registers(machine.vcpus()[0], ("TCR_EL1",))["TCR_EL1"])
    if found is None or user is None or not isinstance(found[1], PageTables):
        raise OptprobeError("page tables of this guest cannot be walked", HINT)
    view = found[1]
    start = view.page(kernel.address("_stext"))
    begins = kernel.word(kernel.address("memstart_addr"))
    for bits in BITS:
        linear = (-1 << bits) - begins & MASK
        alias = view.page(linear + start.physical & MASK) if start is not None else None
        if alias is not None and start is not None and alias.physical <= start.physical < alias.physical + alias.size:
            return Reads(view, user, linear)
    raise OptprobeError("the address of this kernel's linear map is not known", HINT)
