"""The frequency of the clock that handlers read, as the kernel has measured or been given it."""

from __future__ import annotations

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.scope import Missing

# arch/x86/kernel/tsc.c, arch/powerpc/kernel/time.c: the variable, its bytes, what it counts a second in.
_KNOWN = (("tsc_khz", 4, 1000), ("tb_ticks_per_sec", 8, 1), ("tb_ticks_per_usec", 8, 1_000_000))


def hertz(kernel: Kernel) -> int | Missing:
    """Ticks of the time stamp counter or the time base in a second."""
    for name, size, factor in _KNOWN:
        address = kernel.symbols.address(name)
        if address is not None and (ticks := int.from_bytes(kernel.memory.read(address, size), "little")):
            return ticks * factor
    return Missing("this kernel does not tell how fast its clock runs")
