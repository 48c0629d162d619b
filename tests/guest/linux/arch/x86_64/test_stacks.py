"""A PC in each kind of stack is found; a structure that is broken is an error, never silence."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64 import stacks
from gdb_optprobe.guest.linux.arch.x86_64.stacks import missing
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.linux.tasks import Tasks
from tests.guest.linux.arch.x86_64.small_guest import (
    BELOW,
    CPUS,
    INTERRUPT_ENDS,
    NAMES,
    OFFSETS,
    ON_ENTRY,
    ON_EXCEPTION,
    ON_INTERRUPT,
    ON_STACK,
    RIP,
    SP,
    STACKS,
    TASKS,
    exception_sp,
    guest,
    number,
    saved,
    words,
)
from tests.guest.linux.fake_kernel import kernel

USER_SP = 0x7FFF0000
IN_USER_MODE = {"rsp": USER_SP, "cpl": 3, "gs_base": 0, "k_gs_base": CPUS[0]}


def below(name: str) -> int:
    return BELOW + number(name)


def on_stack(name: str) -> int:
    return ON_STACK + number(name)


def test_per_cpu_bases() -> None:
    assert PerCpu.of(kernel(guest(), NAMES, OFFSETS)).addresses("runqueues") == tuple(cpu + 0x2000 for cpu in CPUS)


def test_every_thread_not_only_every_process() -> None:
    found = Tasks(kernel(guest(), NAMES, OFFSETS), stacks.TASKS).all(set())
    assert sorted(task.name for task in found.values()) == ["idle1", "init", "leader", "thread"]
    assert all(task.address == address for address, task in found.items())


def test_saved_stacks_are_scanned_from_their_sp() -> None:
    found = words(guest())
    assert {on_stack(name) for name in ("init", "leader", "thread", "idle1")} <= found
    assert {below("leader"), below("idle1")} <= found, "of threads on a vCPU, from its SP"
    assert below("thread") not in found, "below a sleeping thread's SP is nothing that lives"


def test_whose_stacks_they_are() -> None:
    """From where on each is in use, to where it ends."""
    there = guest(IN_USER_MODE)
    found = {one.stack.name: one for one in saved(there) if one.stack is not None}
    assert {name: one.stack and one.stack.pid for name, one in found.items()} == {
        name: number(name) for name in ("init", "leader", "thread", "idle1")
    }
    for name, start in ("thread", STACKS["thread"] + 0x3F00), ("leader", STACKS["leader"] + 0x4000):
        assert found[name].address == start, "nothing of it where it is in user mode"
        stack = found[name].stack
        assert stack is not None and (stack.start, stack.end) == (STACKS[name], STACKS[name] + 0x4000)


def test_the_stack_of_an_interrupt_is_nobodys() -> None:
    there = guest({"rsp": INTERRUPT_ENDS[0] - 0x20})
    there.put_words(INTERRUPT_ENDS[0] - 8, SP)
    (found,) = [one.stack for one in saved(there) if one.stack is not None and one.stack.pid is None]
    assert (found.start, found.end) == (INTERRUPT_ENDS[0] - 0x4000, INTERRUPT_ENDS[0])


def test_interrupt_stacks_are_as_large_as_threads_are() -> None:
    """What debugging adds to stacks it adds to both."""
    sp, word = INTERRUPT_ENDS[0] - 0x5000, 0x5A5A5A
    there = guest(first={"rsp": sp})
    there.put(STACKS["idle1"] + 0x4000, bytes(0x4000))
    there.put(INTERRUPT_ENDS[0] - 0x8000, bytes(0x4000))
    there.put_words(sp + 0x10, word)
    there.put_words(INTERRUPT_ENDS[0] - 8, SP)
    names = {**NAMES, "__end_init_task": STACKS["init"] + 0x8000}
    (found,) = (each for each in saved(there, names) if word in each.words)
    assert found.stack is not None
    assert (found.address, found.stack.start, found.stack.end) == (sp, INTERRUPT_ENDS[0] - 0x8000, INTERRUPT_ENDS[0])


def test_registers_are_saved_pcs_too() -> None:
    assert RIP in words(guest())


def test_interrupt_stack_leads_to_the_interrupted_thread() -> None:
    there = guest({"rsp": INTERRUPT_ENDS[0] - 0x20})
    there.put_words(INTERRUPT_ENDS[0] - 8, SP)
    found = words(there)
    assert {ON_INTERRUPT, below("leader"), on_stack("leader")} <= found
    assert ON_EXCEPTION not in found and ON_INTERRUPT + 1 not in found, "no other stack of a CPU is alive"


def test_interrupt_stack_is_just_entered() -> None:
    there = guest({"rsp": INTERRUPT_ENDS[0] - 8})
    there.put_words(INTERRUPT_ENDS[0] - 8, SP)
    assert below("leader") in words(there)


def test_interrupt_stack_of_5_10_points_behind_its_end() -> None:
    there = guest({"rsp": INTERRUPT_ENDS[0] - 0x20})
    there.put_words(CPUS[0] + 0x100, INTERRUPT_ENDS[0])
    there.put_words(INTERRUPT_ENDS[0] - 8, SP)
    assert {ON_INTERRUPT, below("leader")} <= words(there)


def test_interrupt_stack_that_leads_nowhere() -> None:
    there = guest({"rsp": INTERRUPT_ENDS[0] - 0x20})
    there.put_words(INTERRUPT_ENDS[0] - 8, STACKS["thread"] + 0x3F00)
    with pytest.raises(OptprobeError, match=r"CPU 0 is on a stack .* none of its own"):
        saved(there)


@pytest.mark.parametrize("sp", [exception_sp(0), USER_SP], ids=["an exception stack", "the user's, in entry code"])
def test_elsewhere_everything_of_that_cpu_is_scanned(sp: int) -> None:
    found = words(guest({"rsp": sp}))
    assert {ON_INTERRUPT, ON_ENTRY, below("leader"), on_stack("leader")} <= found
    assert {ON_EXCEPTION + 0x10 * n for n in range(4)} <= found
    assert not {ON_INTERRUPT + 1, ON_ENTRY + 1, ON_EXCEPTION + 1, below("init"), below("thread")} & found


def test_a_stack_that_nobody_knows() -> None:
    with pytest.raises(OptprobeError, match="none of its own"):
        saved(guest({"rsp": STACKS["thread"] + 0x3F00}))


def test_user_mode_leaves_an_empty_stack() -> None:
    found = words(guest(IN_USER_MODE))
    assert on_stack("leader") not in found and {on_stack("thread"), RIP} <= found


def test_entry_code_that_has_not_swapped_gs_yet() -> None:
    found = words(guest({"rsp": exception_sp(0), "gs_base": 0, "k_gs_base": CPUS[0]}))
    assert {below("leader"), ON_EXCEPTION + 0x10} <= found


def test_a_user_mode_gs_base_is_not_believed() -> None:
    with pytest.raises(OptprobeError, match="vCPU 0 is none of Linux's"):
        saved(guest({**IN_USER_MODE, "gs_base": CPUS[0], "k_gs_base": 0}))


@pytest.mark.parametrize("owner", ["leader", "thread"])
def test_a_switch_under_way(owner: str) -> None:
    there = guest({"rsp": STACKS[owner] + 0x3E00})
    there.put_words(CPUS[0] + 0x2008, TASKS["thread"])
    found = words(there)
    assert {on_stack("leader"), on_stack("thread"), below(owner)} <= found
    assert not {below("leader"), below("thread")} - {below(owner)} & found


def test_last_switch_of_a_thread_that_is_in_no_list() -> None:
    there = guest({"rsp": STACKS["ending"] + 0x3E00})
    there.put_words(CPUS[0] + 0x110, TASKS["ending"])
    assert {below("ending"), on_stack("ending"), on_stack("leader")} <= words(there)


def test_a_cpu_that_never_came_up() -> None:
    there = guest(second={"cr0": 0, "rsp": 0, "gs_base": 0})
    there.put_words(NAMES["__cpu_online_mask"], 0b01)
    there.put_words(CPUS[1] + 0x100, 0, 0, 0)
    found = words(there)
    assert {below("leader"), on_stack("idle1")} <= found and below("idle1") not in found


def test_a_cpu_that_is_off_is_still_scanned_where_it_halts() -> None:
    there = guest()
    there.put_words(NAMES["__cpu_online_mask"], 0b01)
    assert below("idle1") in words(there)


def test_a_cpu_on_no_vcpu() -> None:
    there = guest()
    there.state.pop()
    with pytest.raises(OptprobeError, match="CPU 1 runs on no vCPU"):
        saved(there)


def test_a_vcpu_that_linux_does_not_know() -> None:
    with pytest.raises(OptprobeError, match="vCPU 1 is none of Linux's"):
        saved(guest(second={"gs_base": 0x1234}))


def test_a_cpu_that_runs_no_thread_yet() -> None:
    there = guest()
    there.put_words(CPUS[1] + 0x110, 0)
    with pytest.raises(OptprobeError, match="CPU 1 runs no thread"):
        saved(there)


@pytest.mark.parametrize("node", [TASKS["leader"] + 0x110, TASKS["thread"] + 0x130], ids=["processes", "threads"])
def test_a_list_that_runs_in_a_circle(node: int) -> None:
    there = guest()
    there.put_words(node, node)
    with pytest.raises(OptprobeError, match="broken"):
        saved(there)


@pytest.mark.parametrize("node", [TASKS["leader"] + 0x110, TASKS["thread"] + 0x130], ids=["processes", "threads"])
def test_a_list_that_leads_nowhere(node: int) -> None:
    there = guest()
    there.put_words(node, 0x123450)
    with pytest.raises(OptprobeError, match="cannot access"):
        saved(there)


def test_stack_pointer_outside_its_stack() -> None:
    there = guest()
    there.put_words(TASKS["thread"] + 0xE00, 0x1234)
    with pytest.raises(OptprobeError, match=r"thread 2 .* outside its stack"):
        saved(there)


def test_a_stack_that_cannot_be_read() -> None:
    there = guest()
    there.pages.pop((STACKS["thread"] + 0x3F00) // 4096)
    with pytest.raises(OptprobeError, match="cannot access"):
        saved(there)


def test_stack_of_a_dead_thread_that_is_gone() -> None:
    there = guest()
    there.put_words(TASKS["thread"] + 0x18, 0)
    assert on_stack("thread") not in words(there)


def test_what_is_missing() -> None:
    there = guest()
    assert missing(kernel(there, NAMES, OFFSETS)) == ""
    assert "BTF" in missing(kernel(there, NAMES))
    without = {name: at for name, at in NAMES.items() if name != "hardirq_stack_ptr"}
    assert "pcpu_hot" in missing(kernel(there, without, OFFSETS))
    assert "RCU Tasks" in missing(kernel(there, {**NAMES, "preempt_schedule": 1}, OFFSETS))


@pytest.mark.parametrize("off", [1, 4, 7])
def test_a_stack_of_odd_addresses_is_refused(off: int) -> None:
    """A hostile guest's: words are read from it, whatever it says."""
    there = guest()
    there.put_words(TASKS["thread"] + 0x18, STACKS["thread"] + off)
    with pytest.raises(OptprobeError, match="has a stack that ends at"):
        saved(there)
