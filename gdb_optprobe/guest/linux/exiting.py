"""Threads that exit, and are on no list of the kernel's any more.

A thread that exits is taken off the lists (release_task) before it has run its last instruction, and may lose its CPU
in between. RCU Tasks waits for threads to leave trampolines, as we do, and cannot see such threads either; so the
kernel tracks them separately (kernel/rcu/tasks.h, kernel/exit.c):

    do_exit: exit_tasks_rcu_start ─► exit_state ─► off the lists ─► preempt_disable ─► exit_tasks_rcu_finish ─► dead
                       └─────────────── accounted for, may lose its CPU ───┘                    └──── on its CPU ────┘

    Listed      since 6.9: on a list of each CPU
    Counted     before: a pair of counters of each CPU (SRCU), so that all are known to be found, or some to be hidden
    Unneeded    a kernel without preemption: what has lost its CPU called for it, and not from a fault, for it has no
                user memory any more. So its stack holds return addresses alone, and those are never inside a window
                (RETURN_INTO_REGION) nor in a detour. The same goes for a kernel that is configured not to preempt
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.list_head import MOST, members
from gdb_optprobe.guest.linux.percpu import PerCpu

COUNTERS = 2  # SRCU has two generations of readers
NOT_PREEMPTED = (0, 1)  # preempt_dynamic_none, preempt_dynamic_voluntary


class Thread(Protocol):
    """What `Exiting` needs to know of a thread that was found.
    ending: it has its exit_state, which it gets behind exit_tasks_rcu_start. dead: behind exit_tasks_rcu_finish.
    """

    @property
    def ending(self) -> bool: ...

    @property
    def dead(self) -> bool: ...


class Exiting(Protocol):
    def unlisted(self) -> Iterator[int]:
        """Yield addresses of threads that exit and may be on no list of threads; others may be among them."""

    def check(self, accounted: Collection[Thread], moving: bool) -> None:
        """Raise OptprobeError if a thread that exits may still be hidden.

        accounted: all threads found, but those on a CPU that may be behind exit_tasks_rcu_finish.
        moving: a CPU may be moving threads from queue to queue now.
        """

    def hides(self) -> bool:
        """Return whether a thread may be hidden, even one with only return addresses on its stack."""


def exiting(kernel: Kernel, percpu: PerCpu) -> Exiting:
    """Return how this kernel tracks threads that exit. Raises OptprobeError for a kernel that could hide some."""
    srcu = kernel.symbols.address("tasks_rcu_exit_srcu")
    if srcu is not None:
        return Counted(
            percpu,
            srcu + kernel.offset("srcu_struct", "sda"),
            kernel.offset("srcu_data", "srcu_lock_count"),
            kernel.offset("srcu_data", "srcu_unlock_count"),
            kernel.offset("rq", "cfs_tasks"),
            kernel.offset("task_struct", "se.group_node"),
            (kernel.offset("rq", "rt.rt_nr_running"), kernel.offset("rq", "dl.dl_nr_running")),
            kernel.symbols.address("preempt_dynamic_mode"),
        )
    if kernel.symbols.address("rcu_tasks") is not None:
        return Listed(
            percpu,
            kernel.address("rcu_tasks") + kernel.offset("rcu_tasks", "rtpcpu"),
            kernel.offset("rcu_tasks_percpu", "rtp_exit_list"),
            kernel.offset("task_struct", "rcu_tasks_exit_list"),
        )
    if kernel.symbols.address("preempt_schedule") is None:
        return Unneeded()
    raise NoSuchKernel("this kernel keeps no account of threads that end (RCU Tasks)")


@dataclass(frozen=True, slots=True)
class Counted:
    """Finds a thread that exits and has lost its CPU: it is on that CPU's queue, in `cfs_tasks` for the fair class.

    A thread of another class, or moving from queue to queue, is hidden. There is none where all threads that the
    counters count are found, or where no other class's queue has a thread and no CPU moves threads.
    mode: the address of the kernel's preemption mode, if it is not fixed.
    """

    percpu: PerCpu
    data: int
    entered: int
    left: int
    cfs_tasks: int
    group_node: int
    others: tuple[int, ...]
    mode: int | None

    def unlisted(self) -> Iterator[int]:
        if self._count():
            budget = Budget(MOST, "the queues of all CPUs", "threads")
            for queue in self.percpu.addresses("runqueues"):
                yield from members(self.percpu.kernel, queue + self.cfs_tasks, self.group_node, budget)

    def check(self, accounted: Collection[Thread], moving: bool) -> None:
        count = self._count() if self._preempts() else 0
        found = sum(thread.ending and not thread.dead for thread in accounted) if count else 0
        if count > found and (moving or self._others()):
            raise NoSuchKernel(f"{count - found} of {count} threads that are just ending cannot be found")

    def hides(self) -> bool:
        return self._count() != 0

    def _others(self) -> bool:
        """Return whether a queue of another class has a thread."""
        memory = self.percpu.kernel.memory
        queues = self.percpu.addresses("runqueues")
        return any(any(memory.read(queue + offset, 4)) for queue in queues for offset in self.others)

    def _preempts(self) -> bool:
        memory = self.percpu.kernel.memory
        return self.mode is None or int.from_bytes(memory.read(self.mode, 4), "little") not in NOT_PREEMPTED

    def _count(self) -> int:
        kernel = self.percpu.kernel
        data = kernel.word(self.data)
        entered = left = 0
        for base in self.percpu.bases:
            at = base + data & MASK
            entered += sum(kernel.word(at + self.entered + 8 * n) for n in range(COUNTERS))
            left += sum(kernel.word(at + self.left + 8 * n) for n in range(COUNTERS))
        return entered - left & MASK


@dataclass(frozen=True, slots=True)
class Listed:
    percpu: PerCpu
    data: int
    exit_list: int
    node: int

    def unlisted(self) -> Iterator[int]:
        kernel = self.percpu.kernel
        data = kernel.word(self.data)
        budget = Budget(MOST, "the lists of what is ending", "threads")
        for base in self.percpu.bases:
            yield from members(kernel, (base + data & MASK) + self.exit_list, self.node, budget)

    def check(self, accounted: Collection[Thread], moving: bool) -> None:
        """Pass: no thread can be hidden."""

    def hides(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Unneeded:
    def unlisted(self) -> Iterator[int]:
        return iter(())

    def check(self, accounted: Collection[Thread], moving: bool) -> None:
        """Pass: a hidden thread does not matter."""

    def hides(self) -> bool:
        return True
