"""Counts that are put in together are as those that are put in one by one; a batch that fails leaves nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.ftrace import ENTERED
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.text import IdleSites
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.probes import block_planner
from gdb_optprobe.probes.count_block import FEW, SymbolsOf
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import (
    CODE,
    DATA,
    FILL,
    JOURNAL,
    START,
    TABLES,
    THREADS,
    Body,
    FakeGuest,
    FakeTracer,
    fail_at_write,
)

COUNT, STEP = 70, 32
FIRST, LOOP = START + 0x2000, START + 0x6000
BODY = code("0f 1f 44 00 00  nopl\n48 ff c0  inc %rax\nc3  ret")
GLOB = Spec("f*", glob=True)
NOP, BLR = bytes.fromhex("00000060"), bytes.fromhex("2000804e")
AT = [FIRST + STEP * number for number in range(COUNT)]


def functions() -> FakeGuest:
    """Return a guest of which the threads call functions with tracers' sites, one after the other, again and again."""
    loop = b"".join(
        b"\xe8" + (to - LOOP - 5 * number - 5).to_bytes(4, "little", signed=True) for number, to in enumerate(AT)
    )
    back = b"\xe9" + (-len(loop) - 5).to_bytes(4, "little", signed=True)
    bodies = [Body(f"f{number}", at, BODY, tracer=0) for number, at in enumerate(AT)]
    guest = FakeGuest((*bodies, Body("loop", LOOP, loop + back)))
    guest.start_threads(LOOP)
    return guest


def text(guest: FakeGuest) -> bytes:
    """Return the text and the tracer's records."""
    return guest.machine.read(START, TABLES - START)


def run(guest: FakeGuest) -> None:
    for number in range(THREADS):
        guest.run_to(number, LOOP + 5 * COUNT)


def recovered(guest: FakeGuest) -> FakeGuest:
    """Remove what a killed GDB has left; the guest runs before and after."""
    run(guest)
    session = guest.session()
    if session.target.arena_source.left() is not None:
        adopt.remove(session, 0)
    run(guest)
    return guest


def test_a_batch_is_what_single_probes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone = functions(), functions()
    session, other = together.session(), alone.session()
    views = session.add(GLOB)
    monkeypatch.setattr(block_planner, "LEAST", COUNT + 1)
    other.add(GLOB)
    assert [view.number for view in views] == [*range(1, COUNT + 1)] and session.check() == ()
    assert together.read_text() == alone.read_text()
    assert len(session.registry.probes()) == COUNT and not session.registry.blocks, "each by itself now"
    assert [site.branch for site in session.registry.sites()] == [site.branch for site in other.registry.sites()]
    assert session.optimizer.arena is not None and other.optimizer.arena is not None
    assert session.optimizer.arena.journal.state == other.optimizer.arena.journal.state
    run(together)
    assert {session.hits(number) for number in range(1, COUNT + 1)} == {THREADS}


class EntryGuest(FakeGuest):
    """A guest of functions that are entered at the instruction before the tracer's site; no thread runs."""

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        entered = [at for at in sorted(addresses) if self.text.ftrace_sites(at + 4, at + 8)]
        return IdleSites([at for at in entered if self.machine.read(at, 4) == ENTERED], ENTERED)


def entered_before(count: int = COUNT, arena: Arena | None = None) -> FakeGuest:
    bodies = [Body(f"f{at:x}", at, ENTERED + NOP + BLR, tracer=4) for at in AT[:count]]
    return EntryGuest(bodies, PPC64LE, arena)


def test_what_is_before_a_tracer_s_site_is_displaced_and_the_site_is_left_to_the_tracer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together, alone = entered_before(), entered_before()
    session, other = together.session(), alone.session()
    session.add(GLOB)
    added = len(together.machine.writes)
    monkeypatch.setattr(block_planner, "LEAST", COUNT + 1)
    other.add(GLOB)
    monkeypatch.undo()
    assert together.read_text() == alone.read_text() and session.check() == ()
    assert len(session.registry.probes()) == COUNT, "each by itself now"
    sites = list(session.registry.sites())
    assert {site.plan.ftrace for site in sites} == {None} and len({site.plan.dead for site in sites}) == 1
    assert [site.detour for site in sites] == [site.detour for site in other.registry.sites()]
    assert session.optimizer.arena is not None and other.optimizer.arena is not None
    assert session.optimizer.arena.journal.state == other.optimizer.arena.journal.state
    assert all(together.machine.read(at + 4, 4) == NOP for at in AT) and added < 100
    session.delete()
    assert text(together) == text(entered_before())


