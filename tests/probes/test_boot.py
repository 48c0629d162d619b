"""Probes that wait for the kernel of the fake guest to start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.errors import NotBooted, OptprobeError
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import StopPoint
from gdb_optprobe.probes.target import NoModules
from tests.fake_guest import MEETING, THREADS, TRACED, FakeDebugger, FakeGuest, program


class Nowhere(FakeDebugger):
    """A debugger of a guest of which the kernel has not started."""

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        raise NotBooted("not started")


@dataclass
class Starting(NoModules):
    """What such a guest has in place of modules. armed: whether it stops where the kernel starts."""

    armed: bool = False
    stepped = moved = 0

    def can_wait(self, spec: Spec) -> bool:
        return True

    def waits(self, location: str, why: str) -> Reason:
        return Refusal.KERNEL_PENDING.because(location=location, why=why)

    def on_load(self, call: Callable[[int], None]) -> StopPoint:
        self.armed = True
        return self

    def remove(self) -> None:
        self.armed = False


def waiting() -> tuple[FakeGuest, Starting, Session]:
    guest, modules = program(), Starting()
    target = replace(guest.target, debugger=Nowhere(guest), modules=modules)
    return guest, modules, Session(target, lambda: guest.settings)


def codes(session: Session) -> dict[int, str]:
    return {view.number: view.reason.code if view.reason is not None else "" for view in session.views()}


def traced(guest: FakeGuest) -> str:
    return next(body.name for body in guest.bodies if body.address == TRACED)


def test_a_probe_waits_and_goes_in_under_its_number() -> None:
    guest, modules, session = waiting()
    session.add(Spec("nowhere", pending=True))
    session.add(Spec(traced(guest), pending=True, name="mine"))
    assert codes(session) == {1: "KERNEL_PENDING", 2: "KERNEL_PENDING"} and modules.armed
    assert [view.reason.code for view in session.explain(Spec("x", pending=True)) if view.reason] == ["KERNEL_PENDING"]
    (failure,) = session.kernel_started(replace(guest.target, modules=Loading()))
    assert "probe 1 " in failure and "nowhere" in failure and not modules.armed
    assert codes(session) == {1: "PENDING", 2: ""} and session.last_number == 2
    (view,) = session.views([2])
    assert (view.name, view.tier, view.address) == ("mine", "optimized", TRACED)
    for number in range(THREADS):
        guest.run_to(number, MEETING)
    assert session.hits(2) == THREADS


class Loading(NoModules):
    """Of a kernel that may load modules."""

    stepped = moved = 0

    def can_wait(self, spec: Spec) -> bool:
        return False

    def on_load(self, call: Callable[[int], None]) -> StopPoint:
        return self

    def remove(self) -> None:
        """Nothing was set."""


def test_nothing_stays_armed_without_a_probe_that_waits() -> None:
    _, modules, session = waiting()
    with pytest.raises(OptprobeError):
        session.add(Spec("here"))
    session.add(Spec("here", pending=True))
    session.disable()
    assert not modules.armed
    session.enable()
    assert modules.armed
    session.delete()
    assert not modules.armed


def test_a_disabled_probe_goes_in_disabled() -> None:
    guest, _, session = waiting()
    session.add(Spec(traced(guest), pending=True))
    session.disable()
    assert session.kernel_started(replace(guest.target, modules=Loading())) == ()
    (view,) = session.views()
    assert (view.state, view.address) == ("disabled", TRACED)
