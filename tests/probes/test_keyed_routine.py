"""Actions that are the same at every function: their detours call one routine, which fills maps keyed by function."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.probes import block_routines, shared_maps
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import CODE, DATA, FILL, START, THREADS, Body, FakeGuest
from tests.probes.test_batch import AT, BODY, COUNT, LOOP, functions, run, text
from tests.probes.test_routine import fails_at_any_write, one_of_two
from tests.probes.test_shared_maps import Gathered, alone, gathered

ACTIONS = ("count by $rbx", "sum($rdx) by ($rbx, $rcx)", "max($rdx)", "avg($rcx)", "lhist($rcx, 0, 4, 2) by $rsi")
KEYED = Spec("f*", glob=True, actions=ACTIONS, condition="$rdx == 3")


def added(guest: FakeGuest, spec: Spec = KEYED) -> Session:
    session = guest.session()
    assert len(session.add(spec)) == COUNT and [len(block) for block in session.registry.blocks] == [COUNT]
    return session


def maps_of(session: Session) -> SharedMaps:
    (maps,) = {id(one): one for block in session.registry.blocks if (one := block.handler.shared)}.values()
    return maps


def everything(session: Session) -> Sequence[Gathered]:
    return [gathered(view) for view in session.reports()]


def empty(session: Session) -> bool:
    """Return whether the arena can be given back, with nothing left in its code."""
    session.commit(0)
    guest = session.target.guest
    return session.optimizer.release_arena() and {*guest.machine.read(CODE, DATA - CODE)} == {FILL}


@pytest.mark.parametrize("condition", ["", "$rdx == 3", "$rbx == 7"])
def test_each_function_has_what_it_would_have_alone(condition: str) -> None:
    guest = one_of_two()
    spec = Spec("f*", glob=True, actions=ACTIONS, condition=condition)
    session = added(guest, spec)
    run(guest)
    found = everything(session)
    assert found == [*alone(one_of_two(), AT[:2], spec), *found[2:]] and len(found) == COUNT
    assert {one.lost for view in session.reports() for one in view.objects} == {0}
    assert all(one == found[0] for one in found) and session.check() == ()
    assert {view.hits for view in session.reports()} == {1 if "rbx" in condition else THREADS}
    guest.run_to(1, AT[COUNT // 2])
    views = session.reports()
    assert [view.hits - 1 for view in views[COUNT // 2 :]] == [views[-1].hits - 1] * (COUNT - COUNT // 2)
    counted = [dict(one["count by $rbx"]) for one in everything(session)]
    assert [one[(7,)] for one in counted] == [2] * (COUNT // 2) + [1] * (COUNT - COUNT // 2)


def test_a_function_takes_the_call_and_a_word() -> None:
    session = added(one_of_two())
    (block,) = session.registry.blocks
    assert (block.step, block.data.size) == (16, 8 * COUNT)
    detour = session.views()[0].detour
    assert detour is not None and detour.own_least < 100 < detour.own, "what the routine runs is of each hit's cost"


def test_registers_are_as_without_probes() -> None:
    probed, plain = one_of_two(), one_of_two()
    added(probed)
    for guest in (probed, plain):
        run(guest)
        run(guest)
    kept = {*probed.isa.registers} - {"eflags"} - probed.isa.dead_at_entry().registers
    for one, other in zip(probed.machine.threads, plain.machine.threads, strict=True):
        held, wanted = (dict(zip(probed.isa.registers, state, strict=True)) for state in (one, other))
        assert all(held[name] == wanted[name] for name in kept)


def test_those_by_themselves_go_on_in_the_same_maps() -> None:
    guest = one_of_two()
    session = added(guest)
    maps = maps_of(session)
    run(guest)
    before = everything(session)
    session.disable([3])
    session.delete([5])
    session.add(Spec(f"*{AT[6]:#x}", actions=("count",)))  # its detour is laid out anew
    assert [gathered(view) for view in session.reports() if view.number <= COUNT] == before[:4] + before[5:]
    run(guest)
    hits = {view.number: view.hits for view in session.reports()}
    assert (hits[1], hits[3], hits[7], hits[COUNT + 1]) == (2 * THREADS, THREADS, 2 * THREADS, THREADS)
    found = {view.number: gathered(view)["count by $rbx"] for view in session.reports() if view.number <= COUNT}
    twice = {(0,): 2, (7,): 2}
    assert found == {number: {(0,): 1, (7,): 1} if number == 3 else twice for number in found}
    assert session.check() == () and maps_of(session) is maps and maps.users == {3, 7}
    session.delete()
    assert text(guest) == text(functions()) and not session.block_routines.placed
    run(guest)
    assert maps.memory is None and empty(session)


def test_all_by_themselves_count_on() -> None:
    guest = one_of_two()
    session = added(guest)
    run(guest)
    assert len(session.registry.probes()) == COUNT and not session.registry.blocks
    run(guest)
    assert all(one["count by $rbx"] == {(0,): 2, (7,): 2} for one in everything(session))
    session.delete()
    run(guest)
    assert text(guest) == text(functions()) and empty(session)


def test_disabled_and_enabled() -> None:
    guest = one_of_two()
    session = added(guest)
    session.disable()
    run(guest)
    assert text(guest) == text(functions())
    session.enable()
    run(guest)
    assert session.registry.blocks and {view.hits for view in session.reports()} == {THREADS}


@pytest.mark.parametrize("inside", [False, True])
def test_cleared(inside: bool) -> None:
    guest = one_of_two()
    session = added(guest)
    run(guest)
    session.clear([4])
    zero = {"max($rdx)": {(): None}, "avg($rcx)": {(): None}, ACTIONS[1]: {(0, 2): 0, (7, 2): 0}}
    found = {view.number: view for view in session.reports()}
    assert found[4].hits == 0 and {key: rows for key, rows in gathered(found[4]).items() if rows} == zero
    assert found[5].hits == THREADS and gathered(found[5])["count by $rbx"] == {(0,): 1, (7,): 1}
    if inside:  # the keys stay, for it may be about to count
        guest.run_to(0, AT[3])
        guest.step(0)
    session.clear()
    assert {view.hits for view in session.reports()} == {0}
    held = guest.machine.read(maps_of(session).memory.address, maps_of(session).size)  # type: ignore[union-attr]
    fresh = b"".join(one.initial() for one in maps_of(session).shapes)
    assert (held == fresh) is not inside
    run(guest)
    run(guest)
    assert gathered(session.reports()[-1])["count by $rbx"] == {(0,): 2, (7,): 2}


def test_what_finds_no_room_is_counted_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_maps, "LEAST_BITS", 1)
    monkeypatch.setattr(shared_maps, "TIMES", 1)
    guest = one_of_two()
    guest.settings = Settings(table_keys=8)
    session = added(guest, Spec("f*", glob=True, actions=("count by $rbx",)))
    run(guest)
    views = session.reports()
    assert {view.hits for view in views} == {THREADS}, "hits are exact all the same"
    kept = sum(sum(one["count by $rbx"].values()) for one in map(gathered, views))  # type: ignore[arg-type]
    together = THREADS * COUNT - kept
    objects = [one for view in views for one in view.objects]
    assert together > 0 and {(one.lost, one.lost_together) for one in objects} == {(None, together)}
    (one,) = session.reports([3])[0].objects
    assert (one.lost, one.lost_together) == (None, together)
    session.clear()
    run(guest)
    assert {one.lost_together for view in session.reports() for one in view.objects} == {together}


@pytest.mark.parametrize("unpacked", [(), (1, 9)])
@pytest.mark.parametrize("laid_out", [False, True])
def test_another_gdb_takes_the_block_over(unpacked: tuple[int, ...], laid_out: bool) -> None:
    guest = one_of_two()
    session = added(guest)
    session.registry.probes(unpacked)
    if laid_out and unpacked:
        session.add(Spec(f"*{AT[8]:#x}"))
    run(guest)
    later = guest.after(())
    other = later.session()
    recovered = adopt.recover(other)
    assert not recovered.lost and other.registry.blocks and other.check() == ()
    run(later)
    found = [gathered(view) for view in other.reports() if view.number <= COUNT]
    assert len(found) == COUNT and all(one["count by $rbx"] == {(0,): 2, (7,): 2} for one in found)
    # What has left its block for a look alone is in it again.
    assert maps_of(other).users == ({*unpacked} if laid_out else set())
    other.delete()
    run(later)
    assert text(later) == text(functions()) and empty(other)


def test_a_register_that_some_functions_overwrite_at_once_is_read() -> None:
    """What is dead at one function's entry is an argument at another's: the routine keeps it for all."""
    body = code("ba 07 00 00 00  mov $7,%edx\nc3  ret")
    others = [START + 0x3000 + 32 * number for number in range(COUNT)]
    calls = b"".join(
        b"\xe8" + (to - LOOP - 5 * number - 5).to_bytes(4, "little", signed=True) for number, to in enumerate(others)
    )
    loop = calls + b"\xe9" + (-len(calls) - 5).to_bytes(4, "little", signed=True)
    bodies = [Body(f"f{number}", at, BODY, tracer=0) for number, at in enumerate(AT)]
    bodies += [Body(f"f_{number}", at, body) for number, at in enumerate(others)]
    guest = FakeGuest((*bodies, Body("loop", LOOP, loop)))
    guest.start_threads(LOOP)
    session = guest.session()
    session.add(Spec("f*", glob=True, actions=("count by $rdx",)))
    assert [len(block) for block in session.registry.blocks] == [COUNT, COUNT]
    assert len({id(block.handler.shared) for block in session.registry.blocks}) == 1
    run(guest)
    later = guest.after(())
    other = later.session()
    assert not adopt.recover(other).lost and len(other.registry.blocks) == 2
    found = [gathered(view)["count by $rdx"] for view in other.reports() if view.hits]
    assert found == [{(3,): THREADS}, *[{(7,): THREADS}] * (COUNT - 1)]
    other.delete()
    assert text(later) == text(FakeGuest((*bodies, Body("loop", LOOP, loop)))) and empty(other)


def test_a_block_that_is_not_adopted_leaves_no_maps() -> None:
    guest = one_of_two()
    session = added(guest)
    (routine,) = session.block_routines.placed
    guest.machine.write(routine.address, b"\x90")
    later = guest.after(())
    other = later.session()
    recovered = adopt.recover(other)
    assert not recovered.probes and len(recovered.lost) == 1
    assert text(later) == text(functions())
    run(later)
    other.commit(0)
    assert other.optimizer.arena is not None and not other.optimizer.arena.data.dirty


@pytest.mark.parametrize("takes_out", [True, False])
def test_a_killed_gdb_leaves_what_is_removed_or_taken_over(takes_out: bool) -> None:
    guest = one_of_two()
    session = added(guest)
    run(guest)
    session.registry.probes([5])
    session.optimizer.write_records(session.registry.single_probes())
    session.disable([7])
    session.clear()
    session.delete()
    for number in range(0, len(guest.machine.writes) + 1, 2 if takes_out else 3):
        later = one_of_two().after(guest.machine.writes[:number])
        run(later)
        other = later.session()
        if other.target.arena_source.left() is not None:
            if takes_out:
                adopt.remove(other, 0)
            else:
                adopt.recover(other)
                assert other.check() == () and len(other.reports()) in (0, COUNT)
                run(later)
                other.delete()
        run(later)
        assert text(later) == text(functions())
        assert other.optimizer.arena is None or empty(other)


def test_a_batch_that_fails_leaves_nothing() -> None:
    counted = one_of_two()
    added(counted)
    fails_at_any_write(KEYED, len(counted.machine.writes))


def test_of_every_function_those_without_a_call_leave_room_for_others() -> None:
    """They would each have the whole program: of so many functions they are left out, of few they are not."""
    body = code("48 8d 44 40 07  lea 7(%rax,%rax,2),%rax\nc3  ret")
    for number in (2, 60):
        bodies = [Body(f"f{index}", at, BODY, tracer=0) for index, at in enumerate(AT)]
        bodies += [Body(f"g{index}", START + 0x3000 + 32 * index, body) for index in range(number)]
        guest = FakeGuest(tuple(bodies))
        session = guest.session()
        views = session.add(Spec("*", glob=True, actions=ACTIONS))
        left_out = [one.text for view in views for one in view.left_out]
        assert [len(block) for block in session.registry.blocks] == [COUNT]
        if number == 2:
            assert len(views) == COUNT + 2 and not left_out
        else:
            assert len(views) == COUNT and len(left_out) == 60 and all("cannot call" in text for text in left_out)


def test_a_small_glob_has_its_actions_in_each_detour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_routines, "INLINE", 1)
    session = one_of_two().session()
    session.add(Spec("f*", glob=True, actions=("count by $rbx",)))
    assert not session.registry.blocks and not session.block_routines.placed
    assert len({id(probe.handler.shared) for probe in session.registry.probes()}) == 1


@pytest.mark.parametrize(
    "action",
    ["count by $rsp", "sum(*(int *)$rdi)", "avg($rdx / $rcx)", "record($rdx)", "count by $r11", "hist(rdx)", "stop"],
)
def test_what_differs_by_function_or_may_fault_is_put_in_alone(action: str) -> None:
    session = functions().session()
    assert session.batches.add(Spec("f*", glob=True, actions=(action,)), AT) == []
    assert not session.registry.blocks and not session.block_routines.placed
    assert session.optimizer.arena is None or session.optimizer.arena.data.is_empty
