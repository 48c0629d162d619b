"""The running thread and CPU: per-CPU variables, from the base that TPIDR_EL1 has.

    runqueues.curr              the thread: what SP_EL0 has, but for the few instructions of a switch
    cpu_number, or since 6.11   the thread's thread_info.cpu
"""

from __future__ import annotations

from functools import partial

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.current import MEMBERS, STACK_SIZE, Current, or_missing, plus, room_to
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.ir import Expr, Frame, Load, PerCpuBase, Register

FRAME = ("sp", "x29", "x30")
"""What frame records need, and what a function that has none yet has its return address in."""


def current(kernel: Kernel) -> Current:
    """Return the expressions."""
    thread = or_missing(partial(task, kernel))
    cpu = or_missing(partial(_cpu, kernel))
    members = {name: or_missing(partial(kernel.offset, "task_struct", name)) for name in MEMBERS}
    return Current(thread, cpu, PerCpuBase(), members, Frame((*FRAME,), room_to(Register(FRAME[0]), STACK_SIZE)))


def task(kernel: Kernel) -> Expr:
    """Return the running thread. Raises OptprobeError."""
    return _variable(kernel.address("runqueues") + kernel.offset("rq", "curr"), 8)


def _cpu(kernel: Kernel) -> Expr:
    """Raises OptprobeError."""
    try:
        return _variable(kernel.address("cpu_number"), 4)
    except OptprobeError:
        offset = kernel.offset("task_struct", "thread_info.cpu")
        return Load(plus(task(kernel), offset), 4, signed=False, mapped=True)


def _variable(offset: int, size: int) -> Load:
    return Load(plus(PerCpuBase(), offset), size, signed=False, mapped=True)
