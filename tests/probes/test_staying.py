"""Probes on an instruction that must stay where it is: they count as others do, come and go, and leave nothing."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.text import Fact, Mark
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import PLAIN, FakeGuest, program
from tests.probes.test_optimizer import counted, view_of

LEADS, STAYS = PLAIN + 17, PLAIN + 20


def marked(monkeypatch: pytest.MonkeyPatch, guest: FakeGuest, at: int = STAYS) -> Session:
    """Return a session on the guest, of which the tables say that it rewrites what is at `at`."""
    mark = Mark(Fact.JUMP_LABEL, at, 1)
    monkeypatch.setattr(guest.text, "marks", lambda start, end: [mark] if start <= at < end else [])
    return guest.session()


def add(session: Session, *addresses: int) -> None:
    for address in addresses:
        session.add(Spec(f"*{address:#x}"))


@pytest.mark.parametrize("at", [STAYS, LEADS, PLAIN + 10, PLAIN + 32], ids=["moved", "branch", "short", "carry"])
def test_it_counts_as_if_it_were_displaced(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    plain, guest = program(), program()
    session, other = marked(monkeypatch, guest, at), plain.session()
    add(session, at)
    add(other, at)
    assert view_of(session, 1) == ("optimized", "")
    assert counted(guest, session, 1) == counted(plain, other, 1) > 0


def test_it_comes_and_goes_beside_what_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session, text = marked(monkeypatch, guest), guest.machine.read(PLAIN, 37)
    add(session, LEADS, STAYS)
    assert len(list(session.registry.branches())) == 1 and guest.machine.read(STAYS, 17) == text[20:]
    assert counted(guest, session, 1) > 0 and session.hits(1) == session.hits(2)
    session.disable([2])
    before = session.hits(2)
    assert counted(guest, session, 1) > 0 and session.hits(2) == before
    session.enable([2])
    session.delete([1])
    assert counted(guest, session, 2) > 0 and view_of(session, 2) == ("optimized", "")
    session.delete()
    assert guest.machine.read(PLAIN, 37) == text


def test_a_breakpoint_of_the_user_s_on_what_leads_to_it_moves_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = marked(monkeypatch, guest)
    add(session, STAYS)
    guest.breakpoints = frozenset((LEADS,))
    session.settle_around(guest.breakpoints)
    assert view_of(session, 1) == ("breakpoint", "JUMP_LABEL")
    gone, guest.breakpoints = guest.breakpoints, frozenset()
    session.settle_around(gone)
    assert view_of(session, 1) == ("optimized", "")


def test_stepping_brings_it_down_and_what_is_there_has_been_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = marked(monkeypatch, guest)
    add(session, STAYS)
    site = session.registry.site(STAYS)
    assert site is not None and site.resume_address() is None, "a thread continues where it is: no branch is there"
    passed: list[int] = []
    monkeypatch.setattr(session.target.stops, "passed", passed.append)
    session.optimizer.pin([site])
    assert view_of(session, 1)[0] == "breakpoint" and passed == [STAYS]
    session.optimizer.unpin([site])
    session.optimizer.settle([site])
    assert view_of(session, 1) == ("optimized", "")


def test_what_is_shown_of_it_has_the_branch_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = marked(monkeypatch, guest)
    add(session, STAYS)
    shown = session.show(1)
    assert [line.address for line in shown.original][-2:] == [LEADS, STAYS]
    assert shown.patched[-1].address == STAYS and shown.patched[0].note == "the branch to the detour"
