"""Every thread of a stopped kernel that may hold a saved PC.

    where a thread can be                           where it is found
    being made                                      nowhere, nor need be: it never ran, and its only saved PC is the
                                                    start of ret_from_fork
    alive: running, queued, migrated, asleep        init_task.tasks, and of each process signal->thread_head
    idle, of CPUs that are off or never came up too runqueues.idle, in no list
    ending, off the lists, on a CPU                 that CPU's current_task, or runqueues.curr while it is switched to
    ending, off the lists, without a CPU            exiting.py, or it says that one may be hidden
    dead, off its CPU for good                      in the lists until it is reaped; `stack` is 0 once that is freed

Whether a thread waits, and in which queue, does not matter: the lists do not depend on it (include/linux/sched/
signal.h, for_each_process_thread; kernel/fork.c, copy_process; kernel/exit.c, release_task).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.exiting import exiting
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.list_head import MOST
from gdb_optprobe.guest.linux.members import Members
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest_text import until_zero

PLAUSIBLE = (1 << 13, 1 << 14, 1 << 15, 1 << 16)
NAME_SIZE = 16
DEAD = 0x80  # TASK_DEAD
EXITING = 4  # PF_EXITING
SWITCHING = 2  # the preempt count of __schedule, once it holds the queue's lock
# Of a preempt count (include/linux/preempt.h): SOFTIRQ_OFFSET, HARDIRQ_MASK and NMI_MASK.
FIRST_INTERRUPT = 1 << 8
HARD_INTERRUPTS, NON_MASKABLE = 0xF << 16, 0xF << 20


@dataclass(frozen=True, slots=True)
class Task:
    """A thread: `stack` is its lowest address (0 when it is gone already), `sp` where it was when it last lost a CPU.

    state, flags, exit_state: as the kernel has them; 0 is a state of running, and an exit_state of being alive.
    """

    address: int
    name: str
    pid: int
    stack: int
    sp: int
    state: int
    flags: int
    exit_state: int

    @property
    def ending(self) -> bool:
        """Whether it is behind exit_tasks_rcu_start: see exiting.py."""
        return bool(self.exit_state)

    @property
    def dead(self) -> bool:
        """Whether it is behind exit_tasks_rcu_finish."""
        return bool(self.state & DEAD)

    def __str__(self) -> str:
        return f"thread {self.pid} ({self.name})"


@dataclass(frozen=True, slots=True)
class OnCpu:
    """Threads of one CPU: the one that runs, and the one that runs next; they differ within a context switch."""

    current: int
    next: int


@dataclass(frozen=True, slots=True)
class TasksOf:
    """What differs by ISA.

    current:       per-CPU variables (symbol, struct, member) of the running thread, of which a kernel has one.
    saved_sp:      the member of task_struct that has the stack pointer of a thread without a CPU.
    preempt_count: how often preemption is disabled on the CPU with its per-CPU variables at an address.
    """

    current: Sequence[tuple[str, str, str]]
    saved_sp: str
    preempt_count: Callable[[Kernel, int], int]


class Tasks:
    """Reads threads; offsets are looked up once. Raises OptprobeError where this kernel's cannot be enumerated."""

    def __init__(self, kernel: Kernel, of: TasksOf) -> None:
        """Look up the offsets. of: what differs by ISA."""
        self._preempt_count = of.preempt_count
        self._kernel = kernel
        self._percpu = PerCpu.of(kernel)
        self._exiting = exiting(kernel, self._percpu)
        task = "task_struct"
        self._init = kernel.address("init_task")
        self._tasks = kernel.offset(task, "tasks")
        self._thread_node = kernel.offset(task, "thread_node")
        self._thread_head = kernel.offset("signal_struct", "thread_head")
        self._layout = Members.of(
            state=(kernel.offset(task, "__state", "state"), 4),
            stack=(kernel.offset(task, "stack"), 8),
            flags=(kernel.offset(task, "flags"), 4),
            tasks=(self._tasks, 8),
            exit_state=(kernel.offset(task, "exit_state"), 4),
            pid=(kernel.offset(task, "pid"), 4),
            thread_node=(self._thread_node, 8),
            thread_node_before=(self._thread_node + 8, 8),
            comm=(kernel.offset(task, "comm"), NAME_SIZE),
            signal=(kernel.offset(task, "signal"), 8),
            sp=(kernel.offset(task, of.saved_sp), 8),
        )
        self._idle = self._percpu.addresses("runqueues", "rq", "idle")
        self._curr = self._percpu.addresses("runqueues", "rq", "curr")
        self._current = self._percpu.addresses_of_either(*of.current)

    def on_cpus(self) -> tuple[OnCpu, ...]:
        """Return the threads of each CPU, in the order of Linux's CPU numbers."""
        word = self._kernel.word
        return tuple(
            OnCpu(word(current), word(following)) for current, following in zip(self._current, self._curr, strict=True)
        )

    def all(self, masked: Collection[int]) -> dict[int, Task]:
        """Return every thread, by address. Raises OptprobeError where a list is broken or a thread may be hidden now.

        masked: numbers of the CPUs that are in the kernel with interrupts off.
        """
        found: dict[int, Task] = {}
        self._listed(found)
        cpus = self.on_cpus()
        self._add(found, (self._kernel.word(at) for at in self._idle))
        self._add(found, (address for cpu in cpus for address in (cpu.current, cpu.next)))
        self._add(found, self._exiting.unlisted())
        counts = [self._preempt_count(self._kernel, base) for base in self._percpu.bases]
        over = {
            address
            for cpu, count in zip(cpus, counts, strict=True)
            if cpu.current != cpu.next or _may_be_over(count)
            for address in (cpu.current, cpu.next)
        }
        moving = any(_may_move(cpus[cpu], counts[cpu], found) for cpu in masked)
        self._exiting.check([task for address, task in found.items() if address not in over], moving)
        return found

    def hides(self) -> bool:
        """Return whether a thread that exits may be missing: see exiting.py."""
        return self._exiting.hides()

    def _listed(self, found: dict[int, Task]) -> None:
        """Add all processes from init's own on, with the threads of each."""
        budget = Budget(MOST, "the guest", "threads")
        leader = self._init
        while leader not in found:
            budget.spend()
            found[leader], values = self._read(leader)
            self._group(found, leader, values, budget)
            leader = values["tasks"] - self._tasks
        if leader != self._init:
            raise NoSuchKernel(f"the list of processes is broken at {leader:#x}")

    def _group(self, found: dict[int, Task], leader: int, values: dict[str, int], budget: Budget) -> None:
        head = values["signal"] + self._thread_head
        if head == values["thread_node"] == values["thread_node_before"]:
            return
        following = {leader: values["thread_node"]}
        at = self._kernel.word(head)
        while at != head:
            thread = at - self._thread_node
            if thread not in found:
                budget.spend()
                found[thread], more = self._read(thread)
                following[thread] = more["thread_node"]
            at = following.pop(thread, 0)
            if not at:
                raise NoSuchKernel(f"the list of threads of {found[leader]} is broken at {thread:#x}")

    def _add(self, found: dict[int, Task], addresses: Iterable[int]) -> None:
        for address in addresses:
            if address and address not in found:
                found[address] = self._read(address)[0]

    def _read(self, address: int) -> tuple[Task, dict[str, int]]:
        values = self._layout.read(self._kernel, address)
        name = until_zero(values["comm"].to_bytes(NAME_SIZE, "little"))
        number = values.__getitem__
        task = Task(address, name, *map(number, ("pid", "stack", "sp", "state", "flags", "exit_state")))
        return task, values


