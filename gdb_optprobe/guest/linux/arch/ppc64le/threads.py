"""Every thread of a stopped ppc64le kernel, by offsets from its types or its code: see derive.py.

    alive: running, queued, asleep    `init_task`'s list of processes, and of each `signal->thread_head`
    idle, of CPUs that are off too    `runqueues.idle`, in no list
    ending, off the lists, on a CPU   that CPU's `paca->__current`
    ending, off the lists, elsewhere  linux/exiting.py, Listed; none where it does not preempt (Unneeded)
    being made                        of no concern: its only saved PC is the start of ret_from_fork
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.list_head import MOST
from gdb_optprobe.guest.linux.members import Members
from gdb_optprobe.guest.linux.percpu import MOST_CPUS
from gdb_optprobe.guest_text import printable

NAME_SIZE = 16
LARGEST_PID = 1 << 22  # PID_MAX_LIMIT


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this kernel keeps what saved PCs are found by: addresses of its data, offsets in its structures, sizes.

    Of a thread: tasks, thread_node, signal, stack, sp, pid, comm; thread_head of its signal.
    Of a CPU's paca: number, current, and `emergency`, which hold the ends of stacks. idle: of a CPU's run queue.
    online: the mask of CPUs that run threads; online_count: how many those are.
    """

    init_task: int
    tasks: int
    thread_node: int
    signal: int
    thread_head: int
    stack: int
    sp: int
    pid: int
    comm: int
    thread_size: int
    pacas: int
    number: int
    current: int
    emergency: tuple[int, ...]
    interrupt_stacks: tuple[int, ...]
    per_cpu_offset: int
    runqueues: int
    idle: int
    online: int
    online_count: int


@dataclass(frozen=True, slots=True)
class Thread:
    """stack: its lowest address, 0 when it is gone already; sp: where it was when it last lost a CPU."""

    address: int
    name: str
    pid: int
    stack: int
    sp: int

    def __str__(self) -> str:
        return f"thread {self.pid} ({self.name})"


@dataclass(frozen=True, slots=True)
class _Links:
    tasks: int
    thread_node: int
    thread_node_before: int
    signal: int


class Threads:
    """Reads threads. Raises OptprobeError where a list is broken."""

    def __init__(self, kernel: Kernel, layout: Layout) -> None:
        self._kernel = kernel
        self._layout = layout
        self._members = Members.of(
            tasks=(layout.tasks, 8),
            thread_node=(layout.thread_node, 8),
            thread_node_before=(layout.thread_node + 8, 8),
            signal=(layout.signal, 8),
            stack=(layout.stack, 8),
            sp=(layout.sp, 8),
            pid=(layout.pid, 4),
            comm=(layout.comm, NAME_SIZE),
        )

    def all(self, others: Iterable[int]) -> dict[int, Thread]:
        """Return every thread by address: those in lists, and `others`."""
        found: dict[int, Thread] = {}
        budget = Budget(MOST, "the guest", "threads")
        leader = self._layout.init_task
        while leader not in found:
            budget.spend()
            found[leader], links = self._read(leader)
            self._group(found, leader, links, budget)
            leader = links.tasks - self._layout.tasks
        if leader != self._layout.init_task:
            raise NoSuchKernel(f"the list of processes is broken at {leader:#x}")
        for address in others:
            if address not in found:
                found[address] = self._read(address)[0]
        return found

    def _group(self, found: dict[int, Thread], leader: int, links: _Links, budget: Budget) -> None:
        head = links.signal + self._layout.thread_head
        if head == links.thread_node == links.thread_node_before:
            return
        following = {leader: links.thread_node}
        at = self._kernel.word(head)
        while at != head:
            thread = at - self._layout.thread_node
            if thread not in found:
                budget.spend()
                found[thread], more = self._read(thread)
                following[thread] = more.thread_node
            at = following.pop(thread, 0)
            if not at:
                raise NoSuchKernel(f"the list of threads of {found[leader]} is broken at {thread:#x}")

    def _read(self, address: int) -> tuple[Thread, _Links]:
        values = self._members.read(self._kernel, address)
        name, end, _ = values["comm"].to_bytes(NAME_SIZE, "little").partition(b"\0")
        pid, stack = values["pid"], values["stack"]
        if not end or pid > LARGEST_PID or stack % self._layout.thread_size:
            raise NoSuchKernel(f"what lies at {address:#x} is no thread")
        links = (values[member] for member in ("tasks", "thread_node", "thread_node_before", "signal"))
        return Thread(address, printable(name), pid, stack, values["sp"]), _Links(*links)


@dataclass(frozen=True, slots=True)
class Stack:
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """`paca` and `idle`: addresses of its paca and of its idle thread. Of its stacks, the first are for interrupts."""

    number: int
    paca: int
    idle: int
    interrupt: tuple[Stack, ...]
    emergency: tuple[Stack, ...]

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return self.interrupt + self.emergency


def cpus(kernel: Kernel, layout: Layout) -> tuple[Cpu, ...]:
    """Return the possible CPUs, in the order of Linux's numbers. Raises OptprobeError."""
    found: list[Cpu] = []
    pacas = kernel.word(layout.pacas)
    # Behind the last paca is other memory. A paca has its own number, which ends the loop.
    while len(found) < MOST_CPUS and _is_paca(kernel, layout, paca := kernel.word(pacas + 8 * len(found)), len(found)):
        found.append(_cpu(kernel, layout, paca, len(found)))
    running = int.from_bytes(kernel.memory.read(layout.online_count, 4), "little")
    if not found or len(online(kernel, layout, len(found))) != running:
        raise NoSuchKernel("not every CPU's paca can be found")
    return tuple(found)


def _is_paca(kernel: Kernel, layout: Layout, paca: int, number: int) -> bool:
    if not LINEAR_MAP[0] <= paca < LINEAR_MAP[1]:
        return False
    try:
        return int.from_bytes(kernel.memory.read(paca + layout.number, 2), "little") == number
    except OptprobeError:
        return False


def _cpu(kernel: Kernel, layout: Layout, paca: int, number: int) -> Cpu:
    def stack(kind: str, start: int) -> Stack:
        return Stack(f"{kind} on CPU {number}", start, start + layout.thread_size)

    queue = kernel.word(layout.per_cpu_offset + 8 * number) + layout.runqueues & MASK
    return Cpu(
        number,
        paca,
        kernel.word(queue + layout.idle),
        tuple(stack("an interrupt", kernel.word(array + 8 * number)) for array in layout.interrupt_stacks),
        tuple(stack("an emergency", kernel.word(paca + at) - layout.thread_size) for at in layout.emergency),
    )


def online(kernel: Kernel, layout: Layout, count: int) -> set[int]:
    """Return the numbers of the CPUs that run threads, of the first `count`."""
    mask = int.from_bytes(kernel.memory.read(layout.online, (count + 7) // 8), "little")
    return {cpu for cpu in range(count) if mask >> cpu & 1}
