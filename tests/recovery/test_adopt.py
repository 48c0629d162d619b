"""Probes that an earlier GDB could not note whole: each is lost with a reason, and the others are taken over."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.maps.ring import RingPosition
from gdb_optprobe.probes.journal_records import ProbeRecord
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import adopt


def found(number: int, spec: Spec, data: int | None, lost: bool) -> ProbeRecord:
    return ProbeRecord(number, 0x4A2B0, spec, True, False, data, 0, {}, RingPosition(0, ()), (), lost=lost)


def test_what_was_noted_as_lost_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is given back, and that of a probe in a program that is taken over is kept."""
    lost, kept = Slot(0x30000, 64), Slot(0x30040, 64)
    left = ArenaContents(data=(lost, kept))
    all_found = (
        found(1, Spec("/:0x4a2b0", kind=Kind.UPROBE), lost.address, lost=True),
        found(2, Spec("vfs_read"), None, lost=True),
        found(3, Spec("/bin/d:net/http.F", kind=Kind.UPROBE), kept.address, lost=False),
    )
    session, arena = MagicMock(), MagicMock()
    session.optimizer.rethooks.known = ()
    session.optimizer.traps.dispatcher.memory = session.uprobes.rethooks.memory = frozenset()
    session.uprobes.add_recovered.return_value.number = 3
    monkeypatch.setattr(adopt, "read_leftovers", lambda *_: (left, all_found, ()))
    monkeypatch.setattr(adopt, "adopt_arena", lambda *_: arena)
    recovered = adopt.recover(session)
    assert [text.split(",")[0] for text in recovered.lost] == ["probe 1", "probe 2"]
    assert all(text.endswith(adopt.LOST) for text in recovered.lost)
    session.uprobes.add_recovered.assert_called_once_with(all_found[2], kept, {})
    assert arena.release_data.call_args.args == ({kept},)
    assert [call.args for call in arena.journal.drop.call_args_list] == [(Item.PROBE, 1), (Item.PROBE, 2)]
