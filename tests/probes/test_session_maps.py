"""Maps of the session: probes that name one fill the same memory, which stays as long as a probe needs it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ir import (
    Binary,
    Column,
    Constant,
    Delete,
    Form,
    Get,
    Map,
    Modify,
    Op,
    Program,
    Register,
    Set,
    Update,
    Variable,
)
from gdb_optprobe.maps.aggregate import Count, Powers, encode
from gdb_optprobe.maps.session_map import SessionMap
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.session_scripts import SessionScripts
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.fake_guest import THREADS, FakeGuest
from tests.probes.test_batch import AT, functions, run

WORD = (Column("", Form.UNSIGNED),)
BY = Map("by", WORD, Count(), 64)
LAST = Map("last", (), WORD)
SEEN = Map("seen", WORD, WORD, 64)
LARGE = Map("h", WORD, Powers(False))
X = Variable("$x")
PROGRAMS: Mapping[str, Program] = {
    "{ @by[sp] = count(); }": Program(None, (Update(BY, None, (Register("rsp"),)),), quiet=True),
    "{ @last++; }": Program(None, (Modify(LAST, (), Op.ADD, Constant(1)),), quiet=True),
    "{ @seen[sp]++; delete(@seen[sp + 1]); }": Program(
        None,
        (
            Get(SEEN, (Register("rsp"),), X),
            Set(SEEN, (Register("rsp"),), (Binary(Op.ADD, X, Constant(1), 64, False),)),
            Delete(SEEN, (Binary(Op.ADD, Register("rsp"), Constant(1), 64, False),)),
        ),
        quiet=True,
    ),
    "{ @h[sp] = hist(1); }": Program(None, (Update(LARGE, Constant(1), (Register("rsp"),)),), quiet=True),
    "{ @last = count(); }": Program(None, (Update(Map("last", (), Count())),), quiet=True),
}
BY_SP, LAST_UP, SEEN_SP, LARGE_SP, OTHER = PROGRAMS


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are compiled: to what PROGRAMS says."""
    monkeypatch.setattr(SessionScripts, "compile", lambda scripts, spec, names, address: PROGRAMS[spec.block])


def at(number: int, block: str) -> Spec:
    return Spec(f"*{AT[number]:#x}", actions=(block,))


def map_of(session: Session, name: str) -> SessionMap:
    return session.kprobes.maps.by_name()[name]


def by_key(session: Session, name: str) -> dict[bytes, tuple[int, ...]]:
    return dict(map_of(session, name).contents().by_key)


def two() -> tuple[FakeGuest, Session]:
    guest = functions()
    session = guest.session()
    session.add(at(0, BY_SP), at(1, BY_SP))
    return guest, session


def test_probes_fill_one_map() -> None:
    guest, session = two()
    run(guest)
    run(guest)
    found = by_key(session, "by")
    assert len(found) == THREADS and set(found.values()) == {(4,)}
    assert [session.hits(number) for number in (1, 2)] == [2 * THREADS] * 2


def test_statements_run_where_the_guest_does_not_stop() -> None:
    guest = functions()
    session = guest.session()
    session.add(at(0, SEEN_SP), at(1, LAST_UP), at(2, LAST_UP))
    for _ in range(3):
        run(guest)
    assert {*by_key(session, "seen").values()} == {(3,)} and by_key(session, "last") == {b"": (6 * THREADS,)}


def test_a_map_goes_with_the_last_probe_that_uses_it() -> None:
    guest, session = two()
    run(guest)
    session.delete([1])
    assert len(by_key(session, "by")) == THREADS
    session.delete([2])
    assert "by" not in session.kprobes.maps.by_name()
    session.add(at(3, BY_SP))
    assert by_key(session, "by") == {}, "another map"


def test_a_map_that_is_kept_can_be_read_when_no_probe_uses_it() -> None:
    guest, session = two()
    session.kprobes.maps.keep(["by"])
    run(guest)
    session.delete()
    assert {*by_key(session, "by").values()} == {(2,)}
    session.kprobes.maps.keep(["by"], kept=False)
    session.add(at(3, LAST_UP))
    session.delete()
    assert not session.kprobes.maps.by_name()


def test_a_name_has_one_type() -> None:
    guest = functions()
    session = guest.session()
    session.add(at(0, LAST_UP))
    with pytest.raises(OptprobeError, match="@last has keys or values of another type"):
        session.add(at(1, OTHER))
    run(guest)
    assert by_key(session, "last") == {b"": (THREADS,)}


def test_the_host_reads_clears_and_writes_what_hits_use() -> None:
    guest, session = two()
    run(guest)
    found = map_of(session, "by")
    found.zero()
    assert {*by_key(session, "by").values()} == {(0,)}
    run(guest)
    assert {*by_key(session, "by").values()} == {(2,)}
    found.clear()
    assert not by_key(session, "by")
    assert found.put(encode((7,)), (5,)) and found.get(encode((7,))) == (5,)
    run(guest)
    assert len(by_key(session, "by")) == THREADS + 1
    assert found.delete(encode((7,))) and found.contents().entries == THREADS + 1
    found.reclaim()
    assert found.contents().entries == THREADS == len(by_key(session, "by"))
    run(guest)
    assert {*by_key(session, "by").values()} == {(4,)}


def test_a_map_has_fewer_keys_where_there_is_no_memory_for_all() -> None:
    guest = functions()
    session = guest.session()
    session.add(at(0, LARGE_SP), at(1, LARGE_SP))
    run(guest)
    (place,) = session.kprobes.maps.of_probe(1).values()
    assert 256 <= place[1] < LARGE.most and session.kprobes.maps.of_probe(2) == {"h": place}
    before = by_key(session, "h")
    assert {sum(words) for words in before.values()} == {2} and len(before) == THREADS
    guest = guest.after(())
    later = guest.session()
    assert not adopt.recover(later).lost and later.kprobes.maps.of_probe(1) == {"h": place}
    run(guest)
    assert {sum(words) for words in by_key(later, "h").values()} == {4}


def test_a_later_session_has_the_maps_again() -> None:
    guest, session = two()
    run(guest)
    before = by_key(session, "by")
    guest = guest.after(())
    later = guest.session()
    assert not adopt.recover(later).lost
    assert by_key(later, "by") == before
    run(guest)
    assert {*by_key(later, "by").values()} == {(4,)}
    later.delete()
    assert later.check() == ()


def test_a_map_begins_with_what_it_is_given() -> None:
    """A probe fires as soon as it is there, perhaps before another one of its script is."""
    guest = functions()
    session = guest.session()
    session.kprobes.maps.first = {"last": {b"": (40,)}, "absent": {b"": (1,)}}
    session.add(at(1, LAST_UP))
    session.add(at(2, LAST_UP))
    run(guest)
    assert by_key(session, "last") == {b"": (40 + 2 * THREADS,)}
