"""The rate of the clock that programs read, as the kernel has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.scope import Missing


class ClockRate(NamedTuple):
    """A variable of the kernel: its bytes, and what it counts a second in."""

    name: str
    size: int
    factor: int


def hertz(kernel: Kernel, rates: Sequence[ClockRate]) -> int | Missing:
    """Return the ticks of the clock in a second, by the first of these variables that has been set."""
    for name, size, factor in rates:
        address = kernel.symbols.address(name)
        if address is not None and (ticks := int.from_bytes(kernel.memory.read(address, size), "little")):
            return ticks * factor
    return Missing("this kernel does not tell how fast its clock runs")
