"""What is released comes back when nobody is inside, and it is told what that took."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.maps import journal_format as form
from gdb_optprobe.probes.collector import PAGE, PATIENCE, Collector, Trigger
from gdb_optprobe.probes.kernel_rethooks import KernelRethooks
from tests.detours.fakes import FakeMemory

START, SIZE, EACH = 0xFFFFFFFF82000000, 4 * PAGE, 64
FILL = 0xCC


@dataclass
class Guest:
    """One thread, whose saved PC is `pc`."""

    stacks_missing: str = ""
    pc: int = 0
    fails: bool = False
    another: bool = False
    machine: FakeMemory = field(default_factory=lambda: FakeMemory(START, bytes([FILL]) * SIZE))

    def check_alive(self) -> None:
        if self.another:
            raise OptprobeError("the guest is not the one that was probed")

    def saved(self) -> Iterable[SavedWords]:
        if self.fails:
            raise OptprobeError("a thread is just ending")
        return [SavedWords("vCPU 0", 0, array("Q", [0])), SavedWords("thread 7", START - 4096, array("Q", [self.pc]))]


class NoPad:
    def remove_breakpoint(self) -> None:
        """It has none."""


@dataclass
class InstancesView:
    active: tuple[()] = ()


@dataclass
class Closed:
    """A function's calls, whose probes are deleted and whose trampoline is gone."""

    memory: Slot
    address: int = START
    closed: bool = True
    older: list[Closed] = field(default_factory=list)
    stop_handlers: NoPad = field(default_factory=NoPad)

    def forget_trampolines(self, dirty: set[int]) -> None:
        """It has no trampoline."""

    def read_calls(self, guest: object) -> InstancesView:
        return InstancesView()


class World:
    def __init__(self, stacks_missing: str = "") -> None:
        self.arena = Arena(Ranges(((START, START + SIZE),), (), FILL))
        self.guest = Guest(stacks_missing)
        self.collector = Collector(self.guest, KernelRethooks(), self.guest.check_alive)  # type: ignore[arg-type]

    def released(self, count: int) -> list[Slot]:
        """Detours that stood, and that nothing leads to any more."""
        slots = [self.arena.allocate_code(EACH, START, 1 << 31) for _ in range(count)]
        for slot in slots:
            self.guest.machine.write(slot.address, b"\x90" * EACH)
            self.arena.code.release(slot)
        return slots

    def holds(self, slot: Slot) -> set[int]:
        return set(self.guest.machine.read(slot.address, slot.size))


def test_freed_memory_traps_and_what_somebody_is_in_stays() -> None:
    world = World()
    slots = world.released(5)
    world.guest.pc = slots[2].address + 1
    assert world.collector.collect(world.arena, Trigger.COMMIT) == 4
    assert [world.holds(slot) for slot in slots] == [{FILL}, {FILL}, {0x90}, {FILL}, {FILL}]
    view = world.collector.view(world.arena)
    assert view is not None and view.runs == {"commit": 1} and view.longest == view.total > 0
    assert (view.slots, view.bytes, view.stacks, view.garbage_slots) == (4, 4 * EACH, 1, 1)


