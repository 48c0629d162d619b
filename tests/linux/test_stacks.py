"""Threads and stacks of a kernel of three threads and one CPU."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.linux.stacks import Stacks, missing
from gdb_optprobe.guest.linux.tasks import Tasks
from gdb_optprobe.guest.saved import Saved
from tests.linux.fakes import Machine, kernel

BASE = 0xFFFF888000000000
PERCPU = BASE + 0x100000
TASKS = {"init": BASE + 0x1000, "leader": BASE + 0x2000, "thread": BASE + 0x3000, "dying": BASE + 0x4000}
STACKS = {name: BASE + 0x200000 + 0x4000 * n for n, name in enumerate(TASKS)}
SIGNALS = {"init": BASE + 0x8000, "leader": BASE + 0x8100}
IRQ_END = BASE + 0x400000
CEA = BASE + 0x500000
MARK = 0x1111
OFFSETS = {
    "task_struct.tasks": 0x10,
    "task_struct.signal": 0x20,
    "task_struct.thread_node": 0x30,
    "task_struct.stack": 0x40,
    "task_struct.on_cpu": 0x48,
    "task_struct.on_rq": 0x4C,
    "task_struct.pid": 0x50,
    "task_struct.comm": 0x58,
    "task_struct.se.group_node": 0x70,
    "task_struct.thread.sp": 0x200,
    "signal_struct.thread_head": 0x8,
    "rq.nr_running": 0,
    "rq.curr": 0x8,
    "rq.idle": 0x10,
    "rq.cfs_tasks": 0x18,
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
    "entry_stack_storage": 0x1000,
    "runqueues": 0x2000,
    "init_task": TASKS["init"],
    "__end_init_task": STACKS["init"] + 0x4000,
    "nr_cpu_ids": BASE + 0x9000,
    "__per_cpu_offset": BASE + 0x9008,
}


def circle(there: Machine, *nodes: int) -> None:
    for node, following in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        there.put_words(node, following)


def guest(sp: int, cpl: int = 0, running: str = "leader", dying: bool = False) -> Machine:
    """One vCPU at `sp`; each thread's stack holds MARK + its place in TASKS at its saved SP and below it."""
    there = Machine({"rsp": sp, "cpl": cpl, "rip": 0xABC})
    for n, name in enumerate(TASKS):
        task, stack = TASKS[name], STACKS[name]
        there.put(task, bytes(0x300))
        there.put(stack, bytes(0x4000))
        there.put_words(task + 0x40, stack)
        there.put_words(task + 0x48, int(name == running) | int(name in (running, "dying")) << 32)
        there.put_words(task + 0x50, n)
        there.put(task + 0x58, name.encode())
        there.put_words(task + 0x200, stack + 0x3F00)
        there.put_words(stack + 0x3E00, MARK + 0x100 + n)
        there.put_words(stack + 0x3F00, MARK + n)
    circle(there, TASKS["init"] + 0x10, TASKS["leader"] + 0x10)
    for name, members in (("init", ["init"]), ("leader", ["leader", "thread"])):
        there.put_words(TASKS[name] + 0x20, SIGNALS[name])
        circle(there, SIGNALS[name] + 8, *(TASKS[member] + 0x30 for member in members))
    there.put(PERCPU, bytes(0x3000))
    there.put(IRQ_END - 0x4000, bytes(0x4000))
    there.put_words(PERCPU + 0x100, IRQ_END - 8, CEA)
    for stack in (0x1000, 0x3000, 0x5000, 0x7000):
        there.put(CEA + stack, bytes(0x1000))
    there.put_words(CEA + 0x3FF8, MARK + 0x900)
    queue = PERCPU + 0x2000
    there.put_words(queue, 2 if dying else 1, TASKS[running], TASKS["init"])
    circle(there, queue + 0x18, *([TASKS["dying"] + 0x70] if dying else []))
    there.put(BASE + 0x9000, (1).to_bytes(4, "little") + bytes(4) + PERCPU.to_bytes(8, "little"))
    return there


def saved(there: Machine) -> list[Saved]:
    return list(Stacks(kernel(there, NAMES, OFFSETS), there, ("rip", "rax")).saved())


