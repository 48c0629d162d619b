"""The clock of the kernel's log: sched_clock() in kernel/time/sched_clock.c, which `sched_clock` reads first of all.

    struct clock_data   seq │ read_data[2], of which the sequence's lowest bit says which is read
    read_data           epoch_ns + ((counter - epoch_cyc & mask) * mult >> shift)
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.aarch64.names import KernelNames
from gdb_optprobe.guest.linux.clock import LARGEST_SHIFT, LogClock
from gdb_optprobe.guest.linux.kernel import Kernel

DATA = "clock_read_data"


def log_clock(kernel: Kernel) -> LogClock | None:
    """Return sched_clock(), as it is until the kernel moves its epoch. Raises OptprobeError."""
    at = kernel.symbols.address("cd")
    if at is None and isinstance(kernel.symbols, KernelNames):
        at = next(iter(kernel.symbols.constants_of("sched_clock").made), None)
    if at is None:
        return None

    def member(name: str, size: int) -> int:
        first = at + kernel.offset("clock_data", "read_data") + kernel.offset(DATA, name)
        return int.from_bytes(kernel.memory.read(first, size), "little")

    nanoseconds, cycles, factor, shift = (
        member(name, size) for name, size in (("epoch_ns", 8), ("epoch_cyc", 8), ("mult", 4), ("shift", 4))
    )
    if shift > LARGEST_SHIFT:
        return None
    return LogClock(factor, shift, nanoseconds - (cycles * factor >> shift))
