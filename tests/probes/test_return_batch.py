"""Return probes that share a hook are as those with one each; a batch that fails leaves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.probes import kernel_rethooks
from gdb_optprobe.probes.block_adoption import BlockAdoption
from gdb_optprobe.probes.return_block import ReturnBlock
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.shared_rethook import SharedRethook
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.views import ProbeView
from gdb_optprobe.recovery import adopt
from tests.fake_guest import CODE, FILL, JOURNAL, THREADS, FakeGuest, Registers, fail_at_write
from tests.probes.test_batch import AT, BODY, COUNT, LOOP, functions, recovered, run, text

GLOB = Spec("f*", Kind.KRETPROBE, glob=True)


def hits(session: Session) -> list[int]:
    return [session.hits(number) for number in range(1, COUNT + 1)]


def code_is_free(guest: FakeGuest) -> bool:
    return set(guest.machine.read(CODE, JOURNAL - CODE)) == {FILL}


def test_every_return_is_counted() -> None:
    guest = functions()
    session = guest.session()
    views = session.add(GLOB)
    assert [view.number for view in views] == [*range(1, COUNT + 1)] and len(session.registry.blocks) == 1
    assert session.check() == ()
    for times in range(1, 4):
        run(guest)
        assert hits(session) == [times * THREADS] * COUNT
        for number in range(THREADS):
            guest.step(number)
    assert session.missed(1) == 0


def test_missed_calls_are_those_of_all_functions_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row says nothing that is not known; without misses each function's number is."""
    monkeypatch.setattr(kernel_rethooks, "slots_for", lambda functions, timed: 1)
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    assert [view.missed for view in session.views()] == [0] * COUNT
    guest.run_to(0, AT[3] + 5)  # its call is in the only slot
    for number in range(1, THREADS):
        guest.run_to(number, AT[5] + 5)  # of its six calls none finds room
    assert {(view.missed, view.missed_together) for view in session.views()} == {(None, 6 * (THREADS - 1))}
    with pytest.raises(OptprobeError, match="of which ones is not known"):
        session.missed(1)