def test_a_block_is_as_large_as_its_memory() -> None:
    size = 32  # where an address of data takes two instructions
    ranges = Ranges(((CODE, CODE + size * (COUNT - 3)),), ((DATA, DATA + 0x1000),), FILL)
    guest = entered_before(arena=Arena(ranges, 4))
    session = guest.session()
    session.add(GLOB)
    session.registry.probes()
    tiers = [site.plan.tier for site in session.registry.sites()]
    assert [tier is Tier.OPTIMIZED for tier in tiers] == [True] * (COUNT - 3) + [False] * 3
    assert len(guest.machine.writes) < COUNT, "in few writes"


def test_counters_too_far_to_be_alike_are_put_in_alone() -> None:
    """The address of one takes fewer instructions than that of the next."""
    start = 0x1001_FF00  # the upper half of an address is loaded alone where the lower half is 0
    guest = entered_before(arena=Arena(Ranges(((CODE, DATA),), ((start, start + 0x1000),), FILL), 4))
    session = guest.session()
    session.add(GLOB)
    assert len({site.detour.size for site in session.registry.sites() if site.detour is not None}) > 1
    assert session.check() == ()
    session.delete()
    assert text(guest) == text(entered_before())


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
    assert session.optimizer.release_arena()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def test_what_an_earlier_batch_has_counted_is_not_counted_again() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    session.delete()
    session.commit(0)
    session.add(GLOB)
    assert {view.hits for view in session.views()} == {0}
    run(guest)
    assert {view.hits for view in session.views()} == {THREADS}


def test_one_of_a_batch_is_a_probe_like_any() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    session.disable([3])
    session.delete([5])
    session.add(Spec(f"*{AT[6]:#x}", actions=("count", "hist($rax)")))
    run(guest)
    hits = {number: session.hits(number) for number in (1, 3, 7, COUNT + 1)}
    assert hits == {1: THREADS, 3: 0, 7: THREADS, COUNT + 1: THREADS} and session.check() == ()
    session.delete()
    assert text(guest) == text(functions())


def test_a_site_that_others_changed_is_left_alone() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    guest.machine.write(AT[9], b"\xcc")
    with pytest.raises(OptprobeError, match=f"1 of {COUNT} probes are left in the guest"):
        session.delete()
    left = [at for at in AT if guest.machine.read(at, 5) != BODY[:5]]
    assert left == [AT[9]]


@pytest.mark.parametrize("changed", [AT[9] + 8, AT[9] + 9])
def test_what_others_wrote_between_two_sites_is_kept(changed: int) -> None:
    """As the guest does where it patches its own text: in a branch's run, behind it."""
    guest, plain = functions(), functions()
    session = guest.session()
    session.add(GLOB)
    for machine in (guest.machine, plain.machine):
        machine.write(changed, b"\xf4")
    session.disable()
    assert text(guest) == text(plain)
    for machine in (guest.machine, plain.machine):
        machine.write(changed, b"\xf5")
    session.enable()
    assert session.check() == () and guest.machine.read(changed, 1) == b"\xf5"
    session.delete()
    assert text(guest) == text(plain)


def test_members_that_left_are_deleted_with_the_others() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    session.add(Spec(f"*{AT[6]:#x}", actions=("count", "hist($rax)")))
    session.delete([COUNT + 1])
    session.disable()
    session.enable()
    session.delete()
    assert text(guest) == text(functions())


