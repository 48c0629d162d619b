"""Writes into the guest that fail: what was reserved for them is free again, and what was removed is removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.call_table import CallTableLayout
from gdb_optprobe.probes.installed_detour import install_pad
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.fake_guest import (
    CODE,
    FILL,
    JOURNAL,
    LOOP,
    PLAIN,
    SHORT,
    START,
    TABLES,
    TRACED,
    FakeGuest,
    FakeTracer,
    program,
)

SILENT = "the connection does not answer"


def fail(guest: FakeGuest, monkeypatch: pytest.MonkeyPatch, where: Callable[[int], bool] = lambda at: True) -> None:
    """Have writes to these addresses fail."""
    write = guest.machine.write

    def written(address: int, data: bytes) -> None:
        if where(address):
            raise OptprobeError(SILENT)
        write(address, data)

    monkeypatch.setattr(guest.machine, "write", written)


def test_a_table_of_calls_that_is_not_written_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    arena = guest.session().optimizer.take_arena()
    used, state = arena.data.used, dict(arena.journal.state)
    fail(guest, monkeypatch)
    with pytest.raises(OptprobeError, match=SILENT):
        Rethook.create(PLAIN, CallTableLayout(16, 0), guest, arena, lambda pc, key: None)
    assert arena.data.used == used and arena.journal.state == state


def test_a_pad_that_is_not_written_is_used_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    arena = guest.session().optimizer.take_arena()
    used = arena.code.used, arena.data.used
    fail(guest, monkeypatch)
    with pytest.raises(OptprobeError, match=SILENT):
        install_pad(PLAIN, b"\x90", guest, arena)
    assert arena.pads.is_empty
    arena.code.release(arena.code.allocate(16, CODE, JOURNAL, CODE))  # pads are freed with code
    arena.reclaim(lambda slots: ())
    assert (arena.code.used, arena.data.used) == used and not arena.pad_pages


def test_a_branch_with_a_detour_that_is_not_wiped_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session, before = guest.session(), guest.read_text()
    session.add(Spec("plain"))
    with monkeypatch.context() as broken:
        fail(guest, broken, lambda at: CODE <= at < JOURNAL)
        with pytest.raises(OptprobeError) as raised:
            session.delete()
    assert raised.value.message == SILENT
    assert len(session.registry) == 0 and guest.machine.read(PLAIN, 8) == before[0x1000:0x1008]
    (view,) = session.add(Spec("plain"))
    assert view.tier == "optimized" and session.check() == ()


class Broken(Exception):
    """An error of GDB's own, which is no OptprobeError."""


def break_behind_a_branch(
    guest: FakeGuest, broken: pytest.MonkeyPatch, error: Exception, is_gone: bool, at: int = PLAIN
) -> None:
    """Have nothing of the text be read or written any more once a branch is in `at`; is_gone: nor anything else."""
    write, read, seen = guest.machine.write, guest.machine.read, list[int]()

    def fails(address: int) -> bool:
        return bool(seen) and (is_gone or START <= address < CODE)

    def written(address: int, data: bytes) -> None:
        if fails(address):
            raise error
        write(address, data)
        if at <= address < at + 5:
            seen.append(address)

    def was_read(address: int, size: int) -> bytes:
        if fails(address):
            raise error
        return read(address, size)

    broken.setattr(guest.machine, "write", written)
    broken.setattr(guest.machine, "read", was_read)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "text-alone"])
