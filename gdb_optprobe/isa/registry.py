"""The list of instruction sets: a new one is a line here."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64

ISAS: tuple[Isa, ...] = (X86_64, PPC64LE, AARCH64)


def by_name(name: str, isas: Sequence[Isa] = ISAS) -> Isa:
    """Return the instruction set that GDB calls `name`, as `show architecture` has it. Raises OptprobeError."""
    base = name.removesuffix(":intel").removesuffix(":nacl")
    for isa in isas:
        if base == isa.name:
            return isa
        if base in isa.other_modes:
            raise OptprobeError(
                f"the guest's CPU is in a 32- or 16-bit mode (GDB's architecture is {name})",
                f"let the guest boot into 64-bit mode, or set architecture {isa.name}",
            )
    raise OptprobeError(f"GDB's architecture is {name}", f"optprobe knows {' and '.join(isa.name for isa in isas)}")
