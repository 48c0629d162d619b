"""Maps that the probes of a glob share: each probe has what a map of its own would have, in memory that all use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.maps import aggregate
from gdb_optprobe.probes import shared_maps
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.views import ProbeView
from gdb_optprobe.recovery import adopt
from tests.fake_guest import CODE, DATA, FILL, STACKS, THREADS, FakeGuest, OneArena
from tests.probes.test_batch import AT, functions, run, text

GLOB = Spec("f1*", glob=True, actions=("count by $rsp", "sum($rcx) by ($rsp, $rcx)", "max($rax)"))
MEMBERS = 11  # f1, f10 … f19
Gathered = Mapping[str, Mapping[tuple[int | str, ...], object]]


def gathered(view: ProbeView) -> Gathered:
    return {
        one.action: {row.key: aggregate.value(one.aggregate, row.words) for row in one.rows} for one in view.objects
    }


def used(session: Session) -> int:
    assert session.optimizer.arena is not None
    return session.optimizer.arena.data.used


def alone(guest: FakeGuest, addresses: Sequence[int], spec: Spec = GLOB) -> list[Gathered]:
    """Return what probes with maps of their own gather in one round."""
    guest.settings = Settings(table_keys=32)
    session = guest.session()
    for at in addresses:
        session.add(Spec(f"*{at:#x}", actions=spec.actions, condition=spec.condition))
    run(guest)
    return [gathered(view) for view in session.reports()]


def own(views: Sequence[ProbeView]) -> list[int]:
    return [view.address for view in views]


def test_each_probe_has_what_it_would_have_alone() -> None:
    guest = functions()
    session = guest.session()
    views = session.add(GLOB)
    assert len(views) == MEMBERS
    run(guest)
    found = [gathered(view) for view in session.reports()]
    assert found == alone(functions(), own(views))
    assert all(len(one["count by $rsp"]) == THREADS for one in found)
    assert session.reports([3])[0].objects == session.reports()[2].objects and session.check() == ()


def test_the_memory_is_that_of_one_map() -> None:
    session, single = functions().session(), functions().session()
    session.add(GLOB)
    single.add(Spec(f"*{AT[0]:#x}", actions=GLOB.actions))
    (maps,) = {id(probe.handler.shared): probe.handler.shared for probe in session.registry.probes()}.values()
    assert maps is not None and maps.memory is not None
    assert used(session) - maps.memory.size < used(single) / 10
    assert maps.memory.size <= 0x48000 // 2, "half of the memory that the guest has"


@pytest.mark.parametrize("keys", [2, 512])
def test_what_finds_no_room_is_counted_for_its_probe(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_maps, "LEAST_BITS", 1)
    guest = functions()
    guest.settings = Settings(table_keys=keys)
    session = guest.session()
    # Keys that differ at each hit: 33 places of 2 keys and 16 more are too few for 22 functions and threads.
    session.add(Spec("f1*", glob=True, actions=("count by ($rsp, $rax)",)))
    for _ in range(4):
        run(guest)
    views = session.reports()
    totals = Counter({view.number: sum(row.words[0] for row in view.objects[0].rows) for view in views})
    assert all(totals[view.number] + view.objects[0].lost == view.hits == 4 * THREADS for view in views)
    assert any(view.objects[0].lost for view in views) == (keys == 2)


def test_clearing_one_leaves_the_others() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    before = [gathered(view) for view in session.reports()]
    session.clear([3])
    after = [gathered(view) for view in session.reports()]
    assert after[:2] + after[3:] == before[:2] + before[3:]
    assert (after[2]["count by $rsp"], session.hits(3)) == ({}, 0)
    run(guest)
    assert len(gathered(session.reports([3])[0])["count by $rsp"]) == THREADS
    session.clear()
    assert [view.hits for view in session.reports()] == [0] * MEMBERS
    assert not any(one.rows and one.keys for view in session.reports() for one in view.objects)
    run(guest)
    assert {session.hits(number) for number in range(1, MEMBERS + 1)} == {THREADS}


def test_a_thread_that_is_inside_as_all_is_cleared_finds_its_slot_again() -> None:
    """It is stopped at each instruction of a hit; what it still counts is counted."""
    for steps in range(1, 60):
        guest = functions()
        session = guest.session()
        session.add(Spec("f1*", glob=True, actions=("count by $rsp",)))
        for number in range(THREADS):
            guest.run_to(number, AT[1])
        for _ in range(steps):
            guest.step(0)
        session.clear()
        run(guest)
        assert session.check() == ()
        view = session.reports([1])[0]
        assert sum(row.words[0] for row in view.objects[0].rows) in (THREADS, THREADS - 1)


def test_one_is_deleted_and_then_all_and_nothing_is_left() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    before = used(session)
    session.delete([2])
    run(guest)
    assert {view.hits for view in session.reports()} == {THREADS} and len(session.reports()) == MEMBERS - 1
    session.commit(0)
    assert 0 < before - used(session) < 64, "the maps stay with the others"
    session.delete()
    session.commit(0)
    assert text(guest) == text(functions()) and session.optimizer.release_arena()


def test_disabled_and_enabled() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    session.disable([1])
    run(guest)
    session.enable([1])
    run(guest)
    assert [view.hits for view in session.reports()][:2] == [2 * THREADS, 3 * THREADS]
    assert sum(row.words[0] for row in session.reports([1])[0].objects[1].rows) == 2 * THREADS


def test_another_gdb_takes_the_maps_over() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    session.delete([4])
    run(guest)
    before = [(view.number, view.hits, gathered(view)) for view in session.reports()]
    later = guest.after(())
    other = later.session()
    recovered = adopt.recover(other)
    assert not recovered.lost
    assert [(view.number, view.hits, gathered(view)) for view in other.reports()] == before
    assert len({id(probe.handler.shared) for probe in other.registry.probes()}) == 1
    run(later)
    assert {view.hits for view in other.reports()} == {2 * THREADS} and other.check() == ()
    other.delete()
    other.commit(0)
    assert text(later) == text(functions()) and other.optimizer.release_arena()


def test_a_gdb_that_is_killed_at_any_write_leaves_what_is_removed() -> None:
    guest = functions()
    session = guest.session()
    session.add(Spec("f1?", glob=True, actions=("count by $rsp",)))
    run(guest)
    session.delete()
    writes = list(guest.machine.writes)
    for number in range(0, len(writes) + 1, 3):
        later = functions().after(writes[:number])
        run(later)
        other = later.session()
        if other.target.arena_source.left() is not None:
            adopt.remove(other, 0)
        run(later)
        assert text(later) == text(functions())


def test_histograms_are_cells_where_they_fit_and_a_map_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("f1*", glob=True, actions=("hist($rax)", "min($rcx)"))
    guest = functions()
    session = guest.session()
    views = session.add(spec)
    assert all(probe.handler.shared is None for probe in session.registry.probes())
    run(guest)
    cells = [gathered(view) for view in session.reports()]
    monkeypatch.setattr(shared_maps.SharedMaps, "decide", lambda maps, cells: setattr(maps, "cells", True))
    other = functions()
    mapped = other.session()
    mapped.add(spec)
    assert all(one.keys == 0 and len(one.rows) == 1 for view in mapped.reports() for one in view.objects), "all zero"
    run(other)
    assert [gathered(view) for view in mapped.reports()] == cells == alone(functions(), own(views), spec)
    later = other.after(())
    found = later.session()
    assert not adopt.recover(found).lost and [gathered(view) for view in found.reports()] == cells


def test_probes_at_the_same_address_have_their_own_rows() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    session.add(Spec("f1*", glob=True, actions=("count by $rsp",)))
    session.add(Spec(f"*{AT[1]:#x}", actions=("count by $rsp",)))
    run(guest)
    counts = [gathered(view)["count by $rsp"] for view in session.reports()]
    assert len(counts) == 2 * MEMBERS + 1 and all(len(one) == THREADS for one in counts)
    session.delete([1])
    run(guest)
    assert session.hits(MEMBERS + 1) == session.hits(2 * MEMBERS + 1) == 2 * THREADS


def test_hits_that_stop_the_guest_are_the_same() -> None:
    guest = functions()
    guest.settings = Settings(optimization=False, trap=False, boost=False, emulation=False)
    session = guest.session()
    views = session.add(GLOB)
    assert {view.tier for view in views} == {"breakpoint"}
    run(guest)
    assert [gathered(view) for view in session.reports()] == alone(functions(), own(views))


def test_on_every_function_none_stops_the_guest_for_lack_of_memory() -> None:
    """What found no room for its code is left out, and said so."""
    guest = functions()
    guest.arena = Arena(Ranges(((CODE, CODE + 0x800),), ((DATA, STACKS),), FILL))
    guest.arena_source = OneArena(guest.arena)
    session = guest.session()
    views = session.add(Spec("*", glob=True, actions=("count by $rsp",)))
    assert {view.tier for view in views} == {"optimized"} and 0 < len(views) < 20
    left_out = views[0].left_out
    assert len(views) + len(left_out) == len(guest.bodies) and {"no room" in one.text for one in left_out} == {True}
    run(guest)
    assert {view.hits for view in session.reports()} == {THREADS} and session.check() == ()
