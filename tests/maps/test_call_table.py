"""The table of calls: the newest call with a key comes first, and every call is counted once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.maps.call_table import CallSlot, CallTableLayout, Homing, changes

STACK = 0xFFFF_C900_0010_0000


@pytest.mark.parametrize(("saved", "size"), [(0, 16), (1, 32), (2, 32), (3, 64), (6, 64), (7, 128)])
def test_slots_are_powers_of_two_that_hold_all(saved: int, size: int) -> None:
    assert CallTableLayout(4, saved).slot_size == size


def test_the_end_is_marked() -> None:
    layout = CallTableLayout(3)
    assert len(layout.initial()) == layout.size
    assert layout.initial().rstrip(b"\0")[-1:] == b"\1" and layout.initial().count(1) == 1


Step = tuple[int, str]
"""A stack address, by number, and what happens there."""
ONE_KEY = st.integers(0, 2)
STEPS = st.lists(
    st.tuples(st.integers(0, 23) | ONE_KEY, st.sampled_from(("call", "call", "tail", "tail", "return"))), max_size=120
)


@given(st.integers(1, 24), STEPS)
def test_calls_return_where_they_came_from(slots: int, steps: list[Step]) -> None:
    """Against a plain stack for each key. A call is missed only where every slot is taken, by others' or by its own."""
    layout = CallTableLayout(slots, 1)
    data, calls = layout.initial(), dict[int, list[CallSlot]]()
    dead: set[CallSlot] = set()
    missed = returns = dropped = 0
    for step, (place, kind) in enumerate(steps):
        key = STACK + 0x4000 * (place // 3) + 8 * (place % 3) + 1
        under_way = calls.setdefault(key, [])
        before, taken = data, len(layout.decode(data).active)
        if kind == "return":
            if under_way:
                assert layout.find(data, key)[0] == under_way.pop()
                data, returns = layout.remove(data, key), returns + 1
            continue
        new = CallSlot(key, step + 1, (step,))
        data, room = layout.enter(data, new, alive=kind == "tail")
        assert all(data[at : at + 8] == word != before[at : at + 8] for at, word in changes(before, data))
        found = layout.decode(data)
        if kind == "call":
            dead |= set(under_way)
            under_way.clear()
        assert found.dropped >= dropped
        assert room is (taken - (found.dropped - dropped) < slots), "missed only where all are taken"
        dropped = found.dropped
        if room:
            under_way.append(new)
        else:
            missed += 1
        assert layout.find(data, key)[: len(under_way)] == tuple(reversed(under_way)), "the newest first"
    found = layout.decode(data)
    live = {call for each in calls.values() for call in each}
    assert live <= set(found.active) <= live | dead, "who is dead is seen later, or never"
    assert found.missed == missed
    counted = found.returns + found.missed + found.dropped + len(found.active)
    assert sum(kind != "return" for _, kind in steps) == counted + returns


@given(st.integers(1, 100), st.booleans(), st.randoms(use_true_random=False))
def test_there_is_room_for_as_many_calls_as_there_are_slots(slots: int, same: bool, chosen: random.Random) -> None:
    """Whether their stack addresses differ or are one; nobody finds room then, and all return."""
    layout = CallTableLayout(slots)
    data = layout.initial()
    places = [0] * slots if same else chosen.sample(range(4 * slots), slots)
    for number, place in enumerate(places):
        data, room = layout.enter(data, CallSlot(STACK + 16 * place + 1, number + 1), alive=same)
        assert room
    data, room = layout.enter(data, CallSlot(STACK - 15, 1), alive=False)
    assert not room
    if not same:
        chosen.shuffle(places)
    for place in places:
        data = layout.remove(data, STACK + 16 * place + 1)
    assert layout.decode(data).active == ()


def test_the_dead_make_room_where_no_slot_is_free() -> None:
    layout = CallTableLayout(8)
    data = layout.initial()
    for number in range(8):
        data, room = layout.enter(data, CallSlot(STACK + 1, number + 1), alive=number > 0)
        assert room
    data, room = layout.enter(data, CallSlot(STACK + 1, 9), alive=False)
    found = layout.decode(data)
    assert room and (found.missed, found.dropped, found.active) == (0, 8, (CallSlot(STACK + 1, 9),))


def test_a_search_ends() -> None:
    for slots in 5, 1024:
        looked_at = list(CallTableLayout(slots).search(STACK + 1))
        assert len(looked_at) == len(set(looked_at)) == slots


def test_tasks_that_stand_at_the_same_depth_of_their_stacks_are_spread() -> None:
    """Stacks of threads are 16 KiB, 20 KiB apart with the page between them."""
    for homing in Homing:
        layout = CallTableLayout(512, homing=homing)
        for distance in (0x4000, 0x5000, 0x8000):
            homes = {layout.home(STACK + task * distance + 0x3E58 + 1) for task in range(200)}
            assert len(homes) > 120, distance


@pytest.mark.parametrize("saved", [0, 1, 4])
def test_a_fold_gives_each_stack_and_each_depth_a_home_of_its_own(saved: int) -> None:
    layout = CallTableLayout(512, saved, homing=Homing.FOLD)
    same_depth = {layout.home(STACK + task * 0x8000 + 0x3E50 + 1) for task in range(256)}
    same_stack = {layout.home(STACK + 0x3E50 - depth * layout.slot_size + 1) for depth in range(128)}
    assert len(same_depth) == 256 and len(same_stack) == 128
