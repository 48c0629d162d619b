"""Writes into the guest that fail: what was reserved for them is free again, and what was removed is removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.call_table import CallTableLayout
from gdb_optprobe.probes.installed_detour import install_pad
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import CODE, JOURNAL, PLAIN, FakeGuest, program

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
