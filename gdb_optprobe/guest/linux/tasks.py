"""Every thread of a stopped kernel.

    init_task.tasks ─► task ─► task ─► …          processes (include/linux/sched/signal.h, for_each_process_thread)
                        │ signal->thread_head
                        └──► thread ─► thread     by thread_node
    runqueues.idle, .curr, .cfs_tasks             per CPU: idle tasks are in no list, and a thread that ends leaves the
                                                  lists before it has run its last instruction
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu

MOST_TASKS = 1 << 20
NAME_SIZE = 16
QUEUED = 1  # TASK_ON_RQ_QUEUED


@dataclass(frozen=True, slots=True)
class Task:
    """A thread: `stack` is its lowest address (0 when it is gone already), `sp` where it was when it last lost a CPU.

    running: it has a CPU, or is just getting or losing one; then `sp` may be old.
    """

    address: int
    name: str
    pid: int
    stack: int
    sp: int
    running: bool
    queued: bool
    idle: bool = False

    def __str__(self) -> str:
        return f"thread {self.pid} ({self.name})"


class Tasks:
    """Reads threads; offsets are looked up once."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._percpu = PerCpu.of(kernel)
        task = "task_struct"
        self._tasks = kernel.offset(task, "tasks")
        self._signal = kernel.offset(task, "signal")
        self._thread_node = kernel.offset(task, "thread_node")
        self._thread_head = kernel.offset("signal_struct", "thread_head")
        self._stack = kernel.offset(task, "stack")
        self._sp = kernel.offset(task, "thread.sp")
        self._on_cpu = kernel.offset(task, "on_cpu")
        self._on_rq = kernel.offset(task, "on_rq")
        self._pid = kernel.offset(task, "pid")
        self._comm = kernel.offset(task, "comm")
        self._queue_node = kernel.offset(task, "se.group_node")
        self._head = max(self._tasks, self._signal, self._thread_node, self._stack, self._on_cpu, self._on_rq,
                         self._pid, self._comm) + NAME_SIZE  # fmt: skip

    def all(self) -> tuple[Task, ...]:
        """Every thread, once. Raises OptprobeError where a list is broken, or hides a thread that wants to run."""
        found: dict[int, Task] = {}
        init = self._kernel.address("init_task")
        for leader in self._list(init + self._tasks, self._tasks, whole=True):
            group = self._kernel.word(leader + self._signal) if leader not in found else 0
            found.setdefault(leader, self._read(leader))
            if group:
                for thread in self._list(group + self._thread_head, self._thread_node):
                    found.setdefault(thread, self._read(thread))
        found.setdefault(init, self._read(init))
        queues = self._percpu.addresses("runqueues")
        idle = self._words(queues, "idle")
        for address in (*idle, *self._words(queues, "curr"), *self._queued(queues)):
            if address:
                found.setdefault(address, self._read(address))
        self._check(found.values(), set(idle), queues)
        return tuple(found.values())

    def _check(self, tasks: Iterable[Task], idle: set[int], queues: Iterable[int]) -> None:
        """All threads that want to run must be among those found."""
        offset = self._kernel.offset("rq", "nr_running")
        wanting = sum(int.from_bytes(self._kernel.memory.read(queue + offset, 4), "little") for queue in queues)
        found = sum(task.queued and task.address not in idle for task in tasks)
        if found < wanting:
            raise NoSuchKernel(f"{wanting} threads want to run and only {found} can be found")

    def _words(self, queues: Iterable[int], member: str) -> list[int]:
        offset = self._kernel.offset("rq", member)
        return [self._kernel.word(queue + offset) for queue in queues]

    def _queued(self, queues: Iterable[int]) -> Iterator[int]:
        offset = self._kernel.offset("rq", "cfs_tasks")
        for queue in queues:
            # A CPU that never came up has a queue that was never set up.
            if self._kernel.word(queue + offset):
                yield from self._list(queue + offset, self._queue_node)

    def _list(self, head: int, node: int, whole: bool = False) -> Iterator[int]:
        """Members of a circular list; `whole` where the head is a member too."""
        seen: set[int] = set()
        at = self._kernel.word(head)
        if whole:
            yield head - node
        while at != head:
            if at in seen or not at or len(seen) > MOST_TASKS:
                raise NoSuchKernel(f"the list of threads at {head:#x} is broken at {at:#x}")
            seen.add(at)
            yield at - node
            at = self._kernel.word(at)

    def _read(self, address: int) -> Task:
        data = self._kernel.memory.read(address, self._head)

        def number(offset: int, size: int) -> int:
            return int.from_bytes(data[offset : offset + size], "little")

        return Task(
            address=address,
            name=data[self._comm : self._comm + NAME_SIZE].split(b"\0")[0].decode("utf-8", "replace"),
            pid=number(self._pid, 4),
            stack=number(self._stack, 8),
            sp=self._kernel.word(address + self._sp),
            running=bool(number(self._on_cpu, 4)),
            queued=number(self._on_rq, 4) == QUEUED,
        )


def missing(kernel: Kernel) -> str:
    """Why threads cannot be enumerated at all, in words; empty where they can."""
    try:
        Tasks(kernel)
        kernel.offset("rq", "nr_running"), kernel.offset("rq", "cfs_tasks"), kernel.address("runqueues")
    except OptprobeError as error:
        return error.message
    return ""
