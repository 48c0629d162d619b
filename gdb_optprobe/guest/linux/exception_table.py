"""The kernel's exception table: instructions that may fault, and where execution continues then.

    __start___ex_table            (arch/x86/include/asm/extable.h)
    ┌───────────┬───────────┬──────┐
    │ insn  s32 │ fixup s32 │ data │   each relative to its own address
    └───────────┴───────────┴──────┘
An instruction listed here cannot run elsewhere, and a fixup is the target of a jump that is not in the code.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct

from gdb_optprobe.guest.linux.kernel import Kernel

ROW = Struct("<iii")


class ExceptionTable:
    def __init__(self, kernel: Kernel, row: Struct = ROW) -> None:
        """Read the table. row: its first two numbers are the references; not every ISA has a third."""
        start, stop = kernel.range("__start___ex_table", "__stop___ex_table")
        insns, fixups = kernel.references(start, stop, row.size, 2)
        self._insns = sorted(zip(insns, fixups, strict=True))
        self._fixups = sorted(zip(fixups, insns, strict=True))

    def faulting(self, start: int, end: int) -> list[int]:
        """Return addresses in [start, end) with recovered faults."""
        return [insn for insn, _ in _between(self._insns, start, end)]

    def leading_from(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (faulting instruction, fixup) for faults in [start, end)."""
        return _between(self._insns, start, end)

    def fixups(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (faulting instruction, fixup) for fixups in [start, end)."""
        return [(insn, fixup) for fixup, insn in _between(self._fixups, start, end)]


def _between(rows: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    return rows[bisect_left(rows, (start, 0)) : bisect_left(rows, (end, 0))]
