"""What programs are lowered to, by instruction set."""

from __future__ import annotations

from gdb_optprobe.isa.emitter import Machine
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.emitter import MACHINE as POWER
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.emitter import MACHINE as X86

_MACHINES: dict[str, Machine] = {X86_64.name: X86, PPC64LE.name: POWER}


def of(isa: str) -> Machine:
    """For the instruction set `isa`, as it is named there."""
    return _MACHINES[isa]