def test_the_tracer_is_kept_off_branches_that_could_not_be_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = functions()
    session, write, into_text = guest.session(), guest.machine.write, list[int]()

    def written(address: int, data: bytes) -> None:
        if START <= address < LOOP:
            into_text.append(address)
            if len(into_text) > 1:
                raise OptprobeError("the connection does not answer")
        write(address, data)

    with monkeypatch.context() as broken:
        broken.setattr(guest.machine, "write", written)
        with pytest.raises(OptprobeError, match="branches could not be undone") as raised:
            session.add(GLOB)
    left = [at for at in AT if guest.machine.read(at, 5) != BODY[:5]]
    assert 0 < len(left) < COUNT and f"; {len(left)} branches" in raised.value.message
    tracer = session.target.tracer
    assert isinstance(tracer, FakeTracer)
    assert [at for at in AT if guest.machine.read(tracer.records[at], 1) == b"\1"] == left
    assert text(recovered(functions().after(list(guest.machine.writes)))) == text(functions())


class Broken(Exception):
    """An error of GDB's own, which is no OptprobeError."""


def break_midway(guest: FakeGuest, broken: pytest.MonkeyPatch, error: Exception, is_gone: bool) -> None:
    """Have the text be written no more once its first run is; is_gone: nor anything else, and nothing be read."""
    write, read, into_text = guest.machine.write, guest.machine.read, list[int]()

    def written(address: int, data: bytes) -> None:
        if into_text and (is_gone or START <= address < LOOP):
            raise error
        write(address, data)
        if START <= address < LOOP:
            into_text.append(address)

    def was_read(address: int, size: int) -> bytes:
        if into_text and is_gone:
            raise error
        return read(address, size)

    broken.setattr(guest.machine, "write", written)
    broken.setattr(guest.machine, "read", was_read)


def led(guest: FakeGuest) -> list[int]:
    return [at for at in AT if guest.machine.read(at, 5) != BODY[:5]]


ERRORS = pytest.mark.parametrize("error", [OptprobeError("closed"), Broken("closed")], ids=["ours", "gdb"])
GONE = pytest.mark.parametrize("is_gone", [False, True], ids=["text-alone", "gone"])


@GONE
@ERRORS
@pytest.mark.parametrize("kind", [Kind.KPROBE, Kind.KRETPROBE])
def test_what_branches_that_could_not_be_undone_lead_to_stays(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, error: Exception, is_gone: bool
) -> None:
    guest = functions()
    session = guest.session()
    with monkeypatch.context() as broken, pytest.raises(OptprobeError, match=r"closed; .* branches") as raised:
        break_midway(guest, broken, error, is_gone)
        session.add(replace(GLOB, kind=kind))
    left = led(guest)
    assert 0 < len(left) < COUNT
    said = f"{COUNT} branches may be in the text" if is_gone else f"{len(left)} branches could not be undone"
    assert said in raised.value.message and f"optprobe delete 1-{COUNT} takes" in raised.value.hint
    run(guest)
    session.add(Spec(f"*{LOOP:#x}"))
    session.delete([COUNT + 1])
    session.commit(0)
    run(guest)
    assert led(guest) == left
    assert text(recovered(functions().after(list(guest.machine.writes)))) == text(functions())
    assert [view.number for view in session.views()] == [*range(1, COUNT + 1)]
    assert len(session.check()) == COUNT - len(left)
    assert len(session.delete()) == COUNT and text(guest) == text(functions())
    run(guest)
    session.commit(0)
    run(guest)
    assert session.optimizer.release_arena()


def test_all_blocks_are_looked_at_where_the_first_cannot_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = functions()
    session, wipe = guest.session(), Arena.wipe
    tried = list[int]()
    monkeypatch.setattr(block_planner, "LEAST", 8)

    def once(arena: Arena, slots: Sequence[Slot], memory: Memory) -> None:
        tried.append(len(slots))
        if len(tried) == 1:
            raise Broken("closed")
        wipe(arena, slots, memory)

    halves = [(replace(GLOB, location=name), AT[part]) for name, part in (("a*", slice(0, 35)), ("b*", slice(35, 70)))]
    with monkeypatch.context() as broken, pytest.raises(OptprobeError, match="does not answer"):
        broken.setattr(Arena, "wipe", once)
        broken.setattr(session.batches.text, "write", fail_at_write(0, lambda address, data: None))
        session.batches.add_all(halves)
    assert len(tried) == 2 and text(guest) == text(functions())
    arena = session.optimizer.arena
    assert arena is not None and len(arena.code.slots[0].used) == 1


