"""What Linux does on each ISA that it is known on: a new one is a line here."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.guest.linux.arch.aarch64.arch import LINUX_AARCH64
from gdb_optprobe.guest.linux.arch.base import LinuxArch
from gdb_optprobe.guest.linux.arch.ppc64le.arch import LINUX_PPC64LE
from gdb_optprobe.guest.linux.arch.x86_64.arch import LINUX_X86_64
from gdb_optprobe.isa.record import Isa

ARCHES: tuple[LinuxArch, ...] = (LINUX_X86_64, LINUX_PPC64LE, LINUX_AARCH64)


def of(isa: Isa, arches: Sequence[LinuxArch] = ARCHES) -> LinuxArch | None:
    """Return the Linux record of an ISA; None where there is none."""
    return next((arch for arch in arches if arch.isa is isa), None)
