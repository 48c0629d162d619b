"""Instruction sets, each behind the `Isa` of base.py."""

from __future__ import annotations

from ..errors import OptprobeError
from .base import Isa


def by_name(name: str) -> Isa:
    """The instruction set that GDB calls `name`, as `show architecture` has it. Raises OptprobeError."""
    base = name.removesuffix(":intel").removesuffix(":nacl")
    if base == "i386:x86-64":
        from .x86_64 import X86_64

        return X86_64
    if base == "powerpc:common64":
        from .ppc64le import PPC64LE

        return PPC64LE
    if base in ("i386", "i8086", "i386:x64-32"):
        raise OptprobeError(
            f"the guest's CPU is in a 32- or 16-bit mode (GDB's architecture is {name})",
            "let the guest boot into 64-bit mode, or set architecture i386:x86-64",
        )
    raise OptprobeError(f"GDB's architecture is {name}", "optprobe knows i386:x86-64 and powerpc:common64")
