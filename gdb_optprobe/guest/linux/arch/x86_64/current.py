"""The running thread and CPU: the per-CPU variables current_task and cpu_number, in some kernels within pcpu_hot."""

from __future__ import annotations

from functools import partial

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.current import MEMBERS, PAGE, STACK_SIZE, Current, or_missing, plus, room_to
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Choose, Expr, Frame, Load, Op, PerCpuBase, Register
from gdb_optprobe.handlers.scope import Missing

FRAME = ("rsp", "rbp")
"""What ORC needs in functions of C."""


def current(kernel: Kernel) -> Current:
    """Return the expressions, by per-CPU variables: addresses from the symbols and, within pcpu_hot, from the types."""

    task = or_missing(lambda: _variable(kernel, 8, ("current_task", ""), ("pcpu_hot", "current_task")))
    cpu = or_missing(lambda: _variable(kernel, 4, ("cpu_number", ""), ("pcpu_hot", "cpu_number")))
    members = {name: or_missing(partial(kernel.offset, "task_struct", name)) for name in MEMBERS}
    room = _room(stack_top(kernel), _interrupts_end(kernel))
    return Current(task, cpu, PerCpuBase(), members, Frame((*FRAME,), room))


def outside(kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
    """See LinuxArch.outside."""
    values = machine.registers(vcpu, ("cpl", "k_gs_base"))
    return PerCpu.of(kernel).number(vcpu.number, values["k_gs_base"]) if values["cpl"] else None


def stack_top(kernel: Kernel) -> Expr | Missing:
    """Return the end of the running thread's stack."""
    return or_missing(lambda: _variable(kernel, 8, ("cpu_current_top_of_stack", ""), ("pcpu_hot", "top_of_stack")))


def interrupted(kernel: Kernel) -> Expr:
    """Return the address of the pt_regs of the interrupt that this CPU handles, or 0. Raises OptprobeError."""
    return _variable(kernel, 8, ("__irq_regs", ""))


def _variable(kernel: Kernel, size: int, *places: tuple[str, str]) -> Expr:
    """Return a per-CPU variable, which is one of these. Raises OptprobeError."""
    missing: OptprobeError | None = None
    for symbol, member in places:
        try:
            offset = kernel.address(symbol) + (kernel.offset(symbol, member) if member else 0)
            return Load(plus(PerCpuBase(), offset), size, signed=False, mapped=True)
        except OptprobeError as error:
            missing = error
    raise missing or NoSuchKernel("no per-CPU variable asked for")


def _interrupts_end(kernel: Kernel) -> Expr | Missing:
    """Return the end of this CPU's stack for interrupts. A pointer is to its top word, or just behind it (before 5.12).
    """
    pointer = or_missing(lambda: _variable(kernel, 8, ("hardirq_stack_ptr", ""), ("pcpu_hot", "hardirq_stack_ptr")))
    if isinstance(pointer, Missing):
        return pointer
    return fold.binary(Op.AND, plus(pointer, PAGE - 1), fold.constant(-PAGE), 64, False)


def _room(top: Expr | Missing, interrupts: Expr | Missing) -> Expr:
    """Return how much of the stack may be read: up to the end of the thread's stack, or of that for interrupts.
    Other stacks are not aligned to their size: up to the end of the page.
    """
    sp = Register(FRAME[0])
    room = room_to(sp, PAGE)
    for end in (interrupts, top):
        if not isinstance(end, Missing):
            above = fold.binary(Op.SUB, end, sp, 64, False)
            room = Choose(fold.binary(Op.LT, above, fold.constant(STACK_SIZE), 64, False), above, room)
    return room