@pytest.mark.parametrize("error", [OptprobeError("closed"), Broken("closed")], ids=["ours", "gdb"])
@pytest.mark.parametrize("is_exchanged", [False, True], ids=["new", "exchanged"])
def test_a_branch_that_cannot_be_undone_keeps_what_it_leads_to(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_gone: bool, is_exchanged: bool
) -> None:
    guest = program()
    session, before = guest.session(), guest.machine.read(PLAIN, 8)
    if is_exchanged:
        session.add(Spec("plain"))
    old = guest.machine.read(PLAIN, 8)
    with monkeypatch.context() as broken, pytest.raises(OptprobeError) as raised:
        break_behind_a_branch(guest, broken, error, is_gone)
        session.add(Spec("plain"))
    assert "closed" in raised.value.message and "may be there still" in raised.value.message
    there = guest.machine.read(PLAIN, 8)
    assert there not in (before, old), "the branch is in the text"
    arena = session.optimizer.arena
    assert arena is not None
    target = PLAIN + 5 + int.from_bytes(there[1:5], "little", signed=True)
    assert any(slot.address == target for slots in arena.code.slots for slot in slots.used)
    assert guest.machine.read(target, 1) != bytes([FILL])
    taken = [arena.allocate_data(8) for _ in range(16)]
    for slot in taken:
        guest.machine.write(slot.address, bytes(8))
    guest.run_to(0, LOOP + 5)
    assert not any(any(guest.machine.read(slot.address, 8)) for slot in taken), "no hit counts in another's memory"
    session.optimizer.retry()
    session.optimizer.retry()
    assert guest.machine.read(PLAIN, 8) == before, "it is removed as soon as that can be"
    session.add(Spec("traced"))
    problems = session.check()
    assert len(problems) == is_exchanged and all("counts at" in one for one in problems), "the first probe is gone"
    session.delete()
    assert session.optimizer.lost_branches() == []


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "text-alone"])
@pytest.mark.parametrize(("name", "at"), [("traced", TRACED), ("short", SHORT)])
def test_a_trap_or_a_tracer_s_site_that_cannot_be_undone_is_left_until_it_can_be(
    monkeypatch: pytest.MonkeyPatch, name: str, at: int, is_gone: bool
) -> None:
    guest = program()
    session, before = guest.session(), guest.machine.read(at, 8)
    with monkeypatch.context() as broken, pytest.raises(OptprobeError, match="may be there still"):
        break_behind_a_branch(guest, broken, Broken("closed"), is_gone, at)
        session.add(Spec(name))
    assert guest.machine.read(at, 8) != before
    tracer = session.target.tracer
    assert isinstance(tracer, FakeTracer)
    held = guest.machine.read(tracer.records[TRACED], 1)
    assert (held == b"\1") is (at == TRACED), "the tracer is kept off it"
    session.add(Spec("plain"))
    guest.run_to(0, LOOP + 5)
    guest.run_to(0, LOOP)
    assert session.hits(session.views()[0].number) == 1
    session.optimizer.retry()
    assert guest.machine.read(at, 8) == before and guest.machine.read(tracer.records[TRACED], 1) == b"\0"
    guest.run_to(0, LOOP)
    session.add(Spec(name))
    assert session.check() == ()


def test_a_later_gdb_removes_a_branch_that_could_not_be_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is noted of two: the counter of the lost branch is not used again."""
    guest = program()
    session, before = guest.session(), guest.read_text()
    with monkeypatch.context() as broken, pytest.raises(OptprobeError):
        break_behind_a_branch(guest, broken, Broken("closed"), is_gone=True)
        session.add(Spec("plain"))
    session.add(Spec("traced"))
    again = program().after(list(guest.machine.writes))
    adopt.remove(again.session(), 0)
    assert again.machine.read(PLAIN, 8) == before[PLAIN - START :][:8]
    again.run_to(0, LOOP + 5)


JUMP, THERE = PLAIN + 15, PLAIN + 27
"""Of a conditional jump, and of where it leads."""


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "link-alone"])
@pytest.mark.parametrize("error", [OptprobeError("closed"), Broken("closed")], ids=["ours", "gdb"])
@pytest.mark.parametrize("is_made", [True, False], ids=["made", "removed"])
def test_a_link_that_cannot_be_undone_keeps_what_it_leads_to(
    monkeypatch: pytest.MonkeyPatch, is_made: bool, error: Exception, is_gone: bool
) -> None:
    guest = program()
    session, text = guest.session(), guest.read_text()
    session.add(Spec(f"*{JUMP:#x}"))
    (branch,) = session.registry.branches()
    (link,) = (insn for insn in branch.detour.exits if insn.target == THERE)
    if not is_made:
        session.add(Spec(f"*{THERE:#x}"))
    before, seen = guest.machine.read(link.address, link.size), list[int]()
    write, read = guest.machine.write, guest.machine.read

    def fails(address: int) -> bool:
        return bool(seen) and (is_gone or address == link.address)

    def written(address: int, data: bytes) -> None:
        if address == link.address and not is_made:
            seen.append(address)
        if fails(address):
            raise error
        write(address, data)
        if address == link.address:
            seen.append(address)

    def was_read(address: int, size: int) -> bytes:
        if fails(address):
            raise error
        return read(address, size)

    def delete() -> None:
        session.delete([view.number for view in session.views() if view.address == THERE])

    with monkeypatch.context() as broken, pytest.raises(type(error), match="closed"):
        broken.setattr(guest.machine, "write", written)
        broken.setattr(guest.machine, "read", was_read)
        session.add(Spec(f"*{THERE:#x}")) if is_made else delete()
    assert (guest.machine.read(link.address, link.size) != before) is is_made, "it is linked"
    guest.run_to(0, LOOP + 5)
    delete()
    session.optimizer.retry()
    assert guest.machine.read(link.address, link.size) == link.data
    assert guest.read_text()[THERE - START :][:5] == text[THERE - START :][:5] and session.check() == ()
    assert session.optimizer.lost_branches() == []
    session.commit(0)
    guest.run_to(0, LOOP)
    guest.run_to(0, LOOP + 5)
    session.delete()
    assert guest.read_text()[: TABLES - START] == text[: TABLES - START]
