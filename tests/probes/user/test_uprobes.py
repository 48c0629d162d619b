"""Uprobes that share an instruction: what one of them cannot have or leaves is no matter of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.user.uprobe_site import UprobeSite
from tests.fake_guest import HANDLER, FakeGuest, program

FULL = Refused(Refusal.ARENA_FULL.because(used=1, size=1))
SPEC = Spec("/bin/d:f", kind=Kind.UPROBE)
ADDRESS = 0x1000


def with_uprobe(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeGuest, Session, UprobeSite, list[UprobeSite]]:
    """Return a session with uprobe 1 in the guest, and the sites that are settled."""
    guest = program()
    session = guest.session()
    users = session.uprobes
    users.__dict__["user"] = MagicMock()
    site = UprobeSite(MagicMock(inode=1 << 63), MagicMock(address=ADDRESS), False, b"\xcc", 1)
    settled: list[UprobeSite] = []

    def plan(
        spec: Spec, addresses: object = (), maps: object = None
    ) -> tuple[list[Probe], Sequence[object]]:
        probe = Probe(session.registry.next_number(), spec, ADDRESS)
        session.registry.add(probe, site)
        return [probe], []

    def reserve(probe: Probe) -> None:
        probe.counter = session.optimizer.take_arena().allocate_data(16, HANDLER, 1 << 30)

    monkeypatch.setattr(users, "plan", plan)
    monkeypatch.setattr(users, "reserve", reserve)
    monkeypatch.setattr(users, "_settle", lambda point, *_: settled.append(point))
    return guest, session, site, settled


def refuse(*_: Any) -> None:
    raise FULL


def test_a_refused_one_leaves_the_code_of_others_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _, session, site, settled = with_uprobe(monkeypatch)
    _add(session)
    settled.clear()
    monkeypatch.setattr(session.uprobes, "reserve", refuse)
    with pytest.raises(OptprobeError) as error:
        session.add(SPEC)
    assert error.value is FULL and not settled
    assert [probe.number for probe in site.probes] == [1]


def test_code_that_cannot_be_replaced_keeps_what_it_writes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    _, session, site, _ = with_uprobe(monkeypatch)
    first, second = _add(session), _add(session)
    arena, memory = session.optimizer.take_arena(), second.counter
    assert memory is not None
    with monkeypatch.context() as full:
        full.setattr(session.uprobes, "_settle", refuse)
        with pytest.raises(OptprobeError, match=r"^1 of 1 probes are left in the guest: "):
            session.delete([second.number])
    assert site.probes == [first]
    session.optimizer.reclaim()
    assert _is_used(memory.address, arena)
    session.disable([first.number])
    session.optimizer.reclaim()
    assert not _is_used(memory.address, arena)
    session.delete()
    session.optimizer.reclaim()
    assert arena.data.is_empty


def _add(session: Session) -> Probe:
    session.uprobes.plan(SPEC)
    probe = session.registry.probes()[-1]
    session.uprobes.reserve(probe)
    session.uprobes.install([probe])
    return probe


def _is_used(address: int, arena: Any) -> bool:
    return any(slot.address == address for slots in arena.data.slots for slot in (*slots.used, *slots.dirty))
