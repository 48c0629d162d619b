"""The clock of the kernel's log: local_clock() in kernel/sched/clock.c, native_sched_clock() in arch/x86/kernel/tsc.c.

    sched_clock = (TSC * cyc2ns_mul >> cyc2ns_shift) + cyc2ns_offset
    local_clock = sched_clock + __sched_clock_offset                         while the kernel calls the TSC stable
                = sched_clock - tick_raw + tick_gtod + __gtod_offset         since the CPU's last tick, else
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from gdb_optprobe.guest.linux.clock import NANOSECONDS, LogClock
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu

CYC2NS = Struct("<IIq")
"""struct cyc2ns_data: cyc2ns_mul, cyc2ns_shift, cyc2ns_offset."""
TICKS = ("tick_raw", "tick_gtod", "clock")
"""Of struct sched_clock_data."""
LARGEST = 256
STABLE = "__sched_clock_stable"
LONGEST = NANOSECONDS
"""Since a tick of the CPU that had the last one."""


def log_clock(kernel: Kernel) -> LogClock | None:
    """Return local_clock() as it is now; None where it is not made of the TSC. Raises OptprobeError."""
    if not _is_native(kernel):
        return None
    cpus = PerCpu.of(kernel)
    factor, shift, offset = CYC2NS.unpack(kernel.memory.read(cpus.addresses("cyc2ns")[0], CYC2NS.size))
    if not _is_enabled(kernel, STABLE):
        # The two clocks part by some millionths, so this is exact for what has just been.
        ahead = max(_ticks(cpus), default=None)
        return None if ahead is None else LogClock(factor, shift, offset + ahead[1])
    return LogClock(factor, shift, offset + _signed(kernel, "__sched_clock_offset"))


def _ticks(cpus: PerCpu) -> Iterator[tuple[int, int]]:
    """Yield, of each CPU, sched_clock() at its last tick, and how far local_clock() was ahead of it."""
    begun = _signed(cpus.kernel, "__gtod_offset")
    offsets = [cpus.kernel.offset("sched_clock_data", member) for member in TICKS]
    size = max(offsets) + 8
    if size > LARGEST:
        raise NoSuchKernel(f"its struct sched_clock_data has {size} bytes")
    for at in cpus.addresses("sched_clock_data"):
        data = cpus.kernel.memory.read(at, size)
        raw, outside, clock = (int.from_bytes(data[offset : offset + 8], "little") for offset in offsets)
        # A CPU that is stopped while it writes them has not these yet.
        if 0 <= clock - (outside + begun) < LONGEST:
            yield raw, outside + begun - raw


def _is_native(kernel: Kernel) -> bool:
    """Return whether sched_clock() is that of tsc.c. A hypervisor's may be in its place. Raises OptprobeError."""
    chosen = kernel.symbols.address("__SCK__pv_sched_clock")
    if chosen is None and (table := kernel.symbols.address("pv_ops")) is not None:
        chosen = table + kernel.offset("paravirt_patch_template", "time.sched_clock")
    return chosen is None or kernel.word(chosen) == kernel.address("native_sched_clock")


def _is_enabled(kernel: Kernel, key: str) -> bool:
    """Return whether a static key is. Raises OptprobeError."""
    return int.from_bytes(kernel.memory.read(kernel.address(key), 4), "little", signed=True) > 0


def _signed(kernel: Kernel, name: str) -> int:
    return int.from_bytes(kernel.memory.read(kernel.address(name), 8), "little", signed=True)
