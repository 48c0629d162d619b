"""Which port serves which instruction set."""

from __future__ import annotations

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Port


def of(isa: str) -> Port:
    """The port for the instruction set `isa`, as isa/ names it. Raises OptprobeError."""
    if isa == "i386:x86-64":
        from gdb_optprobe.guest.linux.arch.x86_64.arch import X86

        return X86
    if isa == "powerpc:common64":
        from gdb_optprobe.guest.linux.arch.ppc64le.arch import PPC

        return PPC
    raise OptprobeError(f"Linux on {isa} is not known")
