"""Traps that are written together are as those that are written one by one; GDB may be killed at any write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes import trap_patches
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import (
    CODE,
    DATA,
    FILL,
    HANDLER,
    SHORT_LISTING,
    START,
    THREADS,
    TRAP,
    Body,
    FakeGuest,
    fail_at_write,
    trap_calls,
)

COUNT, STEP = 20, 32
FIRST, LOOP = START + 0x2000, START + 0x1000
GLOB = Spec("s*", glob=True)
AT = [FIRST + STEP * number for number in range(COUNT)]


def functions() -> FakeGuest:
    """Return a guest of which the threads call functions that have no room for a branch, one after the other."""
    loop = b"".join(
        b"\xe8" + (to - LOOP - 5 * number - 5).to_bytes(4, "little", signed=True) for number, to in enumerate(AT)
    )
    back = b"\xe9" + (-len(loop) - 5).to_bytes(4, "little", signed=True)
    bodies = [Body(f"s{number}", at, code(SHORT_LISTING)) for number, at in enumerate(AT)]
    bodies += [Body(f"crowding{number}", at + 4, code("c3  ret")) for number, at in enumerate(AT)]
    bodies += [
        Body("loop", LOOP, loop + back),
        Body("asm_exc", TRAP, b"\xe8" + (HANDLER - TRAP - 5).to_bytes(4, "little") + code("f4  hlt"), entry=True),
        Body("exc", HANDLER, code("0f 1f 44 00 00  nopl\nf4  hlt"), entry=True),
    ]
    guest = FakeGuest(bodies, traps=trap_calls(bodies[-2], bodies[-1]))
    guest.start_threads(LOOP)
    return guest


def text(guest: FakeGuest) -> bytes:
    """Return the text of the functions; that of the kernel's handler is changed until no thread may be in ours."""
    return guest.machine.read(FIRST, STEP * COUNT)


def run(guest: FakeGuest) -> None:
    for number in range(THREADS):
        guest.run_to(number, LOOP + 5 * COUNT)


def counts(session: Session) -> dict[int, int]:
    return {view.address: view.hits for view in session.views()}


def made(session: Session, address: int) -> tuple[object, ...]:
    """Return what is known of a branch but for where its detour is, which came behind another's."""
    branch = session.registry.branch(address)
    assert branch is not None
    ((start, end, origin),) = branch.detour.programs
    places = start - branch.detour.address, end - branch.detour.address, len(branch.parts)
    known = branch.plan, branch.addresses, branch.probe_numbers, branch.patch, branch.preserved
    return *known, *places, origin, branch.detour.size, branch.installed.installed_at is not None


def kinds(session: Session) -> Counter[str]:
    """Count the items of each kind in the journal."""
    assert session.optimizer.arena is not None
    return Counter(key.split()[0] for key in session.optimizer.arena.journal.state)


def leave(guest: FakeGuest, session: Session) -> None:
    """Delete all: text and memory are as they were."""
    session.delete()
    assert text(guest) == text(functions())
    run(guest)
    session.commit(0)
    assert session.optimizer.release_arena() and guest.read_text() == functions().read_text()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def test_traps_together_are_what_single_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone = functions(), functions()
    session, other = together.session(), alone.session()
    together.machine.writes.clear()
    views = session.add(GLOB)
    written = len(together.machine.writes)
    monkeypatch.setattr(trap_patches, "LEAST", COUNT + 1)
    alone.machine.writes.clear()
    other.add(GLOB)
    assert {view.tier for view in views} == {"trapped"} and session.check() == ()
    assert written < len(alone.machine.writes) - 4 * COUNT
    assert text(together) == text(alone)
    assert [made(session, at) for at in AT] == [made(other, at) for at in AT]
    assert kinds(session) == kinds(other)
    for guest, of in ((together, session), (alone, other)):
        run(guest)
        assert counts(of) == dict.fromkeys(AT, THREADS)
        leave(guest, of)


def test_more_traps_than_the_table_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = functions()
    session = guest.session()
    session.optimizer.traps.dispatcher.slots = 16
    session.add(GLOB)
    assert session.check() == ()
    run(guest)
    assert counts(session) == dict.fromkeys(AT, THREADS)
    leave(guest, session)