def test_it_runs_by_itself_from_a_page_of_garbage_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    kept = world.released(PAGE // EACH)
    world.collector.collect_if_due(world.arena)
    assert len(world.arena.dirty()) == len(kept), "a page is not beyond a page"
    kept += world.released(1)
    world.guest.fails = True
    world.collector.collect_if_due(world.arena)
    world.guest.fails = False
    world.collector.collect_if_due(world.arena)
    assert len(world.arena.dirty()) == len(kept), "it has just tried"
    now += PATIENCE
    world.collector.collect_if_due(world.arena)
    assert world.arena.dirty() == ()
    view = world.collector.view(world.arena)
    assert view is not None and view.runs == {"garbage": 2} and view.failed == 1


def test_more_garbage_needs_no_patience() -> None:
    world = World()
    world.guest.pc = world.released(1 + PAGE // EACH)[0].address
    world.collector.collect_if_due(world.arena)
    assert len(world.arena.dirty()) == 1
    slots = world.released(PAGE // EACH)
    world.guest.pc = 0
    world.collector.collect_if_due(world.arena)
    assert world.arena.dirty() == () and world.holds(slots[0]) == {FILL}


def test_quarantine_where_stacks_cannot_be_told() -> None:
    world = World("nobody knows its threads")
    assert world.collector.view(world.arena) is None
    slots = world.released(2 * PAGE // EACH)
    world.collector.collect_if_due(world.arena)
    assert world.collector.collect(world.arena, Trigger.MEMORY) == 0
    assert world.holds(slots[0]) == {0x90}
    view = world.collector.view(world.arena)
    assert view is not None and (view.runs, view.quarantined) == ({}, "nobody knows its threads")
    assert (view.garbage_slots, view.garbage_bytes) == (len(slots), 2 * PAGE)


def test_another_guest_s_memory_is_left_alone() -> None:
    world = World()
    (slot,) = world.released(1)
    world.guest.another = True
    with pytest.raises(OptprobeError, match="not the one"):
        world.collector.collect(world.arena, Trigger.COMMIT)
    assert world.holds(slot) == {0x90}


def test_nothing_released_is_no_run() -> None:
    world = World()
    assert world.collector.collect(world.arena, Trigger.COMMIT) == 0
    assert world.collector.view(world.arena) is None


def test_why_nothing_is_freed_is_told_until_it_is() -> None:
    world = World()
    world.released(1)
    world.guest.fails = True
    assert world.collector.collect(world.arena, Trigger.COMMIT) == 0
    assert world.collector.blocked_by == "a thread is just ending"
    world.guest.fails = False
    assert world.collector.collect(world.arena, Trigger.COMMIT) == 1 and not world.collector.blocked_by


def test_what_is_freed_is_noted_at_once() -> None:
    """A GDB that is killed then leaves no more than is in use."""
    memory = FakeMemory(0x1000, bytes(0x1000))
    world = World()
    world.arena.journal = journal = Journal(memory, 0x1000, 0x1000)
    journal.begin()
    (slot,) = world.released(1)
    journal.put(Item.CODE, slot.address, [])
    journal.flush()

    def noted() -> bool:
        found = form.decode(memory.read(0x1000, 0x1000), 0)
        return found is not None and f"{Item.CODE} {slot.address:x}" in found.state

    assert noted()
    world.collector.collect(world.arena, Trigger.COMMIT)
    assert not noted()


def test_the_table_of_a_function_goes_with_its_memory_where_no_code_waits() -> None:
    """Its memory is used again by whatever comes next: a journal that knows two owners is not believed."""
    data = (START + SIZE, START + 2 * SIZE)
    arena, guest = Arena(Ranges(((START, START + SIZE),), (data,), FILL)), Guest()
    returns = KernelRethooks()
    slot = arena.allocate_data(64, START, 1 << 31)
    point = Closed(slot)
    returns.known = [point]  # type: ignore[list-item]
    arena.journal.put(Item.POINT, slot.address, [START, 1, 0])
    arena.data.release(slot)
    found = Collector(guest, returns, lambda: None)  # type: ignore[arg-type]
    assert found.collect(arena, Trigger.MEMORY) == 0
    assert arena.data.is_empty and returns.known == []
    assert not any(key.startswith("point") for key in arena.journal.state)


def test_commit_waits_for_a_trampoline_that_no_active_call_returns_to() -> None:
    """A thread is still inside; one that calls may return to for as long as they like is not waited for."""
    world = World()
    for active, expected in ((1, 0), (0, 1)):
        (slot,) = world.released(1)
        held = SimpleNamespace(active=[0] * active)
        point = SimpleNamespace(retired_trampolines={slot.address: None}, read_calls=lambda _, held=held: held)
        world.collector.rethooks.known = [point]  # type: ignore[list-item]
        assert len(world.collector.unsettled(world.arena)) == expected
        world.arena.code.reclaim([slot])
