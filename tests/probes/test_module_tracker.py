"""Probes on a module of the fake guest, which comes and goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.probes import handler
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import MEETING, THREADS, TRACED, FakeGuest, FakeModule, program

LOCATION = "module:traced"


def guest_with_module(load: int = 0) -> tuple[FakeGuest, FakeModule, Session]:
    guest = program()
    body = next(body for body in guest.bodies if body.address == TRACED)
    guest.module = FakeModule(body, load)
    return guest, guest.module, guest.session()


def run(guest: FakeGuest) -> None:
    for number in range(THREADS):
        guest.run_to(number, MEETING)
        guest.run_to(number, MEETING)


def state(session: Session) -> tuple[str, str]:
    (view,) = session.views()
    return view.tier, view.reason.code if view.reason is not None else ""


def test_a_pending_probe_is_there_before_its_module_runs() -> None:
    guest, module, session = guest_with_module()
    with pytest.raises(OptprobeError):
        session.add(Spec(LOCATION))
    session.add(Spec(LOCATION, pending=True))
    assert state(session)[1] == "PENDING" and len(module.listeners) == 1
    module.load = 1
    module.listeners[0](0)
    assert state(session)[0] == "optimized"
    run(guest)
    assert session.hits(1) == 2 * THREADS
    session.delete()
    assert module.listeners == []


def test_counts_outlive_the_module() -> None:
    guest, module, session = guest_with_module(load=1)
    session.add(Spec(LOCATION))
    run(guest)
    before = session.hits(1)
    original = module.body.data
    module.load = 0
    guest.machine.write(TRACED, original)  # its memory is another's
    written = len(guest.machine.writes)
    session.module_tracker.update()
    assert state(session)[1] == "MODULE_GONE" and session.hits(1) == before
    assert not any(TRACED <= at < TRACED + len(original) for at, _ in guest.machine.writes[written:])
    module.load = 2
    session.module_tracker.update()
    assert state(session)[0] == "optimized"
    run(guest)
    assert session.hits(1) == before + 2 * THREADS and session.check() == ()


def test_a_pending_probe_that_cannot_be_lowered_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, session = guest_with_module()
    session.add(Spec(LOCATION, pending=True, condition="$rax > 3"))
    (probe,) = session.registry.probes()

    def fail(program: Program, *_: object) -> None:
        assert program.condition is not None
        raise NotLowered(program.condition, "native code cannot do this")

    module.load = 1
    with monkeypatch.context() as broken:
        broken.setattr(handler, "lower", fail)
        (view,) = session.views()
    assert view.reason is not None and "native code cannot do this" in view.reason.text
    assert (probe.home, probe.counter, view.symbol) == ("", None, "")
    session.module_tracker.update()
    assert state(session)[0] == "optimized" and probe.home == LOCATION


class Lacking(FakeModule):
    """It tells what it lacks while it is loaded."""

    def waits(self, location: str, why: str) -> Reason:
        return super().waits(location, why or (": it is loaded and lacks that" if self.load else ""))


def test_what_a_pending_probe_lacks_is_told_while_its_module_is_loaded() -> None:
    guest, module, _ = guest_with_module()
    guest.module = module = Lacking(module.body)
    session = guest.session()
    session.add(Spec("module:absent", pending=True))
    for load in (0, 1, 0, 2):
        module.load = load
        (view,) = session.views()
        assert view.reason is not None and view.reason.code == "PENDING"
        assert ("it is loaded and lacks that" in view.reason.text) == bool(load), load


def test_an_obstacle_that_is_gone_is_not_told_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, session = guest_with_module()
    session.add(Spec(LOCATION, pending=True))
    (probe,) = session.registry.probes()

    def find(location: str) -> Sequence[int]:
        raise OptprobeError("the obstacle")

    module.load = 1
    with monkeypatch.context() as obstructed:
        obstructed.setattr(module, "find", find)
        (view,) = session.views()
        assert view.reason is not None and "the obstacle" in view.reason.text
    module.load = 0
    (view,) = session.views()
    assert view.reason is not None and "the obstacle" not in view.reason.text
    session.module_tracker.wait_for_load(probe, OptprobeError("the kernel's own text"))
    for module.load in (2, 0):
        monkeypatch.setattr(module, "find", lambda location: ())
        (view,) = session.views()
        assert view.reason is not None and "the kernel's own text" in view.reason.text
