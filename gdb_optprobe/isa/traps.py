"""What trapped probes need, by instruction set."""

from __future__ import annotations

from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.trapping import TRAPPING as PPC
from gdb_optprobe.isa.trapping import Trapping
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.trapping import TRAPPING as X86

_TRAPPING: dict[str, Trapping] = {X86_64.name: X86, PPC64LE.name: PPC}


def of(isa: str) -> Trapping | None:
    """For the instruction set `isa`, as it is named there; None where probes are not trapped yet."""
    return _TRAPPING.get(isa)
