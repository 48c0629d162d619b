"""Whether the thread on a vCPU may sleep: its preempt count, as far as this kernel keeps one.

Per CPU, at the vCPU's GS base while it runs the kernel. Bit 31 is inverted "needs rescheduling" (arch/x86/include/asm/
preempt.h); the rest must be zero. A kernel without CONFIG_PREEMPT_COUNT keeps zero outside interrupts. Locks that sleep
cannot be seen; a thread at the entry of schedule_timeout has no other.
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.machine import Machine, Vcpu

COUNT = 0x7FFFFFFF


def may_sleep(machine: Machine, kernel: Kernel, vcpu: Vcpu) -> bool:
    registers = machine.registers(vcpu, ("gs_base", "cpl"))
    return not registers["cpl"] and not count(kernel, registers["gs_base"])


def count(kernel: Kernel, base: int) -> int:
    """Return the preempt count of the CPU with its per-CPU variables at `base`; 0 where preemption is enabled."""
    return int.from_bytes(kernel.memory.read(base + _offset(kernel) & MASK, 4), "little") & COUNT


def _offset(kernel: Kernel) -> int:
    own = kernel.symbols.address("__preempt_count")
    if own is not None:
        return own
    return kernel.address("pcpu_hot") + kernel.offset("pcpu_hot", "preempt_count")
