"""The running thread and CPU: SP_EL0 has the thread in the kernel, TPIDR_EL1 the base of per-CPU variables.

    SP_EL0                      the thread (asm/current.h). Entry text sets it when an exception comes from a program,
                                and cpu_switch_to changes it: no probe is in either (areas.py)
    cpu_number, or since 6.11   the thread's thread_info.cpu
`runqueues.curr` is the next thread from before the tracepoint of a switch on, and no use for that. At EL0, SP_EL0
is the program's own stack pointer, and in entry text it may be: where it is linked, and in its copy far above the
image, by which programs enter and leave a kernel that is hidden from them (KPTI). So it may be in code that runs by
other page tables, as a CPU comes.
"""

from __future__ import annotations

from functools import partial

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.aarch64.areas import elsewhere, entry_text
from gdb_optprobe.guest.linux.current import MEMBERS, STACK_SIZE, Current, or_missing, plus, room_to
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers.ir import Expr, Frame, Load, PerCpuBase, Register
from gdb_optprobe.isa.aarch64.abi import PC

FRAME = ("sp", "x29", "x30")
"""What frame records need, and what a function that has none yet has its return address in."""
THREAD: Expr = Register("SP_EL0")
TRAMPOLINE = ("__entry_tramp_text_start", "__entry_tramp_text_end")
"""The text that arch/arm64/mm/mmu.c, map_entry_trampoline, maps in the fixmap, from the beginning of a page on."""
PAGE, WORDS = 4096, 16
KERNEL_BIT = 63


def current(kernel: Kernel) -> Current:
    """Return the expressions."""
    cpu = or_missing(partial(_cpu, kernel))
    members = {name: or_missing(partial(kernel.offset, "task_struct", name)) for name in MEMBERS}
    return Current(THREAD, cpu, PerCpuBase(), members, Frame((*FRAME,), room_to(Register(FRAME[0]), STACK_SIZE)))


def outside(kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
    """See LinuxArch.outside."""
    values = machine.registers(vcpu, ("el", "TPIDR_EL1", PC))
    if values["el"] and _has_thread(kernel, values[PC]):
        return None
    return PerCpu.of(kernel).number(vcpu.number, values["TPIDR_EL1"])


def _has_thread(kernel: Kernel, pc: int) -> bool:
    """Return whether SP_EL0 has the thread at `pc`: in code of the kernel's own addresses, but entry text."""
    if not pc >> KERNEL_BIT or any(start <= pc < end for start, end in (entry_text(kernel), *elsewhere(kernel))):
        return False
    return not _is_trampoline(kernel, pc)


def _is_trampoline(kernel: Kernel, pc: int) -> bool:
    """Return whether `pc` is in the copy of the text by which programs enter a kernel that is hidden from them.

    What else is code far from the image (BPF, copies for the kernel's own kprobes) has other instructions.
    """
    (start, end), (first, last) = kernel.range(*TRAMPOLINE), kernel.range("_stext", "_etext")
    if start <= pc < end or first <= pc < last:
        return start <= pc < end
    try:
        here = kernel.memory.read(pc, WORDS)
        return any(here == kernel.memory.read(page + pc % PAGE, WORDS) for page in range(start, end, PAGE))
    except Unreadable:
        return False


def _cpu(kernel: Kernel) -> Expr:
    """Raises OptprobeError."""
    try:
        return _variable(kernel.address("cpu_number"), 4)
    except OptprobeError:
        offset = kernel.offset("task_struct", "thread_info.cpu")
        return Load(plus(THREAD, offset), 4, signed=False, mapped=True)


def _variable(offset: int, size: int) -> Load:
    return Load(plus(PerCpuBase(), offset), size, signed=False, mapped=True)
