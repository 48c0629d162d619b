"""What is done to counts that were put in together, at tracers' sites and elsewhere; GDB may be killed at any write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes import entry_plans
from gdb_optprobe.probes.block_planner import BlockPlanner
from gdb_optprobe.probes.block_routines import BlockRoutines
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import CODE, DATA, FILL, THREADS, Body, FakeGuest, FakeModule
from tests.probes.test_batch import AT, COUNT, GLOB, LOOP, entered_before, functions, run, text

SEVERAL = code("48 ff c0  inc %rax\n48 ff c1  inc %rcx\n48 01 c8  add %rcx,%rax\nc3  ret")
ONE = code("48 81 f1 55 aa 00 00  xor $0xaa55,%rcx\n48 01 c8  add %rcx,%rax\nc3  ret")
SHORT = code("05 55 aa 00 00  add $0xaa55,%eax\n48 01 c8  add %rcx,%rax\nc3  ret")
BRANCHING = code("48 ff c0  inc %rax\n74 03  je L\n48 ff c1  inc %rcx\n48 ff c2  inc %rdx (L)\nc3  ret")
Guests = Callable[[], FakeGuest]


def untraced(kinds: Sequence[bytes] = (SEVERAL, ONE, BRANCHING)) -> FakeGuest:
    """Return a guest of which the threads call functions without tracers' sites; most displace several instructions."""
    loop = b"".join(
        b"\xe8" + (to - LOOP - 5 * number - 5).to_bytes(4, "little", signed=True) for number, to in enumerate(AT)
    )
    back = b"\xe9" + (-len(loop) - 5).to_bytes(4, "little", signed=True)
    bodies = [Body(f"f{number}", at, kinds[number % len(kinds)]) for number, at in enumerate(AT)]
    guest = FakeGuest((*bodies, Body("loop", LOOP, loop + back)))
    guest.start_threads(LOOP)
    return guest


def counts(session: Session) -> dict[int, int]:
    """Hits by address."""
    return {view.address: view.hits for view in session.views()}


