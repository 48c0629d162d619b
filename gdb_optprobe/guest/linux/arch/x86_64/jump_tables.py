"""Jump tables: where a compiler's `switch` goes when it jumps through memory.

    jmp *table(,%rax,8)         .rodata
      │                  ┌───────────────────┐
      └── disp32 ───────►│ case 0 (8 bytes)  │   absolute, as the kernel is built with -mcmodel=kernel;
                         │ case 1            │   or 4 bytes relative to the table
                         └───────────────────┘
A function can only use a table if the table's address is in the function's code: every 4 bytes of it that could be such
an address are tried. Bytes are a table if the first entry leads into the function, its .cold part included. The table
ends before the first entry that does not.
Kernels built with retpolines or IBT have no tables (-fno-jump-tables) but for the BPF interpreter's.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.kernel import MASK

# Limits (budget.py), of one function.
ENTRIES = 4096
"""Of one table: 256 (the BPF interpreter's)."""
MOST_ENTRIES = 1 << 16
"""Of all that may be tables."""
MOST_TABLES = 1 << 14
"""Addresses of constants in its code that may be a table's."""


def targets(
    start: int,
    code: bytes,
    constants: tuple[int, int],
    read: Callable[[int, int], bytes],
    others: Sequence[tuple[int, int]] = (),
) -> frozenset[int]:
    """Return every address inside [start, start + len(code)) that a jump table of the function at `start` leads to.

    others: further parts of the function; a table may lead there too.
    """
    own = (start + 1, start + len(code))

    def lands(address: int) -> bool:
        return any(first <= address < last for first, last in (own, *others))

    found: set[int] = set()
    tables, entries = (
        Budget(limit, f"the function at {start:#x}", of)
        for limit, of in ((MOST_TABLES, "addresses of constants"), (MOST_ENTRIES, "entries of jump tables"))
    )
    for table in _addresses(start, code, constants):
        tables.spend()
        for size in (8, 4):
            for target in _entries(table, size, lands, constants[1], read):
                entries.spend()
                found.add(target)
    return frozenset(found)


def _addresses(start: int, code: bytes, constants: tuple[int, int]) -> frozenset[int]:
    """Return addresses of constants in `code`: operands that are absolute or relative to the end of an instruction."""
    first, last = constants
    # Numbers with a sign that are addresses of constants, and those that are so far from where the code begins.
    least, most = (end - (1 << 64) if end >> 63 else end for end in constants)
    found: set[int] = set()
    for offset in range(4):
        numbers = array("i", code[offset : offset + (len(code) - offset & ~3)])
        near = start + offset + 4
        found.update([number & MASK for number in numbers if least <= number < most])
        places = zip(numbers, range(near, near + 4 * len(numbers), 4), strict=True)
        found.update([place for number, at in places if first <= (place := number + at & MASK) < last])
    return frozenset(found)


def _entries(
    table: int, size: int, lands: Callable[[int], bool], limit: int, read: Callable[[int, int], bytes]
) -> Iterator[int]:
    at = table
    while at + size <= limit and at < table + ENTRIES * size:
        data = read(at, min(64 * size, limit - at))
        for offset in range(0, len(data) - size + 1, size):
            number = int.from_bytes(data[offset : offset + size], "little", signed=True)
            target = number & MASK if size == 8 else table + number & MASK
            if not lands(target):
                return
            yield target
        at += len(data)
