"""A copy of a guest at one moment: its physical memory in a file of the host, and the control registers of a vCPU.

    QEMU ── pmemsave ──► file without a name ── mmap ──► read_physical, in as many processes as there are CPUs

Code that reads a running kernel through a debugger reads the copy too (`guest.machine.Machine`), but faster, and the
guest is not needed. Nothing can be written, and nothing runs.
"""

from __future__ import annotations

import mmap
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.machine import Memory, Vcpu

from .debugger import gdb_program
from .guest import Guest, GuestError
from .machines import MACHINES

__all__ = ["MemorySnapshot", "take_snapshot"]

BELOW_HOLE = 2 << 30
"""QEMU may put memory behind these bytes elsewhere: below 4 GiB is a hole for devices."""
WRITING = 60.0
CONTROL = re.compile(r"\b(CR[0-8]|EFER|MSR)[= ]([0-9a-f]+)")


@dataclass(frozen=True, slots=True, eq=False)
class MemorySnapshot:
    """Implements `guest.machine.Machine` and `guest.memory.VirtualMemory`, by physical addresses alone.

    start: the physical address of `memory`.
    """

    memory: mmap.mmap
    control: Mapping[str, int]
    start: int

    def read_physical(self, address: int, size: int) -> bytes:
        at = address - self.start
        if not 0 <= at <= len(self.memory) - size:
            raise Unreadable(address, size)
        return self.memory[at : at + size]

    def read_virtual(self, address: int, size: int) -> bytes:
        """Raise Unreadable: virtual addresses are read by a walk of the page tables."""
        raise Unreadable(address, size)

    read = read_virtual

    def write(self, address: int, data: bytes) -> None:
        raise _gone()

    write_virtual = write_physical = write

    def vcpus(self) -> Sequence[Vcpu]:
        return (self.selected(),)

    def selected(self) -> Vcpu:
        return Vcpu(0, "0")

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        return {name: self.control[name] for name in names}

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None:
        raise _gone()

    def translates_pages(self) -> bool:
        return True

    @property
    def runs(self) -> bool:
        return False

    def reading(self, live: Memory) -> AbstractContextManager[None]:
        raise _gone()

    def step_out(self, pc: str, ranges: Sequence[tuple[int, int]]) -> None:
        raise _gone()

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        raise _gone()


def _gone() -> OptprobeError:
    return OptprobeError("this is a copy of a guest's memory: nothing runs in it, and a write would have no effect")


def take_snapshot(guest: Guest) -> MemorySnapshot:
    """Copy the guest's memory. The guest is stopped for about a second. Raises GuestError."""
    size, machine = guest.options.mem << 20, MACHINES[guest.options.arch]
    if size > BELOW_HOLE:
        raise GuestError(f"a guest of at most {BELOW_HOLE >> 20} MiB can be copied, this one has {guest.options.mem}")
    with tempfile.TemporaryDirectory(dir=guest.directory) as folder, guest.qmp(timeout=WRITING) as control:
        path = Path(folder) / "memory"
        ran = control.execute("query-status")["running"]
        control.execute("stop")
        try:
            control.execute("pmemsave", val=machine.memory, size=size, filename=str(path))
            registers = control.monitor("info registers")
            values = {name.lower(): int(value, 16) for name, value in CONTROL.findall(registers)}
            values |= _by_gdb(guest, machine.control)
        finally:
            # GDB lets it run when it leaves.
            control.execute("cont" if ran else "stop")
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return MemorySnapshot(memory, values, machine.memory)


def _by_gdb(guest: Guest, names: Sequence[str]) -> dict[str, int]:
    """Return registers that QEMU's monitor does not print."""
    if not names:
        return {}
    lines = [f"target remote {guest.gdb_socket}", *(f"p/x ${name}" for name in names)]
    words = [word for line in lines for word in ("-ex", line)]
    told = subprocess.run([gdb_program(), "-nx", "-batch", *words], capture_output=True, text=True).stdout
    values = re.findall(r"^\$\d+ = (0x[0-9a-f]+)$", told, re.MULTILINE)
    if len(values) != len(names):
        raise GuestError(f"GDB does not read {', '.join(names)}: {told}")
    return {name: int(value, 16) for name, value in zip(names, values, strict=True)}