def test_members_are_disabled_and_deleted_where_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no hook of their own for that; only one that is enabled again does."""
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    arena = session.optimizer.arena
    assert arena is not None

    def full(*_: object, **__: object) -> object:
        raise Refused(Refusal.ARENA_FULL.because(used=1, size=1))

    monkeypatch.setattr(arena, "allocate_data", full)
    session.disable([3, 4])
    session.delete([5])
    run(guest)
    assert [session.hits(number) for number in (2, 3, 4, 6)] == [THREADS, 0, 0, THREADS]
    monkeypatch.undo()
    session.enable([3])
    for number in range(THREADS):
        guest.step(number)
    run(guest)
    assert session.hits(3) == THREADS and session.check() == ()
    session.delete()
    run(guest)
    session.commit(0)
    assert session.optimizer.release_arena() and code_is_free(guest)


def test_what_is_saved_is_the_glob_as_long_as_all_are_there() -> None:
    guest = functions()
    bodies = list(guest.bodies)
    bodies[7] = replace(bodies[7], data=BODY[:-1] + bytes.fromhex("ebfe"))  # never returns, so `add` leaves it out
    session = type(guest)(bodies).session()
    session.add(GLOB)
    (line,) = [line for line in session.saved().lines if line.startswith("optprobe add")]
    assert line == "optprobe add f* -glob -return"
    session.delete([5])
    assert len([line for line in session.saved().lines if line.startswith("optprobe add")]) == COUNT - 2


@pytest.mark.parametrize("ran", [False, True])
def test_nothing_is_left_of_a_deleted_batch(ran: bool) -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    if ran:
        run(guest)
    session.delete()
    assert text(guest) == text(functions())
    run(guest)
    session.commit(0)
    assert not session.optimizer.rethooks.known
    assert session.optimizer.release_arena() and code_is_free(guest)


def test_deleted_at_any_instruction_of_a_call() -> None:
    """Whatever a thread does just then, it returns to its caller, and the code stays as long as it is in it."""
    for steps in range(60):
        guest = functions()
        session = guest.session()
        session.add(GLOB)
        for _ in range(steps):
            guest.step(0)
        session.delete()
        assert text(guest) == text(functions())
        session.optimizer.reclaim()
        run(guest)
        session.commit(0)
        assert session.optimizer.release_arena() and code_is_free(guest), steps


def test_one_of_a_batch_is_a_probe_like_any() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    session.disable([3])
    session.delete([5])
    session.add(Spec(f"*{AT[6]:#x}", actions=("count", "hist($rax)")))
    session.add(replace(GLOB, location=f"*{AT[7]:#x}", glob=False))
    run(guest)
    found = {number: session.hits(number) for number in (1, 3, 7, 8, COUNT + 1, COUNT + 2)}
    assert found == {1: THREADS, 3: 0, 7: THREADS, 8: THREADS, COUNT + 1: THREADS, COUNT + 2: THREADS}
    assert session.check() == ()
    session.delete()
    assert text(guest) == text(functions())
    session.commit(0)
    assert not session.optimizer.rethooks.known
    assert session.optimizer.release_arena() and code_is_free(guest)


def test_the_hook_stays_for_those_that_left_the_block() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    session.registry.probes([4])
    assert session.registry.block_of(4) is None
    session.delete([number for number in range(1, COUNT + 1) if number != 4])
    (shared,) = (one for one in session.optimizer.rethooks.known if isinstance(one, SharedRethook))
    run(guest)
    assert session.hits(4) == THREADS
    session.delete()
    assert shared.closed and text(guest) == text(functions())


def test_the_hook_ends_with_a_lost_branch_that_led_there() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    held = guest.machine.read(AT[3], 1)
    guest.machine.write(AT[3], b"\xcc")
    with pytest.raises(OptprobeError, match="1 of 70 probes are left"):
        session.delete()
    (shared,) = (one for one in session.optimizer.rethooks.known if isinstance(one, SharedRethook))
    assert not shared.closed, "a call may be entered"
    guest.machine.write(AT[3], held)
    session.commit(0)
    assert shared.closed and session.optimizer.release_arena() and code_is_free(guest)


def test_disabled_and_enabled_again() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    for number in range(THREADS):
        guest.run_to(number, AT[3] + 5)
    session.disable()
    assert text(guest) == text(functions())
    run(guest)
    before = hits(session)
    assert before == [THREADS] * 4 + [0] * (COUNT - 4)
    session.enable()
    for number in range(THREADS):
        guest.step(number)
        guest.run_to(number, LOOP + 5 * COUNT)
    assert hits(session) == [one + THREADS for one in before]


def test_a_killed_gdb_leaves_what_is_removed() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    added = len(guest.machine.writes)
    run(guest)
    session.delete()
    writes = list(guest.machine.writes)
    assert added < 110, "a batch takes few writes"
    for number in range(len(writes) + 1):
        assert text(recovered(functions().after(writes[:number]))) == text(functions())


def test_a_batch_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = functions()
    counted.session().add(GLOB)
    for number in range(len(counted.machine.writes)):
        guest = functions()
        session = guest.session()
        with monkeypatch.context() as broken:
            broken.setattr(guest.machine, "write", fail_at_write(number, guest.machine.write))
            try:
                session.add(GLOB)
            except OptprobeError:
                assert text(guest) == text(functions()), number
                assert not session.registry.blocks
        run(guest)
        session.delete()
        assert text(guest) == text(functions()), number


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_another_gdb_takes_a_batch_over(steps: int) -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    for _ in range(steps):
        guest.step(0)
    other = guest.copy()
    second = other.session()
    found = adopt.recover(second)
    assert found.lost == () and len(found.probes) == COUNT
    assert len(second.registry.blocks) == 1 and second.check() == ()
    before = hits(second)
    assert sum(before) >= COUNT * THREADS
    other.run_to(0, LOOP)
    run(other)
    assert sum(hits(second)) > sum(before)
    second.delete()
    assert text(other) == text(functions())
    run(other)
    second.commit(0)
    assert second.optimizer.release_arena() and code_is_free(other)


def test_disabled_members_are_taken_over_with_the_memory_that_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had no hook of their own, and there may be no room for any."""
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    session.disable([1, 4])
    other = guest.copy()
    second = other.session()

    def full(*_: object, **__: object) -> object:
        raise Refused(Refusal.ARENA_FULL.because(used=1, size=1))

    monkeypatch.setattr(Arena, "allocate_data", full)
    assert adopt.recover(second).lost == () and second.check() == ()
    assert [view.number for view in second.views() if not view.enabled] == [1, 4]
    assert hits(second) == [THREADS] * COUNT
    monkeypatch.undo()
    second.enable()
    for number in range(THREADS):
        other.step(number)
    run(other)
    assert hits(second) == [2 * THREADS] * COUNT and second.check() == ()
    second.delete()
    run(other)
    second.commit(0)
    assert second.optimizer.release_arena() and code_is_free(other)


