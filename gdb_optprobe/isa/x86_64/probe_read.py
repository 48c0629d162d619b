"""The registers of the probe_read routine, which reads memory that may not be mapped, and its stack.

    rax   address     ─►  bytes
    r10   size, 1-8   ─►  how many could be read
    r11, flags            lost
The routine itself is the kernel's arch's: it walks the kernel's page tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.x86_64.abi import PC, SP
from gdb_optprobe.isa.x86_64.decoder import decode
from gdb_optprobe.isa.x86_64.writer import pushed

WORD, SIZE, LOST = "rax", "r10", "r11"


def caller(routine: bytes, at: int, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
    """Do as Backend.caller. The routine pops all that it has pushed."""
    sp = registers[SP] + sum(pushed(insn) for insn in decode(routine[:at], 0))
    return {**registers, PC: int.from_bytes(read(sp, 8), "little"), SP: sp + 8}
