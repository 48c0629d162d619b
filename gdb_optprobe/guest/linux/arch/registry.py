"""What Linux does on each ISA that it is known on: a new one is a line here."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.guest.linux.arch.base import LinuxArch
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.on_demand import OnDemand, of_name

ARCHES: Sequence[LinuxArch] = OnDemand({
    "i386:x86-64": "gdb_optprobe.guest.linux.arch.x86_64.arch:LINUX_X86_64",
    "powerpc:common64": "gdb_optprobe.guest.linux.arch.ppc64le.arch:LINUX_PPC64LE",
    "aarch64": "gdb_optprobe.guest.linux.arch.aarch64.arch:LINUX_AARCH64",
})  # fmt: skip
"""By the name that GDB has for the ISA."""


def of(isa: Isa, arches: Sequence[LinuxArch] = ARCHES) -> LinuxArch | None:
    """Return the Linux record of an ISA; None where there is none."""
    return next((arch for arch in of_name(isa.name, arches) if arch.isa is isa), None)