def test_functions_that_never_return_are_left_out() -> None:
    guest = functions()
    bodies = list(guest.bodies)
    bodies[7] = replace(bodies[7], data=BODY[:-1] + bytes.fromhex("ebfe"))
    guest = type(guest)(bodies)
    session = guest.session()
    session.add(GLOB)
    assert AT[7] not in session.registry.blocks[0].sites and len(session.registry) == COUNT - 1


# with their times --------------------------------------------------------------------------------------------------

TIMED = replace(GLOB, actions=("latency",))


def timed() -> FakeGuest:
    """Return a guest that knows how fast its clock is."""
    guest = functions()
    guest.names = NamesAt(Registers(guest.isa), hertz=10**9)
    return guest


def histogram(view: ProbeView) -> int:
    """Return how many calls are in the histogram of a row."""
    return sum(sum(row.words) for one in view.objects for row in one.rows if one.action == "latency")


def test_times_are_gathered_by_function() -> None:
    guest = timed()
    session = guest.session()
    session.add(TIMED)
    assert len(session.registry.blocks) == 1 and session.check() == ()
    run(guest)
    views = session.reports()
    assert [view.number for view in views] == [*range(1, COUNT + 1)]
    assert all((view.hits, histogram(view)) == (THREADS, THREADS) for view in views)
    assert all(one.rows[0].words[0] for view in views for one in view.objects if one.action == "sum($elapsed)")
    assert len(session.registry.blocks[0]) == COUNT, "looking at them moves none"
    session.clear()
    assert not any(view.hits or view.objects for view in session.reports())
    session.delete()
    assert text(guest) == text(functions())
    session.commit(0)
    assert session.optimizer.release_arena() and code_is_free(guest)


def test_one_that_leaves_keeps_its_times() -> None:
    guest = timed()
    session = guest.session()
    session.add(TIMED)
    run(guest)
    session.show(4)
    assert session.registry.block_of(4) is None and session.check() == ()
    for number in range(THREADS):
        guest.step(number)
    run(guest)
    (view,) = session.reports([4])
    assert (view.hits, histogram(view)) == (2 * THREADS, 2 * THREADS)
    session.delete()
    assert text(guest) == text(functions())
    run(guest)
    session.commit(0)
    assert session.optimizer.release_arena() and code_is_free(guest), "its word among the others' is free, too"


@pytest.mark.parametrize("glob", ["GLOB", "TIMED"])
def test_a_call_that_outlives_its_probe_counts_in_no_other_s_memory(glob: str) -> None:
    """Thread 0 is in a function when its probe leaves the block, and is deleted: the word that it counts in is kept."""
    guest = timed()
    session = guest.session()
    session.add({"GLOB": GLOB, "TIMED": TIMED}[glob])
    guest.run_to(0, AT[3] + 5)
    (block,) = session.registry.blocks
    counter = block.counter(3)
    session.delete([4])
    session.optimizer.reclaim()
    arena = session.optimizer.arena
    assert arena is not None and any(counter in slots.used for slots in arena.data.slots)
    run(guest)
    session.delete()
    run(guest)
    session.commit(0)
    assert session.optimizer.release_arena() and code_is_free(guest)


