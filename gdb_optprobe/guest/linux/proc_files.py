"""Files of /proc that follow from variables of the kernel (fs/proc/loadavg.c, fs/proc/uptime.c)."""

from __future__ import annotations

from collections.abc import Callable

from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu

LOADS, UPTIME = "/proc/loadavg", "/proc/uptime"
HUNDREDTH = 10**7
"""Nanoseconds."""
IDLE = "CPUTIME_IDLE"
"""The enumerator of the time that a CPU was idle, in `kernel_cpustat` (include/linux/kernel_stat.h)."""
_FRACTION = 11  # bits, include/linux/sched/loadavg.h: FSHIFT


def text(name: str, kernel: Kernel, now: int | None, constant: Callable[[str], int | None]) -> str | None:
    """Return the text of a file; None where it does not follow from the kernel's memory. Raises OptprobeError.

    now: nanoseconds since the start; None where they are not known. constant: an enumerator's value by its name.
    """
    if name == LOADS:
        at = kernel.address("avenrun")
        return f"{' '.join(_load(kernel.word(at + offset)) for offset in (0, 8, 16))}\n"
    if name == UPTIME and now is not None:
        return f"{_hundredths(now)} {_hundredths(_idle(kernel, constant))}\n"
    return None


def _load(value: int) -> str:
    """Return a load as the kernel prints it: rounded to hundredths."""
    value += (1 << _FRACTION) // 200
    return f"{value >> _FRACTION}.{(value & (1 << _FRACTION) - 1) * 100 >> _FRACTION:02}"


def _hundredths(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds // HUNDREDTH, 100)
    return f"{seconds}.{rest:02}"


def _idle(kernel: Kernel, constant: Callable[[str], int | None]) -> int:
    """Return how long all CPUs were idle: of one that is idle now, until it last was not."""
    number = constant(IDLE)
    if number is None or not 0 <= number < 64:
        raise NoSuchKernel(f"the enumerator {IDLE} is not known")
    return sum(kernel.word(at + 8 * number) for at in PerCpu.of(kernel).addresses("kernel_cpustat"))
