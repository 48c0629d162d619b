"""Counts with a condition that is the same at every function: their detours call one routine, each has its count."""

from __future__ import annotations

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes import block_planner
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import CODE, DATA, FILL, STACK_SIZE, STACKS, START, THREADS, Body, FakeGuest, fail_at_write
from tests.probes.test_batch import AT, BODY, COUNT, LOOP, functions, run, text

SEVERAL = code("48 ff c0  inc %rax\n48 ff c1  inc %rcx\n48 01 c8  add %rcx,%rax\nc3  ret")
SOME = Spec("f*", glob=True, condition="$rbx == 7")
EVERY = Spec("f*", glob=True, condition="$rbx != 7")


def one_of_two() -> FakeGuest:
    """Return a guest of which the second thread has 7 in a register that no function changes."""
    guest = functions()
    state = dict(zip(guest.isa.registers, guest.machine.threads[1], strict=True))
    guest.machine.threads[1] = tuple((state | {"rbx": 7}).values())
    return guest


def test_all_detours_call_one_routine_and_each_counts_for_itself() -> None:
    guest = one_of_two()
    session = guest.session()
    views = session.add(SOME)
    assert [view.number for view in views] == [*range(1, COUNT + 1)] and session.registry.blocks
    assert len(session.block_routines.placed) == 1 and session.check() == ()
    assert len(guest.machine.writes) < COUNT, "in few writes"
    run(guest)
    assert {session.hits(number) for number in range(1, COUNT + 1)} == {1}
    detour = views[0].detour
    assert detour is not None and 0 < detour.own_least < detour.own < 30, "what the routine runs is of each hit's cost"
    guest.run_to(1, AT[COUNT // 2])
    found = [view.hits for view in session.reports()]
    assert found == [2] * (COUNT // 2) + [1] * (COUNT - COUNT // 2)
    session.clear()
    run(guest)
    run(guest)
    assert sum(view.hits for view in session.reports()) == 2 * COUNT - COUNT // 2


def test_registers_and_stack_are_as_without_probes() -> None:
    probed, plain = one_of_two(), one_of_two()
    probed.session().add(EVERY)
    for guest in (probed, plain):
        run(guest)
        run(guest)
    kept = {*probed.isa.registers} - {"eflags"} - probed.isa.dead_at_entry().registers
    for one, other in zip(probed.machine.threads, plain.machine.threads, strict=True):
        held, wanted = (dict(zip(probed.isa.registers, state, strict=True)) for state in (one, other))
        assert all(held[name] == wanted[name] for name in kept)


@pytest.mark.parametrize("ran", [False, True])
def test_nothing_is_left_when_all_are_deleted(ran: bool) -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    if ran:
        run(guest)
    session.delete()
    assert text(guest) == text(functions()) and not session.block_routines.placed
    run(guest)
    session.commit(0)
    assert session.optimizer.release_arena()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def test_a_thread_in_the_routine_keeps_it_and_its_detour() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(EVERY)
    (routine,) = session.block_routines.placed
    guest.run_to(0, AT[3])
    inside = 0
    while True:
        guest.step(0)
        pc = guest.machine.threads[0][guest.cpu.pc]
        if routine.has(pc):
            inside += 1
            if inside == 3:
                break
    assert session.is_inside(pc)
    session.delete()
    session.optimizer.reclaim()
    assert routine.has(guest.machine.threads[0][guest.cpu.pc])
    assert guest.machine.read(routine.address, 8) == routine.installed.detour.data[:8], "it is not wiped"
    slot = routine.installed.slot
    assert session.optimizer.arena is not None and slot in session.optimizer.arena.dirty()
    run(guest)
    session.commit(0)
    assert text(guest) == text(functions()) and session.optimizer.release_arena()


def test_a_thread_before_the_call_keeps_the_routine() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(EVERY)
    (routine,) = session.block_routines.placed
    guest.run_to(0, AT[3])
    guest.step(0)  # the branch: it is at the call now
    assert routine.callers.address <= guest.machine.threads[0][guest.cpu.pc] < routine.callers.end
    session.delete()
    session.optimizer.reclaim()
    run(guest)
    assert text(guest) == text(functions())
    session.commit(0)
    assert session.optimizer.release_arena()


def test_one_of_a_block_is_a_probe_like_any() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    run(guest)
    session.disable([3])
    session.delete([5])
    session.add(Spec(f"*{AT[6]:#x}", actions=("count", "hist($rax)")))
    run(guest)
    hits = {number: session.hits(number) for number in (1, 3, 7, COUNT + 1)}
    assert hits == {1: 2, 3: 1, 7: 2, COUNT + 1: THREADS} and session.check() == ()
    session.enable([3])
    run(guest)
    assert (session.hits(3), session.hits(7)) == (2, 3)
    assert session.show(7).probe.hits == 3 and session.show(2).detour
    session.delete()
    assert text(guest) == text(functions()) and not session.block_routines.placed
    session.commit(0)
    assert session.optimizer.release_arena()


def test_all_by_themselves_count_on() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    run(guest)
    assert len(session.registry.probes()) == COUNT and not session.registry.blocks
    assert len(session.block_routines.placed) == 1, "their detours call it yet"
    run(guest)
    assert {session.hits(number) for number in range(1, COUNT + 1)} == {2} and session.check() == ()
    guest.breakpoints = frozenset({AT[2]})
    session.resettle()
    guest.breakpoints = frozenset()
    session.resettle()
    run(guest)
    assert {session.hits(number) for number in range(1, COUNT + 1)} == {3}
    session.delete()
    assert text(guest) == text(functions()) and not session.block_routines.placed


def test_disabled_and_enabled() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    session.disable()
    run(guest)
    assert text(guest) == text(functions())
    session.enable()
    run(guest)
    assert session.registry.blocks and {session.hits(number) for number in range(1, COUNT + 1)} == {1}


@pytest.mark.parametrize("unpacked", [(), (1, 9)])
def test_another_gdb_takes_the_block_over(unpacked: tuple[int, ...]) -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    session.registry.probes(unpacked)
    run(guest)
    later = guest.after(())
    other = later.session()
    recovered = adopt.recover(other)
    assert not recovered.lost and len(recovered.probes) == COUNT and other.registry.blocks
    run(later)
    assert {other.hits(number) for number in range(1, COUNT + 1)} == {2} and other.check() == ()
    other.delete()
    other.commit(0)
    assert text(later) == text(functions()) and other.optimizer.release_arena()


def test_a_routine_that_was_changed_is_not_adopted() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    (routine,) = session.block_routines.placed
    guest.machine.write(routine.address, b"\x90")
    assert session.check() == (f"the program at {routine.address:#x} that many detours call was changed",)
    other = guest.after(()).session()
    recovered = adopt.recover(other)
    assert not recovered.probes and len(recovered.lost) == 1
    assert text(other.target.guest) == text(functions())  # type: ignore[arg-type]


def test_a_killed_gdb_leaves_what_is_removed() -> None:
    guest = one_of_two()
    session = guest.session()
    session.add(SOME)
    run(guest)
    session.delete()
    for number in range(len(guest.machine.writes) + 1):
        later = one_of_two().after(guest.machine.writes[:number])
        run(later)
        other = later.session()
        if other.target.arena_source.left() is not None:
            adopt.remove(other, 0)
        run(later)
        assert text(later) == text(functions())


def fails_at_any_write(spec: Spec, writes: int) -> None:
    """Add a batch that fails at each of its writes: nothing is left, and it is added then."""
    for number in range(writes):
        guest = one_of_two()
        session = guest.session()
        guest.machine.write = fail_at_write(number, guest.machine.write)  # type: ignore[method-assign]
        try:
            session.add(spec)
        except OptprobeError:
            assert len(session.registry) == 0 and text(guest) == text(functions())
            run(guest)
            session.add(spec)
        assert len(session.registry) == COUNT and session.check() == ()
        run(guest)
        assert len({view.hits for view in session.reports()}) == 1


def test_a_batch_that_fails_leaves_nothing() -> None:
    counted = one_of_two()
    counted.session().add(SOME)
    fails_at_any_write(SOME, len(counted.machine.writes))


def test_a_batch_that_cannot_be_undone_keeps_its_routine() -> None:
    """The text cannot be written any more, between two writes of branches: the guest runs on correctly."""
    counted = one_of_two()
    counted.session().add(EVERY)
    guest, fails = one_of_two(), [True]
    session, write = guest.session(), guest.machine.write
    last = len(counted.machine.writes) - 1

    def lost(address: int, data: bytes) -> None:
        if fails[0] and len(guest.machine.writes) >= last and address < CODE:
            raise OptprobeError("the text is read-only")
        write(address, data)

    guest.machine.write = lost  # type: ignore[method-assign]
    with pytest.raises(OptprobeError):
        session.add(EVERY)
    fails[0] = False
    assert guest.machine.read(AT[0], 1) == b"\xe9", "a branch is there"
    run(guest)
    session.add(Spec(f"*{LOOP:#x}"))
    session.delete([COUNT + 1])
    (detour,) = guest.isa.decode(guest.machine.read(AT[0], 5), AT[0])
    assert detour.target is not None and session.optimizer.arena is not None
    call, *_ = guest.isa.decode(guest.machine.read(detour.target, 5), detour.target)
    assert call.target not in {slot.address for slot in session.optimizer.arena.dirty()}
    session.commit(0)
    run(guest)
    session.delete()
    assert text(guest) == text(one_of_two())
    session.commit(0)
    run(guest)


@pytest.mark.parametrize("room", range(32, 96, 16))
def test_where_one_block_finds_no_room_the_others_keep_their_routines(room: int) -> None:
    several = [START + 0x3000 + 32 * number for number in range(COUNT)]
    calls = b"".join(
        b"\xe8" + (to - LOOP - 5 * number - 5).to_bytes(4, "little", signed=True)
        for number, to in enumerate((*AT, *several))
    )
    loop = calls + b"\xe9" + (-len(calls) - 5).to_bytes(4, "little", signed=True)
    bodies = [Body(f"f{number}", at, BODY, tracer=0) for number, at in enumerate(AT)]
    bodies += [Body(f"f_{number}", at, SEVERAL) for number, at in enumerate(several)]
    ranges = Ranges(((CODE, CODE + COUNT * (16 + 32) + room),), ((DATA, DATA + 0x1000),), FILL)
    guest = FakeGuest((*bodies, Body("loop", LOOP, loop)), arena=Arena(ranges, 16))
    guest.start_threads(LOOP)
    session = guest.session()
    session.add(EVERY)
    blocks = session.registry.blocks
    assert [block.routine for block in blocks] == session.block_routines.placed and len(blocks) in (1, 2)
    for thread in range(THREADS):
        guest.run_to(thread, LOOP + len(calls))
    assert session.check() == () and {session.hits(number) for number in blocks[0].numbers} == {THREADS}
    session.delete()
    for thread in range(THREADS):
        guest.run_to(thread, LOOP + len(calls))
    assert not session.block_routines.placed


@pytest.mark.parametrize(
    "condition",
    ["rbx == 7", "$rsp < 0", "$r11 == 7", "*(int *)$rdi == 1", "1 / $rbx", "$rip == 0", "$eflags"],
)
def test_what_differs_by_function_or_may_fault_is_put_in_alone(condition: str) -> None:
    session = functions().session()
    assert session.batches.add(Spec("f*", glob=True, condition=condition), AT) == []
    assert not session.registry.blocks and not session.block_routines.placed


def test_the_condition_is_what_one_alone_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone = one_of_two(), one_of_two()
    condition = "$rbx * 3 % 5 == 1 || ($rdi & 1) && $rbx < 0"
    for guest in (together, alone):
        session = guest.session()
        session.add(Spec("f*", glob=True, condition=condition))
        assert bool(session.registry.blocks) == (guest is together)
        run(guest)
        assert {view.hits for view in session.reports()} == {1}
        monkeypatch.setattr(block_planner, "LEAST", COUNT + 1)


def test_functions_without_a_tracer_s_site_have_a_routine_that_keeps_all() -> None:
    """Their detours are 24 bytes: an index is a product there, not a shift."""
    body = code("48 8d 44 40 07  lea 7(%rax,%rax,2),%rax\n48 ff c0  inc %rax\nc3  ret")
    others = [START + 0x3000 + 32 * number for number in range(COUNT)]
    calls = b"".join(
        b"\xe8" + (to - LOOP - 5 * number - 5).to_bytes(4, "little", signed=True)
        for number, to in enumerate([*AT, *others])
    )
    loop = calls + b"\xe9" + (-len(calls) - 5).to_bytes(4, "little", signed=True)
    bodies = [Body(f"f{number}", at, BODY, tracer=0) for number, at in enumerate(AT)]
    bodies += [Body(f"f_{number}", at, body) for number, at in enumerate(others)]
    guest, plain = (FakeGuest((*bodies, Body("loop", LOOP, loop))) for _ in range(2))
    for one in (guest, plain):
        one.start_threads(LOOP)
    session = guest.session()
    session.add(Spec("f*", glob=True, condition="$rbx == 0"))
    blocks = session.registry.blocks
    assert [len(block) for block in blocks] == [COUNT, COUNT] and {block.step for block in blocks} == {16, 24}
    for number in range(THREADS):
        for one in (guest, plain):
            one.run_to(number, LOOP + 5 * COUNT)
            one.run_to(number, others[COUNT - 20])
    hits = [view.hits for view in session.reports()]
    assert hits == [THREADS] * (2 * COUNT - 20) + [0] * 20 and session.check() == ()
    kept = {*guest.isa.registers} - guest.isa.dead_at_entry().registers - {"eflags"}
    for mine, wanted in zip(guest.machine.threads, plain.machine.threads, strict=True):
        pairs = zip(guest.isa.registers, mine, wanted, strict=True)
        assert all(one == other for name, one, other in pairs if name in kept)
    session.delete()
    assert text(guest) == text(plain)


def test_no_return_address_stays_on_a_stack() -> None:
    """A thread that sleeps over such a word would keep the whole block's memory in use."""
    guest = one_of_two()
    session = guest.session()
    session.add(EVERY)
    (routine,) = session.block_routines.placed
    run(guest)
    held = guest.machine.read(STACKS, STACK_SIZE * THREADS)
    words = [int.from_bytes(held[at : at + 8], "little") for at in range(0, len(held), 8)]
    assert any(words) and not any(routine.callers.address <= word < routine.callers.end for word in words)