def words(there: Machine) -> set[int]:
    return {word for each in saved(there) for word in each.words} - {0}


def test_per_cpu_bases() -> None:
    linux = kernel(guest(STACKS["leader"] + 0x3F00), NAMES, OFFSETS)
    assert PerCpu.of(linux).addresses("runqueues") == (PERCPU + 0x2000,)


def test_every_thread_not_only_every_process() -> None:
    tasks = Tasks(kernel(guest(STACKS["leader"] + 0x3F00), NAMES, OFFSETS)).all()
    assert {task.name for task in tasks} == {"init", "leader", "thread"}


def test_saved_stacks_are_scanned_from_their_sp() -> None:
    found = words(guest(STACKS["leader"] + 0x3E00))
    assert {MARK, MARK + 1, MARK + 2} <= found
    assert MARK + 0x101 in found, "the running thread's stack, from the vCPU's SP"
    assert MARK + 0x102 not in found, "below a sleeping thread's SP is nothing that lives"


def test_registers_are_saved_pcs_too() -> None:
    assert 0xABC in words(guest(STACKS["leader"] + 0x3F00))


def test_thread_that_ends_is_found_on_its_run_queue() -> None:
    assert MARK + 3 in words(guest(STACKS["leader"] + 0x3F00, dying=True))


def test_hidden_thread_that_wants_to_run() -> None:
    there = guest(STACKS["leader"] + 0x3F00)
    there.put_words(PERCPU + 0x2000, 2)
    with pytest.raises(OptprobeError, match="2 threads want to run and only 1"):
        saved(there)


def test_interrupt_stack_leads_to_the_interrupted_thread() -> None:
    there = guest(IRQ_END - 0x20)
    there.put_words(IRQ_END - 0x20, MARK + 0x800, 0, 0, STACKS["leader"] + 0x3E00)
    assert {MARK + 0x800, MARK + 0x101, MARK + 1} <= words(there)
    assert MARK + 0x900 not in words(there), "no exception stack is alive"


def test_interrupt_stack_of_5_10_points_behind_its_end() -> None:
    there = guest(IRQ_END - 0x20)
    there.put_words(PERCPU + 0x100, IRQ_END)
    there.put_words(IRQ_END - 0x20, MARK + 0x800, 0, 0, STACKS["leader"] + 0x3E00)
    assert {MARK + 0x800, MARK + 0x101} <= words(there)


def test_exception_stack_scans_everything() -> None:
    found = words(guest(CEA + 0x3F00))
    assert {MARK + 0x900, MARK + 0x101, MARK + 1} <= found


def test_user_mode_leaves_an_empty_stack() -> None:
    found = words(guest(0x7FFF0000, cpl=3))
    assert MARK + 1 not in found and MARK + 2 in found


def test_thread_that_just_loses_its_cpu_is_not_left_out() -> None:
    there = guest(0x7FFF0000, cpl=3)
    there.put_words(TASKS["thread"] + 0x48, 1)
    assert {MARK + 1, MARK + 2} <= words(there)


def test_broken_list() -> None:
    there = guest(STACKS["leader"] + 0x3F00)
    there.put_words(TASKS["leader"] + 0x10, TASKS["leader"] + 0x10)
    with pytest.raises(OptprobeError, match="broken"):
        saved(there)


def test_stack_pointer_outside_its_stack() -> None:
    there = guest(STACKS["leader"] + 0x3F00)
    there.put_words(TASKS["thread"] + 0x200, 0x1234)
    with pytest.raises(OptprobeError, match="outside its stack"):
        saved(there)


def test_stack_that_is_gone() -> None:
    there = guest(STACKS["leader"] + 0x3F00)
    there.put_words(TASKS["thread"] + 0x40, 0)
    assert MARK + 2 not in words(there)


def test_what_is_missing() -> None:
    there = guest(STACKS["leader"] + 0x3F00)
    assert missing(kernel(there, NAMES, OFFSETS)) == ""
    assert "BTF" in missing(kernel(there, NAMES))
    less = {name: at for name, at in NAMES.items() if name != "hardirq_stack_ptr"}
    assert "pcpu_hot" in missing(kernel(there, less, OFFSETS))