def test_a_function_that_changed_leaves_the_others_to_be_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    guest, install = functions(), trap_patches.install
    session = guest.session()

    def changed(*args: object, **named: object) -> object:
        guest.machine.write(AT[3], b"\x90")
        return install(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(trap_patches, "install", changed)
    try:
        session.add(GLOB)
    except OptprobeError as error:
        assert f"{AT[3]:#x}" in error.message
    views = session.views()
    assert all(view.tier == "trapped" and view.state == "optimized" for view in views if view.address != AT[3])
    assert guest.machine.read(AT[3], 1) == b"\x90"


def writes() -> int:
    guest = functions()
    session = guest.session()
    guest.machine.writes.clear()
    session.add(GLOB)
    return len(guest.machine.writes)


def test_whichever_write_fails_all_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(writes()):
        guest = functions()
        session = guest.session()
        with monkeypatch.context() as broken:
            broken.setattr(guest.machine, "write", fail_at_write(number, guest.machine.write))
            try:
                session.add(GLOB)
            except OptprobeError:
                assert text(guest) == text(functions()), number
                assert len(session.registry) == 0
        if not len(session.registry):
            session.add(GLOB)
        assert session.check() == (), number
        run(guest)
        assert set(counts(session).values()) == {THREADS}, number
        session.delete()
        assert text(guest) == text(functions()), number
        run(guest)


class Broken(Exception):
    """An error of GDB's own, which is no OptprobeError."""


def arena_of(session: Session) -> Arena:
    assert session.optimizer.arena is not None
    return session.optimizer.arena


def break_at_the_traps(
    guest: FakeGuest,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_gone: bool,
    is_written: bool = True,
) -> list[Counter[str]]:
    """Have the write of traps raise `error`. is_written: it is carried out nevertheless. is_gone: from then on nothing
    is read or written. Return a list that has behind it how many records of probes with memory, and without, are in the
    journal.
    """
    install, write, read, seen = trap_patches.install, guest.machine.write, guest.machine.read, list[Counter[str]]()

    def fails(*_: object) -> Any:
        raise error

    def written(address: int, data: bytes) -> None:
        is_text = FIRST <= address < AT[-1] + STEP
        if is_written or not is_text:
            write(address, data)
        if is_text and not seen:
            seen.append(Counter())
            monkeypatch.setattr(guest.machine, "write", fails if is_gone else write)
            monkeypatch.setattr(guest.machine, "read", fails if is_gone else read)
            raise error

    def tried(*args: object, **named: object) -> object:
        monkeypatch.setattr(guest.machine, "write", written)
        try:
            return install(*args, **named)  # type: ignore[arg-type]
        finally:
            state = arena_of(session).journal.state
            records = [value for key, value in state.items() if key.startswith("probe ")]
            seen[0] += Counter("with memory" if "data" in one else "without" for one in records)

    monkeypatch.setattr(trap_patches, "install", tried)
    return seen


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not-written"])
@pytest.mark.parametrize("error", [OptprobeError("closed"), Broken("closed")], ids=["ours", "gdb"])
def test_what_traps_lead_to_is_kept_where_they_cannot_be_undone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_written: bool
) -> None:
    guest = functions()
    session = guest.session()
    with monkeypatch.context() as broken, pytest.raises(type(error)):
        break_at_the_traps(guest, session, broken, error, is_gone=True, is_written=is_written)
        session.add(GLOB)
    assert (text(guest) != text(functions())) is is_written, "the traps may be live"
    arena = arena_of(session)
    taken = [arena.allocate_data(8) for _ in range(4 * COUNT)]
    codes = [arena.allocate_code(64, FIRST, 1 << 30) for _ in range(4)]
    assert all(set(guest.machine.read(slot.address, slot.size)) == {FILL} for slot in codes)
    for slot in taken:
        guest.machine.write(slot.address, bytes(8))
    run(guest)
    assert not any(any(guest.machine.read(slot.address, 8)) for slot in taken), "no hit counts in another's memory"
    for slot in taken:
        arena.free_data(slot)
    for slot in codes:
        arena.code.free(slot)
    session.optimizer.retry()
    assert text(guest) == text(functions()), "they are removed as soon as that can be"
    run(guest)
    session.add(GLOB)
    run(guest)
    assert counts(session) == dict.fromkeys(AT, THREADS)
    leave(guest, session)


@pytest.mark.parametrize("error", [OptprobeError("lost"), Broken("lost")], ids=["ours", "gdb"])
def test_traps_that_can_be_undone_leave_nothing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    guest = functions()
    session = guest.session()
    with monkeypatch.context() as broken:
        seen = break_at_the_traps(guest, session, broken, error, is_gone=False)
        try:
            session.add(GLOB)
        except Broken:
            assert text(guest) == text(functions())
    assert seen == [Counter({"without": COUNT})], "no record has memory that others get"
    if not len(session.registry):
        session.add(GLOB)
    assert session.check() == () and kinds(session)["data"] == COUNT + 1, "and that of the table"
    run(guest)
    assert counts(session) == dict.fromkeys(AT, THREADS)
    leave(guest, session)


def killed() -> Iterator[tuple[str, FakeGuest]]:
    """Yield what a GDB leaves that is killed behind each of the writes of `add`."""
    guest = functions()
    session = guest.session()
    start = guest.copy()
    guest.machine.writes.clear()
    session.add(GLOB)
    made = list(guest.machine.writes)
    for number in range(len(made) + 1):
        yield f"behind write {number} of {len(made)}", start.after(made[:number])


def test_what_a_killed_gdb_left_works_and_is_removed_or_taken_over() -> None:
    for where, left in killed():
        taken = left.copy()
        run(left)
        session = left.session()
        if session.target.arena_source.left() is not None:
            adopt.remove(session, 0)
        assert text(left) == text(functions()), where
        run(left)
        run(taken)
        session = taken.session()
        if session.target.arena_source.left() is None:
            continue
        adopt.recover(session)
        assert session.check() == (), where
        before = counts(session)
        run(taken)
        assert all(hits in (before[at], before[at] + THREADS) for at, hits in counts(session).items()), where
