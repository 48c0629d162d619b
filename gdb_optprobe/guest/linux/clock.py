"""The clock that programs read, its rate and its time as the kernel's log has it; and the time of the last tick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Clock, Expr, Op
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


NANOSECONDS = 1_000_000_000
EARLY = 300
"""Jiffies begin so many seconds before 32 bits of them end (include/linux/jiffies.h)."""
LARGEST_SHIFT = 64


@dataclass(frozen=True, slots=True)
class LogClock:
    """The kernel's log has (ticks * factor >> shift) + offset, in nanoseconds since boot."""

    factor: int
    shift: int
    offset: int

    def __call__(self, ticks: int) -> int:
        return (ticks * self.factor >> self.shift) + self.offset

    @classmethod
    def of_rate(cls, hertz: int, offset: int) -> LogClock:
        """Return the clock of so many ticks in a second. offset: its nanoseconds at tick 0."""
        return cls((NANOSECONDS << LARGEST_SHIFT) // hertz, LARGEST_SHIFT, offset)

    @property
    def now(self) -> Expr:
        """Return the time of a hit, as a program computes it: one product of which it takes the upper half."""
        time: Expr = Clock()
        if self.factor != 1 << self.shift:
            # A clock slower than 1 GHz has ticks of more than a nanosecond: what 64 bits of the factor lack they get.
            more = max(self.factor.bit_length() - self.shift, 0)
            factor = (self.factor << LARGEST_SHIFT >> self.shift) >> more
            ticks = fold.binary(Op.SHL, time, fold.constant(more), 64, False)
            time = fold.binary(Op.UMULH, ticks, fold.constant(factor), 64, False)
        return fold.binary(Op.ADD, time, fold.constant(self.offset), 64, False)

    def is_of(self, rate: int) -> bool:
        """Return whether so many ticks are a second, to a hundredth: the factor is rounded."""
        in_range = 0 <= self.shift <= LARGEST_SHIFT and self.factor > 0
        return in_range and abs((rate * self.factor >> self.shift) - NANOSECONDS) < NANOSECONDS // 100


def log_clock(
    kernel: Kernel, rates: Sequence[ClockRate], find: Callable[[Kernel], LogClock | None]
) -> LogClock | None:
    """Return how ticks become the times of the kernel's log; None where that is not known, or is of another clock.

    find: reads it in the kernel. May raise OptprobeError.
    """
    try:
        rate = hertz(kernel, rates)
        found = find(kernel)
    except OptprobeError:
        return None
    return found if found is not None and not isinstance(rate, Missing) and found.is_of(rate) else None


def last_tick(variable: Callable[[str], int | None]) -> int | None:
    """Return the nanoseconds since the kernel began to count, as of its last tick; None if that is not known.

    variable: reads one of the kernel's, of 8 bytes; None if there is none of that name.
    """
    ticks, period = variable("jiffies_64"), variable("tick_nsec")
    if ticks is None or not period:
        return None
    first = -EARLY * NANOSECONDS // period & 0xFFFF_FFFF
    return max(ticks - first, 0) * period
