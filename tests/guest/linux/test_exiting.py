"""Threads that end are in no list: each way in which kernels keep account of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.stacks import Stacks
from tests.guest.linux.arch.x86_64.small_guest import (
    COUNTED,
    CPUS,
    LISTED,
    NAMES,
    OFFSETS,
    ON_STACK,
    PER_CPU_EXITING,
    STACKS,
    TASKS,
    circle,
    count_exiting,
    end_thread,
    guest,
    hold_a_queue,
    number,
    saved,
    words,
)
from tests.guest.linux.fake_kernel import Machine, kernel

ENDING = ON_STACK + number("ending")
DEAD = 0x80
MODE = 0xFFFF888000009200


def queued(there: Machine) -> Machine:
    """A thread that ends has lost its CPU, and waits to run on CPU 1."""
    end_thread(there)
    circle(there, CPUS[1] + 0x2018, TASKS["ending"] + 0x160)
    return there


def on_a_cpu(preempt_count: int, state: int = 0) -> Machine:
    """It has CPU 0."""
    there = guest({"rsp": STACKS["ending"] + 0x3E00})
    end_thread(there)
    there.put_words(TASKS["ending"] + 8, state)
    there.put_words(CPUS[0] + 0x110, TASKS["ending"], preempt_count)
    there.put_words(CPUS[0] + 0x2008, TASKS["ending"])
    count_exiting(there, 8, 7)
    return there


def hiding() -> Machine:
    """The kernel counts a thread that ends, and it is on no queue that is read."""
    there = guest()
    count_exiting(there, 8, 7)
    return there


def test_counted_and_on_a_queue() -> None:
    there = queued(guest())
    count_exiting(there, 8, 7)
    assert ENDING in words(there, COUNTED)


def test_nobody_ends_so_no_queue_is_read() -> None:
    there = guest()
    circle(there, CPUS[1] + 0x2018, 0x123450)
    count_exiting(there, 7, 7)
    assert saved(there, COUNTED)


def test_counted_and_on_its_way_between_queues() -> None:
    there = hiding()
    hold_a_queue(there)
    with pytest.raises(OptprobeError, match="1 of 1 threads that are just ending cannot"):
        saved(there, COUNTED)


@pytest.mark.parametrize("offset", [0x30, 0x34], ids=["real-time", "deadline"])
def test_counted_and_perhaps_on_a_queue_of_another_class(offset: int) -> None:
    there = hiding()
    there.put(CPUS[1] + 0x2000 + offset, b"\1")
    with pytest.raises(OptprobeError, match="cannot be found"):
        saved(there, COUNTED)


def test_counted_and_nowhere_to_hide() -> None:
    assert saved(hiding(), COUNTED)


@pytest.mark.parametrize("registers", [{"eflags": 0x200}, {"cpl": 3, "k_gs_base": CPUS[1]}], ids=["kernel", "user"])
def test_nobody_moves_threads_with_interrupts_on(registers: Mapping[str, int]) -> None:
    there = guest(second=registers)
    count_exiting(there, 8, 7)
    hold_a_queue(there)
    assert saved(there, COUNTED)


@pytest.mark.parametrize(("count", "state", "moves"), [(1, 0, False), (2, 0, True), (1, 1, True), (257, 0, True)])
def test_a_thread_that_ends_moves_others_only_as_it_gives_up_its_cpu(count: int, state: int, moves: bool) -> None:
    there = on_a_cpu(count, state)
    if moves:
        with pytest.raises(OptprobeError, match="cannot be found"):
            saved(there, COUNTED)
    else:
        assert ENDING in words(there, COUNTED)


@pytest.mark.parametrize(("count", "moves"), [(0x101, True), (0x10000, False), (0x10102, False), (0x110001, True)])
def test_a_hard_interrupt_moves_nobody(count: int, moves: bool) -> None:
    there = hiding()
    hold_a_queue(there, count)
    if moves:
        with pytest.raises(OptprobeError, match="cannot be found"):
            saved(there, COUNTED)
    else:
        assert saved(there, COUNTED)


def test_one_found_does_not_stand_for_another() -> None:
    there = queued(guest())
    count_exiting(there, 9, 7)
    hold_a_queue(there)
    with pytest.raises(OptprobeError, match="1 of 2 threads that are just ending cannot"):
        saved(there, COUNTED)


def test_a_dead_thread_that_is_not_reaped_is_not_counted() -> None:
    there = guest()
    end_thread(there, "thread")
    there.put_words(TASKS["thread"] + 8, DEAD)
    count_exiting(there, 8, 7)
    hold_a_queue(there)
    with pytest.raises(OptprobeError, match="cannot be found"):
        saved(there, COUNTED)


@pytest.mark.parametrize("preempt_count", [0, 3, 1 << 31])
def test_on_a_cpu_and_surely_counted(preempt_count: int) -> None:
    there = on_a_cpu(preempt_count)
    hold_a_queue(there)
    assert ENDING in words(there, COUNTED)


@pytest.mark.parametrize("preempt_count", [1, 2, 0x101, 0x10001])
def test_on_a_cpu_where_it_may_be_counted_no_more(preempt_count: int) -> None:
    there = on_a_cpu(preempt_count)
    hold_a_queue(there)
    with pytest.raises(OptprobeError, match="cannot be found"):
        saved(there, COUNTED)


def test_on_a_cpu_and_dead() -> None:
    there = on_a_cpu(3, DEAD)
    hold_a_queue(there)
    with pytest.raises(OptprobeError, match="cannot be found"):
        saved(there, COUNTED)


@pytest.mark.parametrize(("mode", "matters"), [(0, False), (1, False), (2, True), (3, True)])
def test_without_preemption_none_can_hide_a_pc(mode: int, matters: bool) -> None:
    there = hiding()
    there.put(MODE, mode.to_bytes(4, "little"))
    hold_a_queue(there)
    names: Mapping[str, int] = {**COUNTED, "preempt_dynamic_mode": MODE}
    if matters:
        with pytest.raises(OptprobeError, match="just ending"):
            saved(there, names)
    else:
        assert saved(there, names)


def test_listed() -> None:
    there = guest()
    circle(there, CPUS[1] + PER_CPU_EXITING + 0x30, TASKS["ending"] + 0x170)
    assert ENDING in words(there, LISTED)


def test_listed_where_the_list_is_broken() -> None:
    there = guest()
    there.put_words(CPUS[1] + PER_CPU_EXITING + 0x30, TASKS["ending"] + 0x170)
    with pytest.raises(OptprobeError, match="broken"):
        saved(there, LISTED)


def test_a_kernel_without_preemption() -> None:
    there = queued(guest())
    assert ENDING not in words(there, NAMES)


@pytest.mark.parametrize(
    ("names", "ending", "hides"),
    [(COUNTED, 0, False), (COUNTED, 1, True), (LISTED, 1, False), (NAMES, 0, True)],
    ids=["counted-none", "counted-one", "listed", "no-account"],
)
def test_return_addresses_may_be_hidden(names: Mapping[str, int], ending: int, hides: bool) -> None:
    """Of a thread that ends and sleeps, wherever that is, so that a stack that nobody has may be its."""
    there = guest()
    count_exiting(there, 7 + ending, 7)
    assert Stacks(kernel(there, names, OFFSETS), there, ("rip",)).hides() is hides
