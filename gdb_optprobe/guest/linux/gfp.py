"""How the kernel's page allocator is asked: the flags, by the names under which the kernel itself prints them.

`gfpflag_names` (mm/debug.c) is a table of (mask, name), of an unsigned long and a pointer each, that ends with (0, 0).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest_text import until_zero

TABLE = "gfpflag_names"
_ROW = struct.Struct("<QQ")
MOST_ROWS = 128
LONGEST = 32
"""Bytes of a name, at most: the longest has 22."""
WAITS, SLEEPS, QUIET = "GFP_KERNEL", "__GFP_DIRECT_RECLAIM", "__GFP_NOWARN"
AT_ONCE = "GFP_NOWAIT"
ZEROED, GIVES_UP = "__GFP_ZERO", "__GFP_NORETRY"


def at_once(kernel: Kernel) -> int:
    """Return flags with which the allocator neither sleeps, nor frees what others use, nor tells of a failure.

    Raises OptprobeError. What is known of flags must hold: GFP_KERNEL may sleep, and these may not.
    """
    known = _names(kernel.memory, kernel.address(TABLE))
    missing = [name for name in (AT_ONCE, QUIET, SLEEPS, WAITS) if name not in known]
    if missing:
        raise NoSuchKernel(f"its table {TABLE} does not have {missing[0]}")
    sleeps, found = known[SLEEPS], known[AT_ONCE] | known[QUIET]
    bits = all(bin(known[name]).count("1") == 1 for name in (SLEEPS, QUIET))
    if not bits or found >> 32 or found & sleeps or not known[WAITS] & sleeps or known[WAITS] & known[QUIET]:
        raise NoSuchKernel(f"its table {TABLE} is not as expected")
    return found


def may_sleep(kernel: Kernel) -> int:
    """Return flags with which the allocator may sleep, gives zeroed memory, ends no process, and tells of no failure.

    Raises OptprobeError. What is known of flags must hold, as above.
    """
    at_once(kernel)
    known = _names(kernel.memory, kernel.address(TABLE))
    single = [known.get(name, 0) for name in (ZEROED, GIVES_UP, QUIET)]
    if any(bin(bit).count("1") != 1 or bit & known[WAITS] for bit in single) or known[WAITS] >> 32:
        raise NoSuchKernel(f"its table {TABLE} is not as expected")
    return known[WAITS] | sum(single)


def is_table(memory: Memory, at: int) -> bool:
    """Return whether there are such names."""
    try:
        return WAITS in _names(memory, at)
    except OptprobeError:
        return False


def _names(memory: Memory, at: int) -> Mapping[str, int]:
    found = dict[str, int]()
    for row in range(at, at + MOST_ROWS * _ROW.size, _ROW.size):
        mask, name = _ROW.unpack(memory.read(row, _ROW.size))
        if not name:
            return found
        text = until_zero(memory.read(name, LONGEST))
        found.setdefault(text, mask)
    raise NoSuchKernel(f"its table {TABLE} does not end")
