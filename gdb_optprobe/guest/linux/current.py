"""The running thread and CPU: the expressions of `$task`, `$cpu`, `$pid`, `$tgid` and `$comm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Expr, Frame, Load, Op
from gdb_optprobe.handlers.scope import Missing

MEMBERS = ("pid", "tgid", "comm")
PAGE = 4096
STACK_SIZE = 1 << 14
"""The least that THREAD_SIZE is."""
NAME_SIZE = 16
"""TASK_COMM_LEN, include/linux/sched.h."""


NO_STACKS = Missing("the stacks of this guest are not known")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Current:
    """task, cpu, per_cpu: expressions of the thread's address, the CPU's number, the base of its per-CPU variables.

    members: offsets of pid, tgid and comm in a thread. frame: the registers that its stack is unwound from.
    """

    task: Expr | Missing
    cpu: Expr | Missing
    per_cpu: Expr | Missing
    members: Mapping[str, int | Missing] = field(default_factory=dict)
    frame: Frame | Missing = NO_STACKS


def room_to(sp: Expr, size: int) -> Expr:
    """Return the distance from `sp` up to the next multiple of a power of two."""
    below = fold.binary(Op.AND, sp, fold.constant(size - 1), 64, False)
    return fold.binary(Op.SUB, fold.constant(size), below, 64, False)


def unknown(why: str) -> Current:
    """Return a Current of which nothing is known, for the reason given in words."""
    missing = Missing(why)
    return Current(missing, missing, missing, dict.fromkeys(MEMBERS, missing))


def at_stop(kernel: Kernel, number: int, members: Mapping[str, int | Missing]) -> Current:
    """Return the expressions of a CPU and its thread while the guest is stopped: they read memory, and no register."""
    cpus = or_missing(lambda: PerCpu.of(kernel))
    if isinstance(cpus, Missing):
        return Current(cpus, cpus, cpus, members)
    # kernel/sched/sched.h: what every ISA has.
    running = or_missing(lambda: cpus.addresses("runqueues", "rq", "curr")[number])
    task = running if isinstance(running, Missing) else Load(fold.constant(running), 8, False)
    return Current(task, fold.constant(number), fold.constant(cpus.bases[number]), members)


def plus(expr: Expr, offset: int) -> Expr:
    """Return the sum."""
    return fold.binary(Op.ADD, expr, fold.constant(offset), 64, False)


def or_missing(find: Callable[[], Found]) -> Found | Missing:
    """Return what `find` finds, or why it finds nothing."""
    try:
        return find()
    except OptprobeError as error:
        return Missing(error.message, error.hint)