@GONE
@ERRORS
def test_what_was_enabled_in_part_is_enabled(monkeypatch: pytest.MonkeyPatch, error: Exception, is_gone: bool) -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    run(guest)
    session.disable()
    with monkeypatch.context() as broken, pytest.raises(OptprobeError, match=r"closed; .* branches"):
        break_midway(guest, broken, error, is_gone)
        session.enable()
    left = led(guest)
    assert 0 < len(left) < COUNT
    assert all(view.enabled for view in session.views()) and len(session.check()) == COUNT - len(left)
    run(guest)
    again = functions().after(list(guest.machine.writes))
    assert text(recovered(again)) == text(functions())
    assert len(session.delete()) == COUNT and text(guest) == text(functions())
    run(guest)
    session.commit(0)
    assert session.optimizer.release_arena()
    run(guest)


def test_a_branch_of_a_disabled_probe_is_told() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    branch = guest.machine.read(AT[3], 5)
    session.disable()
    assert session.check() == ()
    guest.machine.write(AT[3], branch)
    (problem,) = session.check()
    assert "its probe is disabled" in problem


def test_what_cannot_be_in_a_batch_is_put_in_alone() -> None:
    guest = functions()
    guest.breakpoints = frozenset({AT[4] + 2})
    session = guest.session()
    session.add(Spec(f"*{AT[0]:#x}"))
    session.add(GLOB)
    assert len(session.registry) == COUNT + 1 and session.check() == ()
    run(guest)
    assert session.hits(1) == THREADS and session.hits(COUNT + 1) == THREADS


def test_a_killed_gdb_leaves_what_is_removed() -> None:
    guest = functions()
    session = guest.session()
    session.add(GLOB)
    added = len(guest.machine.writes)
    run(guest)
    session.delete()
    writes = list(guest.machine.writes)
    assert added < 100, "a batch takes few writes"
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
                assert len(session.registry) == 0 and text(guest) == text(functions())
                run(guest)
                session.add(GLOB)
        # Without memory for a batch they are put in one by one.
        assert len(session.registry) == COUNT and session.check() == ()


def test_symbols_of_a_block_are_found_as_they_are_asked_for() -> None:
    asked = list[int]()

    def find(addresses: Sequence[int]) -> list[str]:
        asked.append(len(addresses))
        return [f"f{address}" for address in addresses]

    names, several = [f"f{at}" for at in range(100)], SymbolsOf(range(100), find)
    assert [several[0], several[1:][0], several[-1], several[10:20][2:][3]] == ["f0", "f1", "f99", "f15"]
    assert asked == [1] * 4 and len(several[1:]) == 99
    assert list(several[5:8]) == ["f5", "f6", "f7"] and asked == [1, 1, 1, 1, 100]
    assert list(several) == names and [several[place] for place in range(100)] == names
    assert asked == [1, 1, 1, 1, 100], "once"
    one_by_one = SymbolsOf(range(100), find)
    assert [one_by_one[place] for place in range(100)] == names and asked[5:] == [1] * FEW + [100]


def test_symbols_of_a_block_are_freed_without_the_collector() -> None:
    """A command on thousands of probes rests it, and has it never look at what there is behind."""

    class Name(str): ...

    was = gc.isenabled()
    gc.disable()
    try:
        symbols = SymbolsOf(range(2), lambda addresses: [Name(address) for address in addresses])
        some, seen = symbols[1:], weakref.ref(symbols._all()[0])
        assert list(some) == ["1"] and seen() == "0"
        del symbols
        assert list(some[:]) == ["1"] and list(SymbolsOf((), list)[:]) == []
        del some
        assert seen() is None
    finally:
        (gc.enable if was else gc.disable)()


def test_detours_that_are_not_what_was_written_get_no_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = functions()
    session, before, write = guest.session(), text(guest), guest.machine.write

    def lost(address: int, data: bytes) -> None:
        if not CODE <= address < JOURNAL or len(data) < COUNT:
            write(address, data)

    with monkeypatch.context() as broken:
        broken.setattr(guest.machine, "write", lost)
        with pytest.raises(TextChanged):
            session.add(GLOB)
    assert text(guest) == before and not session.registry.blocks
    numbers = [view.number for view in session.add(GLOB)]
    run(guest)
    assert {session.hits(number) for number in numbers} == {THREADS} and session.check() == ()
