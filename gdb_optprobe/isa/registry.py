"""The list of instruction sets: a new one is a line here."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.on_demand import OnDemand, of_name

ISAS: Sequence[Isa] = OnDemand({
    "i386:x86-64": "gdb_optprobe.isa.x86_64:X86_64",
    "powerpc:common64": "gdb_optprobe.isa.ppc64le:PPC64LE",
    "aarch64": "gdb_optprobe.isa.aarch64:AARCH64",
})  # fmt: skip
"""By the name that GDB has for each, the record's `name`."""


def by_name(name: str, isas: Sequence[Isa] = ISAS) -> Isa:
    """Return the instruction set that GDB calls `name`, as `show architecture` has it. Raises OptprobeError."""
    base = name.removesuffix(":intel").removesuffix(":nacl")
    for isa in of_name(base, isas):
        if base == isa.name:
            return isa
        if base in isa.other_modes:
            raise OptprobeError(
                f"the guest's CPU is in a 32- or 16-bit mode (GDB's architecture is {name})",
                f"let the guest boot into 64-bit mode, or set architecture {isa.name}",
            )
    raise OptprobeError(f"GDB's architecture is {name}", f"optprobe knows {' and '.join(isa.name for isa in isas)}")
