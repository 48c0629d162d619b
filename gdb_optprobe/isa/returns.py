"""What return probes need, by instruction set."""

from __future__ import annotations

from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.returning import RETURNING as POWER
from gdb_optprobe.isa.returning import Returning
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.returning import RETURNING as X86

_RETURNING: dict[str, Returning] = {X86_64.name: X86, PPC64LE.name: POWER}


def of(isa: str) -> Returning | None:
    """For the instruction set `isa`, as it is named there; None where return probes are not built yet."""
    return _RETURNING.get(isa)
