"""A guest of two CPUs and a few threads, each with words of its own wherever a saved PC may be.

`marks(name)` of a thread: (at its saved SP, below it: dead unless a vCPU is there).
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.guest.linux.arch.x86_64.stacks import Stacks
from gdb_optprobe.guest.saved_pcs import SavedWords
from tests.guest.linux.fake_kernel import Machine, kernel

BASE = 0xFFFF888000000000
CPUS = (BASE + 0x1000000, BASE + 0x1100000)
THREADS = ("init", "leader", "thread", "ending", "idle1")
TASKS = {name: BASE + 0x1000 * (n + 1) for n, name in enumerate(THREADS)}
STACKS = {name: BASE + 0x200000 + 0x4000 * n for n, name in enumerate(THREADS)}
SIGNALS = {"init": BASE + 0x8000, "leader": BASE + 0x8100}
INTERRUPT_ENDS = (BASE + 0x400000, BASE + 0x410000)
EXCEPTIONS = (-(4 << 39) + 0x1000, -(4 << 39) + 0x41000)
EXITING = BASE + 0x9100
PAGING = 1 << 31
RIP = 0xABC
ON_STACK, BELOW, ON_INTERRUPT, ON_EXCEPTION, ON_ENTRY = 0x1000, 0x2000, 0x3000, 0x4000, 0x5000

# What the vCPUs' registers are unless a test says otherwise: CPU 0 runs `leader`, CPU 1 is idle.
SP = STACKS["leader"] + 0x3E00
IDLE_SP = STACKS["idle1"] + 0x3E00

OFFSETS = {
    "task_struct.__state": 0x8,
    "task_struct.stack": 0x18,
    "task_struct.flags": 0x20,
    "task_struct.tasks": 0x110,
    "task_struct.exit_state": 0x120,
    "task_struct.pid": 0x124,
    "task_struct.thread_node": 0x130,
    "task_struct.comm": 0x140,
    "task_struct.signal": 0x150,
    "task_struct.se.group_node": 0x160,
    "task_struct.rcu_tasks_exit_list": 0x170,
    "task_struct.thread.sp": 0xE00,
    "signal_struct.thread_head": 0x8,
    "rq.curr": 0x8,
    "rq.idle": 0x10,
    "rq.cfs_tasks": 0x18,
    "rq.rt.rt_nr_running": 0x30,
    "rq.dl.dl_nr_running": 0x34,
    "srcu_struct.sda": 0x8,
    "srcu_data.srcu_lock_count": 0x10,
    "srcu_data.srcu_unlock_count": 0x20,
    "rcu_tasks.rtpcpu": 0x8,
    "rcu_tasks_percpu.rtp_exit_list": 0x30,
    "cea_exception_stacks.DF_stack": 0x1000,
    "cea_exception_stacks.NMI_stack_guard": 0x2000,
    "cea_exception_stacks.NMI_stack": 0x3000,
    "cea_exception_stacks.DB_stack": 0x5000,
    "cea_exception_stacks.MCE_stack": 0x7000,
    "cea_exception_stacks.VC_stack": 0x9000,
    "cea_exception_stacks.VC2_stack": 0xB000,
}
NAMES = {
    "hardirq_stack_ptr": 0x100,
    "cea_exception_stacks": 0x108,
    "current_task": 0x110,
    "__preempt_count": 0x118,
    "entry_stack_storage": 0x1000,
    "runqueues": 0x2000,
    "init_task": TASKS["init"],
    "__end_init_task": STACKS["init"] + 0x4000,
    "nr_cpu_ids": BASE + 0x9000,
    "__per_cpu_offset": BASE + 0x9008,
    "__cpu_online_mask": BASE + 0x9020,
}
COUNTED = {**NAMES, "preempt_schedule": BASE, "tasks_rcu_exit_srcu": EXITING}
LISTED = {**NAMES, "preempt_schedule": BASE, "rcu_tasks": EXITING}
PER_CPU_EXITING = 0x2800


def number(name: str) -> int:
    return THREADS.index(name)


def circle(there: Machine, *nodes: int) -> None:
    for node, following in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        there.put_words(node, following)


def guest(first: Mapping[str, int] | None = None, second: Mapping[str, int] | None = None) -> Machine:
    """The guest; `first` and `second` change the registers of its vCPUs. `ending` is in no list."""
    usual = {"rip": RIP, "cr0": PAGING, "cpl": 0}
    there = Machine(
        {**usual, "rsp": SP, "gs_base": CPUS[0], **(first or {})},
        {**usual, "rsp": IDLE_SP, "gs_base": CPUS[1], **(second or {})},
    )
    for name in THREADS:
        _thread(there, name)
    circle(there, TASKS["init"] + 0x110, TASKS["leader"] + 0x110)
    for name, members in (("init", ["init"]), ("leader", ["leader", "thread"])):
        for member in members:
            there.put_words(TASKS[member] + 0x150, SIGNALS[name])
        circle(there, SIGNALS[name] + 8, *(TASKS[member] + 0x130 for member in members))
    for cpu, (current, idle) in enumerate((("leader", "init"), ("idle1", "idle1"))):
        _cpu(there, cpu, current, idle)
    there.put_words(BASE + 0x9000, len(CPUS), *CPUS)
    there.put_words(BASE + 0x9020, 0b11)
    there.put_words(EXITING + 8, PER_CPU_EXITING)
    return there


def _thread(there: Machine, name: str) -> None:
    task, stack = TASKS[name], STACKS[name]
    there.put(task, bytes(0x1000))
    there.put(stack, bytes(0x4000))
    there.put_words(task + 0x18, stack)
    there.put_words(task + 0x120, number(name) << 32)
    there.put(task + 0x140, name.encode())
    there.put_words(task + 0xE00, stack + 0x3F00)
    there.put_words(stack + 0x3E00, BELOW + number(name))
    there.put_words(stack + 0x3F00, ON_STACK + number(name))


def _cpu(there: Machine, cpu: int, current: str, idle: str) -> None:
    base = CPUS[cpu]
    there.put(base, bytes(0x3000))
    there.put_words(base + 0x100, INTERRUPT_ENDS[cpu] - 8, EXCEPTIONS[cpu], TASKS[current])
    there.put_words(base + 0x1FF0, ON_ENTRY + cpu)
    queue = base + 0x2000
    there.put_words(queue + 8, TASKS[current], TASKS[idle])
    circle(there, queue + 0x18)
    there.put(INTERRUPT_ENDS[cpu] - 0x4000, bytes(0x4000))
    there.put_words(INTERRUPT_ENDS[cpu] - 0x20, ON_INTERRUPT + cpu)
    for n, stack in enumerate((0x1000, 0x3000, 0x5000, 0x7000)):
        there.put((EXCEPTIONS[cpu] + stack) % 2**64, bytes(0x1000))
        there.put_words((EXCEPTIONS[cpu] + stack + 0xF80) % 2**64, ON_EXCEPTION + 0x10 * n + cpu)


def exception_sp(cpu: int) -> int:
    """In the middle of a CPU's NMI stack."""
    return (EXCEPTIONS[cpu] + 0x3F00) % 2**64


def end_thread(there: Machine, name: str = "ending") -> None:
    """It is in do_exit, and has its exit_state."""
    there.put(TASKS[name] + 0x120, (16).to_bytes(4, "little"))
    there.put(TASKS[name] + 0x20, (4).to_bytes(4, "little"))


def count_exiting(there: Machine, entered: int, left: int) -> None:
    """What the kernel has counted: on one CPU those that began to end, on the other those that are done."""
    there.put_words(CPUS[0] + PER_CPU_EXITING + 0x10, 0, entered)
    there.put_words(CPUS[1] + PER_CPU_EXITING + 0x20, left, 0)


def hold_a_queue(there: Machine, count: int = 1) -> None:
    """CPU 1 has interrupts and preemption off: it may be moving a thread."""
    there.put_words(CPUS[1] + 0x118, count)


def saved(there: Machine, names: Mapping[str, int] = NAMES) -> list[SavedWords]:
    return list(Stacks(kernel(there, names, OFFSETS), there, ("rip", "rax")).saved())


def words(there: Machine, names: Mapping[str, int] = NAMES) -> set[int]:
    return {word for each in saved(there, names) for word in each.words} - {0}
