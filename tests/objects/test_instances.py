"""The table of calls: the newest call with a key comes first, and every call is counted once."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.objects.instances import WINDOW, Instance, InstancesLayout, changes

STACK = 0xFFFF_C900_0010_0000


@pytest.mark.parametrize(("saved", "size"), [(0, 16), (1, 32), (2, 32), (3, 64), (6, 64), (7, 128)])
def test_slots_are_powers_of_two_that_hold_all(saved: int, size: int) -> None:
    assert InstancesLayout(4, saved).slot_size == size


def test_the_end_is_marked() -> None:
    layout = InstancesLayout(3)
    assert len(layout.initial()) == layout.size
    assert layout.initial().rstrip(b"\0")[-1:] == b"\1" and layout.initial().count(1) == 1


@pytest.mark.parametrize("slots", [1, 3, 16, 512])
def test_random_calls_return_where_they_came_from(slots: int) -> None:
    """Against a plain stack for each key."""
    chosen = random.Random(slots)
    layout = InstancesLayout(slots, 1)
    data, calls = layout.initial(), dict[int, list[Instance]]()
    entries = missed = returns = 0
    dead: list[Instance] = []
    for step in range(2000):
        key = STACK + 0x4000 * chosen.randrange(24) + 8 * chosen.randrange(3) + 1
        under_way = calls.setdefault(key, [])
        if chosen.random() < 0.55:
            alive = chosen.random() < 0.7
            new = Instance(key, step + 1, (step,))
            before = data
            data, room = layout.entered(data, new, alive)
            assert all(data[at : at + 8] == word != before[at : at + 8] for at, word in changes(before, data))
            entries += 1
            if not alive:
                dead += under_way
                under_way.clear()
            if room:
                under_way.append(new)
            else:
                missed += 1
        elif under_way:
            assert layout.find(data, key)[0] == under_way.pop()
            data = layout.left(data, key)
            returns += 1
    found = layout.decode(data)
    live = [call for each in calls.values() for call in each]
    assert set(live) <= set(found.active) <= {*live, *dead}, "who is dead is seen later, or never"
    assert found.missed == missed
    assert entries == found.entries + returns == returns + missed + found.dropped + len(found.active)
    assert bool(missed) is (slots < 512) and found.dropped


def test_a_search_ends() -> None:
    layout = InstancesLayout(1024)
    assert len(list(layout.search(STACK + 1))) == WINDOW
    assert len(set(InstancesLayout(5).search(STACK + 1))) == 5


def test_tasks_that_stand_at_the_same_depth_of_their_stacks_are_spread() -> None:
    """Stacks of threads are 16 KiB, 20 KiB apart with the page between them."""
    layout = InstancesLayout(512)
    for distance in (0x4000, 0x5000, 0x8000):
        homes = {layout.home(STACK + task * distance + 0x3E58 + 1) for task in range(200)}
        assert len(homes) > 120, distance
