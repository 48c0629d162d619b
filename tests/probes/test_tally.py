"""One count serves as a probe's hits and as its function's returns: the account is right whatever comes next."""

from __future__ import annotations

from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import adopt
from tests.fake_guest import PLAIN, FakeGuest, program
from tests.recovery.test_killed import leave_detours

HERE = f"*{PLAIN:#x}"
RETURNS = Spec(HERE, Kind.KRETPROBE)
SOME = Spec(HERE, Kind.KRETPROBE, condition="$rax != 0")


def returned(guest: FakeGuest, session: Session, calls: int) -> None:
    """Have so many calls return to the trampoline that calls are given now, as its code counts them."""
    (rethook,) = (one for one in session.optimizer.rethooks.known if not one.closed)
    numbers = {probe.counter.address: probe.number for probe in session.registry.single_probes() if probe.counter}
    at = rethook.memory.address
    if rethook.tally is not None and numbers.get(rethook.tally.address) in rethook.probe_numbers:
        at = rethook.tally.address
    guest.machine.write(at, (int.from_bytes(guest.machine.read(at, 8), "little") + calls).to_bytes(8, "little"))


def account(session: Session) -> list[tuple[int, int]]:
    """Of each probe: its hits, and the returns of its function."""
    return [(view.hits, view.calls.returns if view.calls else 0) for view in session.views()]


def test_hits_that_are_cleared_are_still_returns() -> None:
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    returned(guest, session, 5)
    assert account(session) == [(5, 5)]
    session.clear()
    assert account(session) == [(0, 5)]
    returned(guest, session, 3)
    assert account(session) == [(3, 8)]
    session.add(SOME)  # with another trampoline
    returned(guest, session, 2)
    assert account(session) == [(5, 10), (0, 10)]


def test_the_count_of_a_probe_that_is_deleted_stays_in_the_account_of_others() -> None:
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    session.add(RETURNS)
    returned(guest, session, 5)
    session.delete([1])
    assert account(session) == [(0, 5)]
    returned(guest, session, 4)  # the second one's hits are no tally: the table counts
    assert account(session) == [(0, 9)]
    session.delete()
    leave_detours(guest, session)
    assert not session.optimizer.rethooks.known and not session.optimizer.rethooks.tallies
    assert session.optimizer.release_arena()


def test_a_condition_that_comes_first_leaves_the_count_to_the_table() -> None:
    guest = program()
    session = guest.session()
    session.add(SOME)
    returned(guest, session, 5)
    session.add(RETURNS)
    returned(guest, session, 2)
    assert account(session) == [(0, 7), (0, 7)]


def test_a_killed_session_s_account_is_taken_over() -> None:
    guest = program()
    before = guest.session()
    before.add(RETURNS)
    before.add(RETURNS)
    returned(guest, before, 5)
    before.delete([1])
    returned(guest, before, 2)
    guest = guest.copy()
    session = guest.session()
    assert adopt.recover(session).lost == ()
    assert account(session) == [(0, 7)]
    returned(guest, session, 1)
    assert account(session) == [(0, 8)]
    session.clear()
    assert account(session) == [(0, 8)]
    session.delete()
    leave_detours(guest, session)
    assert session.optimizer.release_arena()