@pytest.mark.parametrize("steps", range(0, 90, 6))
def test_another_gdb_takes_times_over(steps: int) -> None:
    guest = timed()
    session = guest.session()
    session.add(TIMED)
    run(guest)
    for _ in range(steps):
        guest.step(0)
    other = guest.copy()
    second = other.session()
    found = adopt.recover(second)
    assert found.lost == () and len(second.registry.blocks) == 1 and second.check() == ()
    before = sum(map(histogram, second.reports()))
    assert before >= COUNT * THREADS
    other.run_to(0, LOOP)
    run(other)
    assert sum(map(histogram, second.reports())) > before
    second.delete()
    run(other)
    second.commit(0)
    assert second.optimizer.release_arena() and code_is_free(other)


def test_a_killed_gdb_that_timed_leaves_what_is_removed() -> None:
    guest = timed()
    session = guest.session()
    session.add(TIMED)
    run(guest)
    session.delete()
    writes = list(guest.machine.writes)
    for number in range(0, len(writes) + 1, 3):
        assert text(recovered(timed().after(writes[:number]))) == text(functions())


@pytest.mark.parametrize("wrong", [None, "its functions cannot be probed together any more"])
def test_of_a_glob_killed_in_add_nothing_stays_when_its_probes_go(
    monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    """A block of which the code is not written, or that cannot be as it was, gives its memory of times back, too.

    wrong: why no block is taken over; None where all can be that are whole.
    """
    first = timed()
    first.session().add(TIMED)
    writes = list(first.machine.writes)
    lost = 0
    for number in range(len(writes) + 1):
        guest = timed().after(writes[:number])
        run(guest)
        session = guest.session()
        if session.target.arena_source.left() is None:
            continue
        with monkeypatch.context() as patched:
            if wrong is not None:
                patched.setattr(BlockAdoption, "_plans_again", lambda *_: {})
            lost += len(adopt.recover(session).lost)
        session.delete()
        for _ in range(2):
            run(guest)
            session.commit(0)
        assert session.optimizer.release_arena() and code_is_free(guest), number
    assert lost, "some of the writes leave a block that is not taken over"


def test_calls_of_threads_at_rest_are_given_back() -> None:
    """A thread that stays in a function does not keep the hook of deleted probes, nor a call beneath it."""
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    for number in range(THREADS):
        guest.run_to(number, AT[number] + 5)
    (block,) = session.registry.blocks
    assert isinstance(block, ReturnBlock)
    assert len(block.rethook.read_calls(guest).active) == THREADS
    session.delete()
    (shared,) = session.optimizer.rethooks.known
    assert not shared.read_calls(guest).active
    session.commit(0)
    assert not session.optimizer.rethooks.known and session.optimizer.release_arena() and code_is_free(guest)
    run(guest)


def test_another_gdb_gives_back_what_the_first_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that calls may return to is known as that of a glob, whatever GDB comes to it."""
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    for number in range(THREADS):
        guest.run_to(number, AT[number] + 5)
    with monkeypatch.context() as patched:
        patched.setattr(kernel_rethooks.KernelRethooks, "unhook", lambda *_: None)
        session.delete()
        session.commit(0)
        assert [(row.location, row.active) for row in session.views()] == [("functions of a glob", THREADS)]
        other = guest.copy()
        second = other.session()
        second.add(GLOB)
        assert (second.views()[-1].location, second.views()[-1].active) == ("functions of a glob", THREADS)
        second.delete()
    second.commit(0)
    assert not second.optimizer.rethooks.known and second.optimizer.release_arena() and code_is_free(other)
    run(other)
