"""The running thread and CPU: SP_EL0 has the thread in the kernel, TPIDR_EL1 the base of per-CPU variables.

    SP_EL0                      the thread (asm/current.h). Entry text sets it when an exception comes from a program,
                                and cpu_switch_to changes it: no probe is in either (areas.py)
    cpu_number, or since 6.11   the thread's thread_info.cpu
`runqueues.curr` is the next thread from before the tracepoint of a switch on, and no use for that. At EL0, SP_EL0
is the program's own stack pointer, and in entry text it may be.
"""

from __future__ import annotations

from functools import partial

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.areas import entry_text
from gdb_optprobe.guest.linux.current import MEMBERS, STACK_SIZE, Current, or_missing, plus, room_to
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers.ir import Expr, Frame, Load, PerCpuBase, Register
from gdb_optprobe.isa.aarch64.abi import PC

FRAME = ("sp", "x29", "x30")
"""What frame records need, and what a function that has none yet has its return address in."""
THREAD: Expr = Register("SP_EL0")


def current(kernel: Kernel) -> Current:
    """Return the expressions."""
    cpu = or_missing(partial(_cpu, kernel))
    members = {name: or_missing(partial(kernel.offset, "task_struct", name)) for name in MEMBERS}
    return Current(THREAD, cpu, PerCpuBase(), members, Frame((*FRAME,), room_to(Register(FRAME[0]), STACK_SIZE)))


def outside(kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
    """See LinuxArch.outside."""
    values = machine.registers(vcpu, ("el", "TPIDR_EL1", PC))
    start, end = entry_text(kernel)
    if values["el"] and not start <= values[PC] < end:
        return None
    return PerCpu.of(kernel).number(vcpu.number, values["TPIDR_EL1"])


def _cpu(kernel: Kernel) -> Expr:
    """Raises OptprobeError."""
    try:
        return _variable(kernel.address("cpu_number"), 4)
    except OptprobeError:
        offset = kernel.offset("task_struct", "thread_info.cpu")
        return Load(plus(THREAD, offset), 4, signed=False, mapped=True)


def _variable(offset: int, size: int) -> Load:
    return Load(plus(PerCpuBase(), offset), size, signed=False, mapped=True)
