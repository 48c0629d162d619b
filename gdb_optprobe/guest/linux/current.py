"""What runs: the expressions of the current thread and CPU, `$task`, `$cpu`, and what `$pid`, `$tgid`, `$comm` are.

x86-64     the per-CPU variables current_task and cpu_number, members of pcpu_hot in some kernels
ppc64le    r13 points to the paca: __current and paca_index in it (arch/powerpc/include/asm/paca.h)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Choose, Expr, Frame, Load, Op, PerCpuBase, Register
from gdb_optprobe.handlers.scope import Missing

MEMBERS = ("pid", "tgid", "comm")
PAGE = 4096
STACK_SIZE = 1 << 14
"""The least that THREAD_SIZE is. On ppc64le all stacks are aligned to it (THREAD_ALIGN), emergency stacks too."""
# What ORC needs in functions of C, and what a function that has no frame yet has its return address in.
X86_FRAME = ("rsp", "rbp")
PPC_FRAME = ("r1", "lr", "r0")
NAME_SIZE = 16
"""TASK_COMM_LEN, include/linux/sched.h."""


NO_STACKS = Missing("the stacks of this guest are not known")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Current:
    """task, cpu, per_cpu: expressions of the thread's address, the CPU's number, the base of its per-CPU variables.

    members: where a thread has its pid, tgid and comm. frame: what its stack is unwound from.
    """

    task: Expr | Missing
    cpu: Expr | Missing
    per_cpu: Expr | Missing
    members: Mapping[str, int | Missing] = field(default_factory=dict)
    frame: Frame | Missing = NO_STACKS


def on_x86_64(kernel: Kernel) -> Current:
    """Return the expressions by per-CPU variables: addresses from the symbols and, within pcpu_hot, from the types."""

    def variable(size: int, *places: tuple[str, str]) -> Expr:
        missing: OptprobeError | None = None
        for symbol, member in places:
            try:
                offset = kernel.address(symbol) + (kernel.offset(symbol, member) if member else 0)
                return Load(_plus(PerCpuBase(), offset), size, signed=False, mapped=True)
            except OptprobeError as error:
                missing = error
        raise missing or NoSuchKernel("no per-CPU variable asked for")

    task = _or_missing(lambda: variable(8, ("current_task", ""), ("pcpu_hot", "current_task")))
    cpu = _or_missing(lambda: variable(4, ("cpu_number", ""), ("pcpu_hot", "cpu_number")))
    members = {name: _or_missing(partial(kernel.offset, "task_struct", name)) for name in MEMBERS}
    top = _or_missing(lambda: variable(8, ("cpu_current_top_of_stack", ""), ("pcpu_hot", "top_of_stack")))
    return Current(task, cpu, PerCpuBase(), members, Frame((*X86_FRAME,), _room_on_x86_64(top)))


def _room_on_x86_64(top: Expr | Missing) -> Expr:
    """Up to the end of the thread's stack; on others, which are not aligned to their size, to the end of the page."""
    sp = Register(X86_FRAME[0])
    page = _room(sp, PAGE)
    if isinstance(top, Missing):
        return page
    above = fold.binary(Op.SUB, top, sp, 64, False)
    return Choose(fold.binary(Op.LT, above, fold.constant(STACK_SIZE), 64, False), above, page)


def _room(sp: Expr, size: int) -> Expr:
    """Up to the next multiple of a power of two."""
    below = fold.binary(Op.AND, sp, fold.constant(size - 1), 64, False)
    return fold.binary(Op.SUB, fold.constant(size), below, 64, False)


@dataclass(frozen=True, slots=True)
class Paca:
    """Offsets in the paca, current and number, in a thread, pid and comm, and where __per_cpu_offset is."""

    current: int
    number: int
    pid: int
    comm: int
    per_cpu_offset: int


def on_ppc64le(paca: Paca) -> Current:
    """By offsets that the kernel's code told: no types are needed."""
    number = Load(_plus(Register("r13"), paca.number), 2, signed=False, mapped=True)
    scaled = fold.binary(Op.SHL, number, fold.constant(3), 64, False)
    base = Load(_plus(scaled, paca.per_cpu_offset), 8, signed=False, mapped=True)
    task = Load(_plus(Register("r13"), paca.current), 8, signed=False, mapped=True)
    # tgid follows pid (include/linux/sched.h, struct task_struct).
    members = {"pid": paca.pid, "tgid": paca.pid + 4, "comm": paca.comm}
    return Current(task, number, base, members, Frame((*PPC_FRAME,), _room(Register(PPC_FRAME[0]), STACK_SIZE)))


def unknown(why: str) -> Current:
    """Where nothing is known of the running thread, for the reason given in words."""
    missing = Missing(why)
    return Current(missing, missing, missing, dict.fromkeys(MEMBERS, missing))


def _plus(expr: Expr, offset: int) -> Expr:
    return fold.binary(Op.ADD, expr, fold.constant(offset), 64, False)


def _or_missing(find: Callable[[], Found]) -> Found | Missing:
    try:
        return find()
    except OptprobeError as error:
        return Missing(error.message, error.hint)
