"""The bug table: the instructions of WARN and BUG, which the kernel recognises by their addresses.

    __start___bug_table           (include/asm-generic/bug.h, CONFIG_GENERIC_BUG_RELATIVE_POINTERS)
    ┌──────────────┬────────────┬──────────┬──────────┬───────────┐
    │ bug_addr s32 │ format s32 │ file s32 │ line u16 │ flags u16 │
    └──────────────┴────────────┴──────────┴──────────┴───────────┘
         file and line are missing without CONFIG_DEBUG_BUGVERBOSE, format is in newer kernels alone
A row ends with its flags: the types have their offset. Without types, rows have the length with which each begins with
an address of code.
"""

from __future__ import annotations

from struct import Struct

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel

VERBOSE = Struct("<iiHH")
LENGTHS = (Struct("<iHH"), VERBOSE, Struct("<iiiHH"))  # ascending: twice a length hits addresses alone, too
FLAGS = 2
"""Bytes of a row's flags."""
LOOKED_AT = 64
"""How many rows are used to derive the length of one."""
MOST_OF_THEM = 0.6


class BugTable:
    """The table. Where the length of rows is not known, any instruction may be in it."""

    def __init__(self, kernel: Kernel) -> None:
        start, stop = kernel.range("__start___bug_table", "__stop___bug_table")
        self._addresses: frozenset[int] | None = None
        if (layout := _layout(kernel)) is not None:
            self._addresses = frozenset(kernel.references(start, stop, layout.size, 1)[0])

    @property
    def addresses(self) -> frozenset[int] | None:
        """Return the addresses in it; None where they are not known."""
        return self._addresses

    def has(self, address: int) -> bool:
        return self._addresses is None or address in self._addresses


def row_size(kernel: Kernel) -> int:
    """Return the bytes of a row. Raises OptprobeError where they are not known."""
    layout = _layout(kernel)
    if layout is None:
        raise NoSuchKernel("the rows of this kernel's bug table are of an unknown length")
    return layout.size


def _layout(kernel: Kernel) -> Struct | None:
    """Return the layout of a row; None where it cannot be derived."""
    try:
        flags = kernel.offset("bug_entry", "flags")
    except OptprobeError:
        return _by_rows(kernel)
    return Struct(f"<i{-(-(flags + FLAGS) // 4) * 4 - 4}x")


def _by_rows(kernel: Kernel) -> Struct | None:
    start, stop = kernel.range("__start___bug_table", "__stop___bug_table")
    for layout in LENGTHS:
        if (stop - start) % layout.size == 0:
            rows = list(kernel.rows(start, min(stop, start + LOOKED_AT * layout.size), layout))
            code = sum(kernel.symbols.function_bounds(at + row[0] & MASK) is not None for at, row in rows)
            # Some are of code that was needed at boot alone; rows that are too short hit at most one address in two.
            if code >= MOST_OF_THEM * len(rows):
                return layout
    return None
