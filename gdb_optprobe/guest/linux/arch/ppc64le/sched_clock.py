"""The clock of the kernel's log: sched_clock() in arch/powerpc/kernel/time.c.

    mulhdu(get_tb() - boot_tb, tb_to_ns_scale) << tb_to_ns_shift
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.clock import LogClock
from gdb_optprobe.guest.linux.kernel import Kernel

WORD_BITS = 64
LARGEST_SHIFT = 31


def log_clock(kernel: Kernel) -> LogClock | None:
    """Return sched_clock(). Raises OptprobeError."""
    begun, scale = (kernel.word(kernel.address(name)) for name in ("boot_tb", "tb_to_ns_scale"))
    shift = int.from_bytes(kernel.memory.read(kernel.address("tb_to_ns_shift"), 4), "little")
    return sched_clock(begun, scale, shift)


def sched_clock(begun: int, scale: int, shift: int) -> LogClock | None:
    """Return it by its three variables; None where they cannot be these."""
    if shift > LARGEST_SHIFT:
        return None
    factor = scale << shift
    return LogClock(factor, WORD_BITS, -(begun * factor >> WORD_BITS))
