"""Trampolines and tables of one function's return probes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.kernel_rethooks import KernelRethooks, check_memory
from gdb_optprobe.probes.kretprobe import trampoline_alignment
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import adopt
from tests.fake_guest import MEETING, PC, PLAIN, SHORT, THREADS, TRACED, FakeGuest, program
from tests.recovery.test_killed import leave_detours

RETURNS = Spec(f"*{PLAIN:#x}", Kind.KRETPROBE)


def returned(guest: FakeGuest, session: Session, calls: int) -> None:
    """Have so many calls return, each counted for each probe, and in the table where none tells, as trampolines do."""
    (rethook,) = (one for one in session.optimizer.rethooks.known if not one.closed)
    counters = [probe.counter for probe in session.registry.single_probes() if probe.counter]
    table = () if rethook.hits in counters else (rethook.memory.address,)
    for at in (*table, *(counter.address for counter in counters)):
        count = int.from_bytes(guest.machine.read(at, 8), "little") + calls
        guest.machine.write(at, count.to_bytes(8, "little"))


def account(session: Session) -> list[tuple[int, int]]:
    """Of each probe: its hits, and the returns of its function."""
    return [(view.hits, view.calls.returns if view.calls else 0) for view in session.views()]


def test_returns_are_counted_apart_from_the_hits_of_probes() -> None:
    """The counters are cleared, and go with their probes, also in another session."""
    guest = program()
    before = guest.session()
    before.add(RETURNS)
    before.add(RETURNS)
    returned(guest, before, 5)
    before.clear()
    assert account(before) == [(0, 5), (0, 5)]
    returned(guest, before, 2)
    before.delete([1])
    assert account(before) == [(2, 7)]
    guest = guest.copy()
    session = guest.session()
    assert adopt.recover(session).lost == ()
    assert account(session) == [(2, 7)]
    returned(guest, session, 1)
    assert account(session) == [(3, 8)]
    session.delete()
    leave_detours(guest, session)
    assert not session.optimizer.rethooks.known and session.optimizer.release_arena()


def test_the_table_counts_returns_where_no_hit_of_the_first_probe_does() -> None:
    session = program().session()
    session.add(replace(RETURNS, condition="$rax > 1"))
    session.add(RETURNS)
    (rethook,) = session.optimizer.rethooks.known
    assert rethook.hits is None
    session.delete()
    session.optimizer.settle([])
    session.add(RETURNS)
    session.add(replace(RETURNS, condition="$rax > 1"))
    (rethook,) = (one for one in session.optimizer.rethooks.known if not one.closed)
    assert rethook.hits in [probe.counter for probe in session.registry.single_probes()]


def test_a_larger_table_goes_on_where_the_first_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    returned(guest, session, 3)
    (site,) = session.registry.sites()
    first = site.rethook
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr(Rethook, "is_half_full", lambda *_: True)
        session.optimizer.retry()
    session.clear()
    session.optimizer.settle([site])
    assert site.rethook is not None and site.rethook.older == [first] and site.rethook.hits == first.hits
    returned(guest, session, 2)
    assert account(session) == [(2, 5)]
    session.clear()
    assert account(session) == [(0, 5)]
    guest = guest.copy()
    session = guest.session()
    assert adopt.recover(session).lost == ()
    returned(guest, session, 1)
    assert account(session) == [(1, 6)]
    session.delete()
    leave_detours(guest, session)
    assert not session.optimizer.rethooks.known and session.optimizer.release_arena()


def test_a_later_session_keeps_counters_of_tables_without_their_probes() -> None:
    """Calls may still return there where the table is closed."""
    probed, alone, none = Slot(0x1000, 8), Slot(0x1008, 8), None
    known = [SimpleNamespace(hits=hits, memory=Slot(0x2000, 64)) for hits in (probed, alone, none)]
    hooks = KernelRethooks(cast(Any, known))
    assert hooks.keep_adopted({probed}, ()) == {probed, alone} and hooks.kept == {alone}
    other = Slot(0x1010, 8)
    hooks.known[2].hits = other
    assert hooks.keep_adopted({probed}, {other}) == {probed, alone} and hooks.known[2].hits is None


def test_a_counter_is_there_as_long_as_the_table_that_it_counts_for() -> None:
    """Its probe is gone, its code is freed, and a call is under way that a later GDB cannot wait for."""
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    session.add(RETURNS)
    session.delete([1])
    for thread in range(THREADS):
        guest.run_to(thread, MEETING)
    assert session.optimizer.arena is not None
    session.optimizer.collector.collect(session.optimizer.arena, Trigger.COMMIT)
    (rethook,) = session.optimizer.rethooks.known
    inside = range(PLAIN, PLAIN + 0x100)
    while not (rethook.read_calls(session.target.guest).active and guest.machine.threads[0][PC] in inside):
        guest.step(0)
    guest = guest.copy()
    session = guest.session()
    assert adopt.remove(session, 0) == 1
    session.add(Spec(f"*{SHORT:#x}", actions=("hist($rcx)",)))
    guest = guest.copy()
    session = guest.session()
    assert adopt.recover(session).lost == ()
    hooks = session.optimizer.rethooks.known
    assert [(one.hits, one.closed) for one in hooks] == [(rethook.hits, True)]


def test_what_a_journal_says_of_hits_is_not_another_hooks_table() -> None:
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    session.add(Spec(f"*{TRACED:#x}", Kind.KRETPROBE, maxactive=4))
    one, other = session.optimizer.rethooks.known
    assert session.optimizer.arena is not None
    for wrong in (one, other):
        session.optimizer.arena.journal.put(Item.HITS, one.memory.address, wrong.memory.address)
        session.optimizer.arena.journal.flush()
        guest = guest.copy()
        session = guest.session()
        assert adopt.recover(session).lost == ()
        session.delete()
        leave_detours(guest, session)
        assert not session.optimizer.rethooks.known and session.optimizer.release_arena()
        session = guest.session()
        session.add(RETURNS)
        session.add(Spec(f"*{TRACED:#x}", Kind.KRETPROBE, maxactive=4))
        one, other = session.optimizer.rethooks.known
        assert session.optimizer.arena is not None


def test_what_is_cleared_in_part_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    returned(guest, session, 5)

    def broken_off(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("gdb_optprobe.probes.session.clear_results", broken_off)
        session.clear()
    assert account(session) == [(5, 5)]
    session.clear()
    assert account(session) == [(0, 5)]


def test_a_refusal_of_what_reads_memory_leaves_no_trampoline(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = guest.session()
    session.add(RETURNS)
    arena = session.optimizer.arena
    assert arena is not None
    before = arena.code.used

    def refuse(*_: object) -> None:
        raise Refused(Refusal.ARENA_FULL.because(used=1, size=1))

    monkeypatch.setattr(Rethook, "_entry_readers", refuse)
    with pytest.raises(Refused):
        session.add(RETURNS)
    assert arena.code.used == before


def test_trampolines_begin_pages_only_where_there_is_room() -> None:
    assert not trampoline_alignment(AARCH64).is_needed


def test_memory_without_an_aligned_place_is_none_for_a_table() -> None:
    handler = SimpleNamespace(entry=SimpleNamespace(words=(), condition=None))
    probe = cast(Any, SimpleNamespace(address=0x10000, spec=RETURNS, handler=handler, may_stop=False))
    guest = cast(Any, SimpleNamespace(isa=AARCH64))
    check_memory(probe, guest, Arena(Ranges((), ((0x2_0000, 0x2_3000),))))
    with pytest.raises(Refused):
        check_memory(probe, guest, Arena(Ranges((), ((0x2_0000, 0x2_2000),))))
