"""The running thread and CPU: per-CPU variables, from the base that TPIDR_EL1 has. A kernel at EL2 has it elsewhere.

    runqueues.curr              the thread: what SP_EL0 has, but for the few instructions of a switch
    cpu_number, or since 6.11   the thread's thread_info.cpu
"""

from __future__ import annotations

from functools import partial

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.names import KernelNames
from gdb_optprobe.guest.linux.current import MEMBERS, STACK_SIZE, Current, or_missing, plus, room_to
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers.ir import Expr, Frame, Load, PerCpuBase, Register

FRAME = ("sp", "x29", "x30")
"""What frame records need, and what a function that has none yet has its return address in."""


def current(kernel: Kernel) -> Current:
    """Return the expressions."""
    task = or_missing(partial(_task, kernel))
    cpu = or_missing(partial(_cpu, kernel))
    members = {name: or_missing(partial(kernel.offset, "task_struct", name)) for name in MEMBERS}
    return Current(task, cpu, PerCpuBase(), members, Frame((*FRAME,), room_to(Register(FRAME[0]), STACK_SIZE)))


def _task(kernel: Kernel) -> Expr:
    """Raises OptprobeError."""
    return _variable(kernel, kernel.address("runqueues") + kernel.offset("rq", "curr"), 8)


def _cpu(kernel: Kernel) -> Expr:
    """Raises OptprobeError."""
    try:
        return _variable(kernel, kernel.address("cpu_number"), 4)
    except OptprobeError:
        offset = kernel.offset("task_struct", "thread_info.cpu")
        return Load(plus(_task(kernel), offset), 4, signed=False, mapped=True)


def per_cpu(kernel: Kernel) -> int | None:
    """Return the exception level of which the register has the base; None if that is unknown."""
    return kernel.symbols.per_cpu_level if isinstance(kernel.symbols, KernelNames) else None


def _variable(kernel: Kernel, offset: int, size: int) -> Load:
    """Raises OptprobeError."""
    if per_cpu(kernel) != 1:
        raise NoSuchKernel("this kernel has the base of its CPUs' variables in a register that is not TPIDR_EL1")
    return Load(plus(PerCpuBase(), offset), size, signed=False, mapped=True)
