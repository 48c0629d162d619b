"""The nop of five bytes at an ftrace site of x86-64 while no tracer uses it.

    x86_nops ───────────────► ┌──────┬───┬────┬───┐      by size (arch/x86/include/asm/nops.h), and before that of the
    ideal_nops ─► k8_nops ──► │ NULL │ 1 │ 2… │   │      CPU's kind, with one more at the end that is one instruction
                  p6_nops     └──────┴─┬─┴────┴───┘      whatever its size: it is patched while others run there
                                       └─► 90 66 90 …
"""

from __future__ import annotations

from struct import Struct

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.ftrace_sites import Shape
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.isa.x86_64 import X86_64

SIZE = X86_64.branch_size
ROWS = 10

SITE = Shape(bytes.fromhex("0f1f440000"), Struct("<QQ"))
"""A tracer's site (arch/x86/include/asm/nops.h, BYTES_NOP5)."""


def traced_place(kernel: Kernel) -> bytes | None:
    """Return the nop of five bytes, one instruction, that this kernel writes; None where its tables do not show it."""
    table = kernel.symbols.address("x86_nops")
    chosen = kernel.symbols.address("ideal_nops")
    try:
        if table is None and chosen is not None:
            table = kernel.word(chosen)
        rows = [kernel.word(table + 8 * row) for row in range(ROWS)] if table is not None else []
    except OptprobeError:
        return None
    found = {data for row in rows if (data := _read(kernel, row)) and _is_one_nop(data)}
    return found.pop() if len(found) == 1 else None


def _read(kernel: Kernel, address: int) -> bytes:
    """Read a row, or return b"": behind the table's end is no row, and what looks like one may lead nowhere."""
    try:
        return kernel.memory.read(address, SIZE) if address else b""
    except OptprobeError:
        return b""


def _is_one_nop(data: bytes) -> bool:
    insns = X86_64.decode(data, 0)
    return len(insns) == 1 and insns[0].size == SIZE and X86_64.fills(insns[0])
