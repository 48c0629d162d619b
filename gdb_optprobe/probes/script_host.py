"""What a script asks of the host and of the guest's memory: names of numbers, the time, a file of the guest."""

from __future__ import annotations

import subprocess

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import lines, until_zero
from gdb_optprobe.handlers.script.host import HostNames, NoFiles
from gdb_optprobe.probes.script_kernel import ScriptKernel

LOADS = "/proc/loadavg"
_FRACTION = 11  # bits, include/linux/sched/loadavg.h: FSHIFT


class GuestNames(HostNames):
    """Names of numbers of one guest."""

    def __init__(self, kernel: ScriptKernel, booted: int | None) -> None:
        super().__init__(booted)
        self._guest, self._programs = kernel.target.guest, kernel.programs

    def kernel_symbol(self, address: int) -> str:
        """Return the symbol around an address, without an offset."""
        return self._guest.symbol(address).partition("+")[0] or f"{address:#x}"

    def user_symbol(self, address: int, pid: int) -> str:
        """Return the symbol around an address of a program. pid: or its file, see types.Symbol."""
        return self._programs.symbol(address, pid) or f"{address:#x}"

    def user(self, number: int) -> str:
        return "root" if number == 0 else str(number)


class GuestFiles(NoFiles):
    """The guest's files, of those that follow from its memory; the host's shell."""

    def __init__(self, kernel: ScriptKernel) -> None:
        self._kernel = kernel

    def cat(self, name: str, most: int) -> str:
        address = self._kernel.symbol("avenrun") if name == LOADS else None
        if address is None:
            raise OptprobeError("a file of the guest, which is not read from outside")
        data = self._kernel.target.guest.machine.read(address, 24)
        return f"{' '.join(_load(data[at : at + 8]) for at in (0, 8, 16))}\n"[:most]

    def shell(self, command: str) -> str:
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
        return lines("\n".join(until_zero(line) for line in done.stdout.split(b"\n")))


def _load(data: bytes) -> str:
    """Return a load as the kernel prints it: rounded to hundredths."""
    value = int.from_bytes(data, "little") + (1 << _FRACTION) // 200
    return f"{value >> _FRACTION}.{(value & (1 << _FRACTION) - 1) * 100 >> _FRACTION:02}"
