"""Threads run a function while probes come and go in any order: nothing else may change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdb_optprobe.detours.arena import Ranges
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from tests.examples import examples
from tests.probes.threads import START, World

COMMANDS = ("add", "boost", "delete", "disable", "enable")
STEPS = st.tuples(st.sampled_from(COMMANDS), st.integers(0, 14), st.integers(0, 1), st.integers(0, 40))


# Somebody inside a detour that is left, when its way back becomes the middle of a new branch.
@example([("add", 9, 0, 9), ("delete", 0, 0, 0), ("add", 10, 0, 5)])
# Somebody inside a boosted copy whose probe goes as the instruction behind it comes into a new branch.
@example([("boost", 11, 0, 0), ("add", 10, 0, 11), ("delete", 0, 0, 40)])
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_whatever_comes_and_goes_threads_compute_what_they_did(orders: list[tuple[str, int, int, int]]) -> None:
    world = World()
    for what, where, thread, steps in orders:
        world.command(what, where)
        world.run(thread, steps)
    world.end()


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_counts_are_exact_where_no_thread_is_in_a_detour(orders: list[tuple[str, int, int, int]]) -> None:
    world = World()
    for what, where, thread, steps in orders:
        world.leave_detours()
        world.command(what, where)
        world.run(thread, steps)
    world.leave_detours()
    for probe in world.session.registry.probes():
        assert world.session.hits(probe.number) == world.expected[probe.number]
    world.end()


def test_addresses_that_can_be_probed_are_not_said_to_be_none() -> None:
    world = World()
    where = f"*{world.addresses[0]:#x}"
    with pytest.raises(OptprobeError, match=r"none of the 1 addresses of .* can be emulated"):
        world.session.add(Spec(where, glob=True, tier="emulated"))
    assert len(world.session.add(Spec(where, glob=True))) == 1


def test_explain_knows_as_add_does_that_no_detour_is_within_reach() -> None:
    world = World()
    far = START + (1 << 40)
    world.arena.__init__(Ranges(((far, far + 0x1000),), ((far + 0x1000, far + 0x2000),), 0xCC))  # type: ignore[misc]
    where = f"*{world.addresses[0]:#x}"
    (told,) = world.session.explain(Spec(where))
    (view,) = world.session.add(Spec(where))
    assert told.reason is not None and view.reason is not None
    assert (told.tier, told.reason.code) == (view.tier, view.reason.code) == ("breakpoint", "ARENA_OUT_OF_REACH")


def test_several_locations_of_one_add_are_probed_all_or_none() -> None:
    world = World()
    first, second, *_ = (Spec(f"*{address:#x}") for address in world.addresses)
    outside = Spec(f"*{START + (1 << 40):#x}")
    text = world.guest.read_text()
    with pytest.raises(OptprobeError):
        world.session.add(first, second, outside)
    assert not world.session.registry.probes() and world.guest.read_text() == text
    assert [view.location for view in world.session.add(second, first, second)] == [second.location, first.location]
    assert world.session.last_number == world.session.registry.probes()[-1].number


def test_all_locations_of_one_add_are_counted_against_max_probes() -> None:
    world = World()
    specs = [Spec(f"*{address:#x}") for address in world.addresses[:3]]
    world.guest.settings = replace(Settings(), max_probes=2)
    with pytest.raises(OptprobeError, match=r"\*0x\w+,\*0x\w+,\*0x\w+ has 3 addresses and max-probes is 2"):
        world.session.add(*specs)
    assert not world.session.registry.probes()
