"""A probe whose program cannot be lowered is refused in words, before the guest is changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.probes import handler as handlers
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.user import uprobe_handler
from gdb_optprobe.recovery import adopt
from tests.fake_guest import HANDLER, PLAIN, TRACED, program


def fail(program: object, *_: object) -> None:
    raise NotLowered(program.condition, "native code cannot do this")  # type: ignore[attr-defined]


@pytest.mark.parametrize("tier", ["", "breakpoint"])
def test_recover_says_which_probe_is_not_recovered(monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    guest = program()
    guest.session().add(Spec(f"*{PLAIN:#x}", condition="$rax > 3", tier=tier), Spec("traced"))
    again = guest.copy()
    monkeypatch.setattr(handlers, "lower", fail)
    found = adopt.recover(again.session())
    assert [view.number for view in found.probes] == [2]
    assert "probe 1" in found.lost[0] and "native code cannot do this" in found.lost[0]


def test_a_recovered_uprobe_is_lowered_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}", condition="$rax > 3"))
    known = session.registry.probes()[0]
    calls: Any = SimpleNamespace(handler=HANDLER)
    user: Any = SimpleNamespace(kernel=SimpleNamespace(calls=calls, isa=None), guest=guest)
    session.uprobes.__dict__["user"] = user
    monkeypatch.setattr(uprobe_handler, "dead_at_trap", lambda isa: Dead())
    monkeypatch.setattr(session.uprobes, "_install_probe_read", lambda *_: None)
    monkeypatch.setattr(session.uprobes, "_install_shared", lambda *_: None)
    monkeypatch.setattr(handlers, "lower", fail)
    spec = Spec("/bin/a:main", kind=Kind.UPROBE, condition="$rax > 3")
    known.handler.forget_code()
    probe = Probe(2, spec, 0x401000, known.handler, counter=cast(Any, known.counter))
    with pytest.raises(OptprobeError, match="native code cannot do this"):
        session.uprobes.reserve(probe)


@pytest.mark.parametrize("kind", [Kind.KPROBE, Kind.KRETPROBE])
def test_a_refused_add_changes_nothing(kind: Kind) -> None:
    guest = program()
    before = bytes(guest.machine.memory)
    session = guest.session()
    with pytest.raises(OptprobeError, match="CPU's number"):
        session.add(Spec(f"*{TRACED:#x}", kind, actions=("count", "record($rax)")))
    assert not session.registry.probes() and session.optimizer.arena is None
    assert bytes(guest.machine.memory) == before