def thread_size(kernel: Kernel) -> int:
    """Return THREAD_SIZE, from the room that the linker left for init's stack (include/asm-generic/vmlinux.lds.h)."""
    start = kernel.word(kernel.address("init_task") + kernel.offset("task_struct", "stack"))
    for name in ("__end_init_stack", "__end_init_task"):
        end = kernel.symbols.address(name)
        if end is not None and end - start in PLAUSIBLE:
            return end - start
    raise NoSuchKernel("the size of a thread's stack is not known")


def _may_be_over(count: int) -> bool:
    """Return whether the preempt count is one that a thread may have behind exit_tasks_rcu_finish.
    There preemption is disabled once, or twice with pi_lock, and an interrupt may have come.
    """
    return count in (1, 2) or count >= FIRST_INTERRUPT


def _may_move(cpu: OnCpu, count: int, threads: Mapping[int, Task]) -> bool:
    """Return whether a CPU with interrupts off may be moving a thread from queue to queue.

    A mover holds a queue's lock, is in a soft interrupt, or looks for a thread to run in its place (kernel/sched/
    core.c and fair.c): preemption is off, and so are interrupts until the thread is in a queue again. So a hard
    interrupt does not come in between, and its own work moves none: it raises a soft interrupt for that. A thread that
    ends and is to run on moves others only as it is preempted.
    """
    if not count or (count & HARD_INTERRUPTS and not count & NON_MASKABLE):
        return False
    task = threads.get(cpu.current)
    ends = task is not None and task.flags & EXITING and not task.state and cpu.current == cpu.next
    return not ends or count == SWITCHING or count >= FIRST_INTERRUPT
