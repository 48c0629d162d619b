"""The bug table: `ud2` instructions by which the kernel says WARN and BUG, recognised by their addresses.

    __start___bug_table           (include/asm-generic/bug.h, CONFIG_GENERIC_BUG_RELATIVE_POINTERS)
    ┌──────────────┬──────────┬──────────┬───────────┐
    │ bug_addr s32 │ file s32 │ line u16 │ flags u16 │   12 bytes; 8 without CONFIG_DEBUG_BUGVERBOSE,
    └──────────────┴──────────┴──────────┴───────────┘   where file and line are missing
"""

from __future__ import annotations

from struct import Struct

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import MASK, Kernel

VERBOSE = Struct("<iiHH")
TERSE = Struct("<iHH")


class BugTable:
    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__start___bug_table", "__stop___bug_table")
        rows = kernel.rows(start, stop, _layout(kernel))
        self._addresses = frozenset(at + row[0] & MASK for at, row in rows)

    def has(self, address: int) -> bool:
        return address in self._addresses


def row_size(kernel: Kernel) -> int:
    return _layout(kernel).size


def _layout(kernel: Kernel) -> Struct:
    return VERBOSE if _has(kernel, "line") or not _has(kernel, "flags") else TERSE


def _has(kernel: Kernel, member: str) -> bool:
    """Whether types tell that a row has it."""
    try:
        kernel.offset("bug_entry", member)
    except OptprobeError:
        return False
    return True