def leave(guest: FakeGuest, session: Session, made: Guests) -> None:
    """Delete all: text, records and memory are as they were."""
    session.delete()
    assert text(guest) == text(made())
    if guest.machine.threads:
        run(guest)
    session.commit(0)
    assert session.optimizer.release_arena()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def test_code_that_is_freed_while_blocks_get_memory_is_free_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read ahead, for the first block, is that code as it was."""
    # One instruction is displaced: no thread is in the way, for which there would be a collection before.
    guest = untraced([ONE, SHORT])
    session = guest.session()
    first, then = (session.add(Spec(name, glob=True)) for name in ("f[1-4]?", "f[56]?"))
    run(guest)
    session.delete([view.number for view in first])
    session.commit(0)
    run(guest)
    session.delete([view.number for view in then])
    run(guest)
    arena = session.optimizer.arena
    assert arena is not None and len(arena.code.dirty) == len(then)

    def install(_: BlockRoutines, block: CountBlock, arena: Arena) -> bool:
        session.optimizer.collector.collect(arena, Trigger.MEMORY)
        return True

    monkeypatch.setattr(BlockRoutines, "install", install)
    session.add(GLOB)
    assert not arena.code.dirty and len(session.registry.blocks) > 1
    assert sum(len(block) for block in session.registry.blocks) == COUNT and session.check() == ()
    monkeypatch.undo()
    leave(guest, session, lambda: untraced([ONE, SHORT]))


def test_functions_without_sites_are_blocks_too() -> None:
    guest = untraced()
    session = guest.session()
    session.add(GLOB)
    assert sum(map(len, session.registry.blocks)) == COUNT and len(session.registry.blocks) == 3
    assert not any(block.traced or block.is_uniform for block in session.registry.blocks)
    assert {len(block.plans[0].displaced) for block in session.registry.blocks} == {1, 2}
    run(guest)
    assert set(counts(session).values()) == {THREADS} and session.check() == ()
    unprobed = untraced()
    run(unprobed)
    assert guest.machine.threads == unprobed.machine.threads
    leave(guest, session, untraced)


def test_a_function_that_a_thread_is_inside_of_waits_alone() -> None:
    guest = untraced()
    guest.run_to(0, AT[3] + 3)
    session = guest.session()
    session.add(GLOB)
    inside = [block.at(AT[3]) for block in session.registry.blocks]
    assert inside == [None, None, None] and sum(map(len, session.registry.blocks)) == COUNT - 1
    (view,) = [view for view in session.views() if view.address == AT[3]]
    assert view.state == "optimizing" and session.check() == ()
    run(guest)
    session.commit(0)
    assert {view.tier for view in session.views()} == {"optimized"}
    leave(guest, session, untraced)


@pytest.mark.parametrize("made", [functions, untraced, entered_before])
def test_all_are_switched_and_cleared_together(made: Guests) -> None:
    guest = made()
    session = guest.session()
    session.add(GLOB)
    blocks = list(session.registry.blocks)
    turn = run if guest.machine.threads else lambda _: None
    hits = THREADS if guest.machine.threads else 0
    turn(guest)
    session.disable()
    assert text(guest) == text(made()) and {view.state for view in session.views()} == {"disabled"}
    assert session.check() == ()
    turn(guest)
    assert set(counts(session).values()) == {hits}
    session.enable()
    turn(guest)
    assert set(counts(session).values()) == {2 * hits} and session.check() == ()
    session.clear()
    assert set(counts(session).values()) == {0}
    assert session.registry.blocks == blocks and not session.registry.single_probes()
    leave(guest, session, made)


@pytest.mark.parametrize("made", [functions, untraced])
def test_one_is_switched_and_cleared_alone(made: Guests) -> None:
    guest = made()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    session.clear([2])
    session.disable([5])
    run(guest)
    session.enable([5])
    run(guest)
    numbers = range(1, COUNT + 1)
    expected = dict.fromkeys(numbers, 3 * THREADS) | {2: 2 * THREADS, 5: 2 * THREADS}
    assert {number: session.hits(number) for number in numbers} == expected
    assert {view.number: view.hits for view in session.views()} == expected
    assert {view.number: view.hits for view in session.reports([2, 3])} == {2: 2 * THREADS, 3: 3 * THREADS}
    assert session.check() == ()
    with pytest.raises(OptprobeError, match="no probe number"):
        session.hits(COUNT + 1)
    leave(guest, session, made)


@pytest.mark.parametrize("made", [functions, untraced])
def test_what_is_saved_is_what_single_probes_are_saved_as(made: Guests) -> None:
    together, alone = made().session(), made().session()
    for session in (together, alone):
        session.add(GLOB)
        session.disable([4])
    alone.registry.probes()  # each by itself now
    assert together.registry.blocks and not alone.registry.blocks
    assert together.saved() == alone.saved()


@pytest.mark.parametrize("made", [functions, untraced])
@pytest.mark.parametrize("at", [0, 3])
def test_a_breakpoint_of_the_user_at_a_member(made: Guests, at: int) -> None:
    """Before and behind: what is on displaced instructions keeps that one probe from being optimized."""
    guest = made()
    session = guest.session()
    session.add(GLOB)
    guest.breakpoints = frozenset({AT[6] + at})
    session.resettle()
    tiers = {view.address: view.tier for view in session.views()}
    assert session.check() == () and set(tiers.values()) - {"optimized"} <= {tiers[AT[6]]}
    displaced = at == 0 or made is untraced
    assert tiers[AT[6]] != "optimized" or not displaced
    session.delete()
    session.add(GLOB)
    assert {view.address: view.tier for view in session.views()} == tiers and session.check() == ()
    guest.breakpoints = frozenset()
    session.resettle()
    session.commit(0)
    assert {view.tier for view in session.views()} == {"optimized"}
    leave(guest, session, made)


@pytest.mark.parametrize("made", [functions, untraced])
def test_a_setting_takes_the_branches_out_and_puts_them_in(made: Guests) -> None:
    guest = made()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    guest.settings = replace(guest.settings, optimization=False)
    session.resettle()
    assert "optimized" not in {view.tier for view in session.views()} and text(guest) == text(made())
    run(guest)
    guest.settings = replace(guest.settings, optimization=True)
    session.resettle()
    session.commit(0)
    run(guest)
    assert {view.tier for view in session.views()} == {"optimized"}
    assert set(counts(session).values()) == {3 * THREADS} and session.check() == ()
    leave(guest, session, made)


@pytest.mark.parametrize("made", [functions, untraced])
def test_a_second_probe_comes_and_goes(made: Guests) -> None:
    guest = made()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    (second,) = session.add(Spec(f"*{AT[9]:#x}", condition="$rax > 0", actions=("count", "hist($rcx)")))
    run(guest)
    session.delete([second.number])
    run(guest)
    assert set(counts(session).values()) == {3 * THREADS} and session.check() == ()
    leave(guest, session, made)


def test_planning_that_is_interrupted_loses_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting has changed since, so that all are planned anew as they are enabled."""
    guest = untraced()
    session = guest.session()
    session.add(GLOB)
    session.disable()
    guest.settings = replace(guest.settings, boost=False)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(entry_plans, "checkpoint", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.enable()
    assert len(session.views()) == COUNT and not any(view.enabled for view in session.views())
    session.enable()
    run(guest)
    assert set(counts(session).values()) == {THREADS}
    leave(guest, session, untraced)


def test_what_a_breakpoint_keeps_out_is_in_once_the_breakpoint_has_gone() -> None:
    guest = untraced()
    session = guest.session()
    guest.breakpoints = frozenset([AT[0] + 3])
    every = Spec("*", glob=True)
    left_out = {one.address for view in session.add(every) for one in view.left_out}
    assert AT[0] in left_out
    session.delete()
    guest.breakpoints = frozenset()
    assert AT[0] in {view.address for view in session.add(every)}
    session.delete()
    guest.breakpoints = frozenset([AT[0] + 3])
    assert left_out == {one.address for view in session.add(every) for one in view.left_out}


def test_what_goes_with_a_module_is_in_no_block() -> None:
    guest = untraced()
    guest.module = FakeModule(guest.bodies[3], load=1)
    session = guest.session()
    blocks = session.batches.add(GLOB, AT)
    assert sorted(site for block in blocks for site in block.sites) == [at for at in AT if at != AT[3]]
    assert not session.block_planner.stopping(GLOB, [AT[3]])
    assert not session.block_planner.entry_plans.has(AT[3]), "another load has another plan"


class Kept:
    """See probes.kept_plans.KeptPlans."""

    def __init__(self, session: Session) -> None:
        blocks = session.registry.blocks
        self.plans = {block.sites[index]: block.plan(index) for block in blocks for index in block.members}

    def load(self, addresses: Collection[int]) -> list[Plan]:
        return [self.plans[address] for address in addresses]

    def store(self, plans: Iterable[Plan]) -> None:
        assert not [*plans], "all are known"


@pytest.mark.parametrize(
    ("offset", "actions"), [(3, ("stop",)), (3, ("count",)), (6, ("count",))], ids=["stops", "inside", "behind"]
)
def test_a_kept_plan_gives_way_to_another_probe_of_the_same_stop(
    offset: int, actions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = untraced().session()
    before.add(GLOB)
    kept = Kept(before)
    monkeypatch.setattr(BlockPlanner, "_kept", lambda *_: kept)
    guest = untraced()
    session = guest.session()
    session.add(GLOB)
    session.add(Spec(f"*{AT[0] + offset:#x}", actions=actions, tier="breakpoint" if "stop" in actions else ""))
    assert {block.at(AT[0]) for block in session.registry.blocks} == {None}
    first, other = (site.plan for site in session.registry.sites())
    if "stop" in actions:
        assert first.tier.stops and guest.machine.read(AT[0], 4) == untraced().machine.read(AT[0], 4)
    else:
        assert first.displaced == other.displaced, "they share a branch"
        run(guest)
        assert {*counts(session).values()} == {THREADS}
    assert session.check() == ()


def test_a_kept_plan_gives_way_to_a_breakpoint_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch over it would have it never hit."""
    before = untraced().session()
    before.add(GLOB)
    kept = Kept(before)
    monkeypatch.setattr(BlockPlanner, "_kept", lambda *_: kept)
    guest = untraced()
    guest.breakpoints = frozenset([AT[0] + 3])
    session = guest.session()
    session.add(GLOB)
    assert {block.at(AT[0]) for block in session.registry.blocks} == {None}
    (site,) = session.registry.sites()
    assert site.plan.reason is not None and site.plan.reason.code == "USER_BREAKPOINT"


def test_a_block_that_others_changed_a_site_of_is_disabled_but_for_that() -> None:
    guest = untraced()
    session = guest.session()
    session.add(GLOB)
    guest.machine.write(AT[9], b"\xcc")
    with pytest.raises(OptprobeError, match=f"{AT[9]:#x}"):
        session.disable()
    assert [at for at in AT if guest.machine.read(at, 1) != text_at(at)] == [AT[9]]


def text_at(address: int) -> bytes:
    return untraced().machine.read(address, 1)


# an earlier GDB ------------------------------------------------------------------------------------------------------


def many(session: Session) -> None:
    """Have some members leave their blocks."""
    session.disable([4, 5, 30])
    session.clear([12])


COMMANDS: dict[str, tuple[list[Callable[[Session], object]], Callable[[Session], object]]] = {
    "add": ([], lambda session: session.add(GLOB)),
    "disable": ([lambda session: session.add(GLOB)], Session.disable),
    "enable": ([lambda session: session.add(GLOB), Session.disable], Session.enable),
    "enable the rest": ([lambda session: session.add(GLOB), Session.disable, many], Session.enable),
    "delete": ([lambda session: session.add(GLOB), many], Session.delete),
    "unpack": ([lambda session: session.add(GLOB)], many),
    "unpack at once": ([lambda session: session.add(GLOB)], many),
    "clear": ([lambda session: session.add(GLOB), many], Session.clear),
}


def killed(made: Guests, command: str) -> Iterator[tuple[str, FakeGuest, dict[int, int]]]:
    """Yield what a GDB leaves that is killed behind each of the writes of a command; and what was counted before."""
    before, what = COMMANDS[command]
    guest = made()
    session = guest.session()
    for each in before:
        each(session)
        if "at once" not in command:  # code that no thread has reached is wiped by the command itself
            run(guest)
    counted = counts(session)
    start = guest.copy()
    guest.machine.writes.clear()
    what(session)
    writes = list(guest.machine.writes)
    assert len(writes) < 120, "in few writes"
    for number in range(len(writes) + 1):
        yield f"behind write {number} of {len(writes)}", start.after(writes[:number]), counted


@pytest.mark.parametrize("made", [functions, untraced])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_gdb_s_counts_are_taken_over(made: Guests, command: str) -> None:
    for where, left, counted in killed(made, command):
        try:
            check_recovered(left, made, counted, command)
        except BaseException as error:
            error.add_note(where)
            raise


def check_recovered(guest: FakeGuest, made: Guests, counted: dict[int, int], command: str) -> None:
    run(guest)
    session = guest.session()
    if session.target.arena_source.left() is None:
        assert command in ("add", "delete") and text(guest) == text(made())
        with pytest.raises(OptprobeError, match="no probes"):
            adopt.recover(session)
        run(guest)
        with pytest.raises(OptprobeError, match="no probes"):
            adopt.recover(guest.session())
        assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}, "nor is any code, or the beginning of a journal"
        return
    lost = adopt.recover(session).lost
    assert session.check() == ()
    now = counts(session)
    if command not in ("add", "delete"):
        assert lost == () and now.keys() == counted.keys()
    if command != "clear":
        assert all(hits in (counted.get(at, 0), counted.get(at, 0) + THREADS) for at, hits in now.items())
    enabled = {view.address for view in session.views() if view.enabled}
    run(guest)
    assert counts(session) == {at: hits + THREADS * (at in enabled) for at, hits in now.items()}
    leave(guest, session, made)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_killed_gdb_left_is_removed(command: str) -> None:
    for where, left, _ in killed(untraced, command):
        run(left)
        session = left.session()
        if session.target.arena_source.left() is not None:
            adopt.remove(session, 0)
        assert text(left) == text(untraced()), where
        run(left)


@pytest.mark.parametrize("made", [functions, untraced])
@pytest.mark.parametrize("number", [0, 1, 7])
def test_one_function_that_changed_loses_no_counts(made: Guests, number: int) -> None:
    """The user stops at a member before the earlier GDB's probes are taken over: the others stay as they were."""
    guest = made()
    guest.session().add(GLOB)
    run(guest)
    left = guest.copy()
    left.breakpoints = frozenset({AT[number]})
    session = left.session()
    assert adopt.recover(session).lost == ()
    assert set(counts(session).values()) == {THREADS} and session.check() == ()
    tiers = {view.address: view.tier for view in session.views()}
    assert [at for at, tier in tiers.items() if tier != "optimized"] == [AT[number]]
    left.breakpoints = frozenset()
    session.resettle()
    session.commit(0)
    run(left)
    assert set(counts(session).values()) == {2 * THREADS} and session.check() == ()
    leave(left, session, made)


@pytest.mark.parametrize("made", [functions, untraced])
@pytest.mark.parametrize("member", [0, 1])
def test_a_block_outlives_the_code_of_a_member_that_left_it(made: Guests, member: int) -> None:
    """What leaves may be what the block's memory begins with, and its memory may be another block's next."""
    guest = made()
    session = guest.session()
    session.add(GLOB)
    first = [block.first for block in session.registry.blocks]
    session.delete([number + member for number in first])
    run(guest)
    session.commit(0)
    left = guest.copy()
    again = left.session()
    assert adopt.recover(again).lost == () and again.check() == ()
    assert len(counts(again)) == COUNT - len(first)
    run(left)
    assert set(counts(again).values()) == {2 * THREADS}
    leave(left, again, made)


def note_as_before(session: Session) -> None:
    """Have the journal know the blocks by their code's address, as an earlier version did."""
    arena = session.optimizer.arena
    assert arena is not None
    journal = arena.journal
    for block in session.registry.blocks:
        row = list(journal.state[f"{Item.COUNTS} {block.first:x}"])
        journal.drop(Item.COUNTS, block.first)
        journal.put(Item.BLOCK, block.code.address, [*row[:4], block.first, *row[5:]])
        for index in block.out:
            journal.drop(Item.ALONE, block.first + index)
            journal.put(Item.OUT, block.slot(index).address, 1)
    journal.flush()


@pytest.mark.parametrize("made", [functions, untraced])
def test_blocks_that_an_earlier_version_noted_are_taken_over(made: Guests) -> None:
    guest = made()
    session = guest.session()
    session.add(GLOB)
    session.delete([session.registry.blocks[0].first + 1])
    run(guest)
    note_as_before(session)
    runs = 1
    for deletes in (False, True, False):
        guest = guest.copy()
        session = guest.session()
        assert adopt.recover(session).lost == () and session.check() == ()
        run(guest)
        runs += 1
        assert set(counts(session).values()) == {runs * THREADS}
        if deletes:
            session.delete([block.first for block in session.registry.blocks])
            run(guest)
            runs += 1
            session.commit(0)
    leave(guest, session, made)
