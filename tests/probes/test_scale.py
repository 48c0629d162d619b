"""No verb of a session costs more for a probe when there are many: lines that run and accesses of memory, counted.

Each function of the guest has a site of its tracer, as the kernel's have. N probes and 4 N differ by about 4.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.recovery import teardown
from tests.detours.fakes import code
from tests.fake_guest import START, Body, FakeDebugger, FakeGuest, FakeMachine, FakeText

FEW, TIMES, MOST = 150, 4, 4.6
SIZE = 16
LISTING = """
    0f 1f 44 00 00          nopl (the site)
    48 01 c8                add %rcx,%rax
    48 8d 44 40 07          lea 7(%rax,%rax,2),%rax
    c3                      ret
"""


class ManyFunctions(FakeText):
    """Functions side by side, found by their addresses: this fake's own work is the same for each."""

    def function(self, address: int) -> Any:
        at = (address - START) // SIZE
        return self.functions[at] if 0 <= at < len(self.functions) and address < self.functions[at].end else None

    def ftrace_sites(self, start: int, end: int) -> list[FtraceSite]:
        first, last = max((start - START) // SIZE - 1, 0), (end - START) // SIZE + 1
        sites = [FtraceSite(body.address, 5, False, body.data[:5]) for body in self.bodies[first:last]]
        return [site for site in sites if site.address < end and start < site.address + 5]

    def area(self, address: int) -> Any:
        at = (address - START) // SIZE
        return super().area(address) if at >= len(self.bodies) else FakeText(self.isa, self.bodies[at : at + 1]).area(
            address
        )


class ManyNames(FakeDebugger):
    """Finds them by their numbers, likewise."""

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        return (START + SIZE * int(location.removeprefix("f")),)


class LargeGuest(FakeGuest):
    """A guest of such functions."""

    @property
    def target(self) -> Target:
        return replace(super().target, debugger=ManyNames(self))


def guest_of(count: int) -> FakeGuest:
    """Return a guest with so many functions."""
    guest = LargeGuest([Body(f"f{number}", START + SIZE * number, code(LISTING), 0) for number in range(count)])
    guest.text = ManyFunctions(guest.isa, guest.bodies)
    guest.start_threads(START)
    return guest


def counted(guest: FakeGuest, verb: Callable[[], object]) -> tuple[int, int]:
    """Return how many lines of Python `verb` runs, each turn of a loop on one line too, and how often it accesses the
    guest's memory.
    """
    steps = accesses = 0
    memory = FakeMachine.read.__code__, FakeMachine.write.__code__

    def step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps, accesses
        steps += event == "line"
        accesses += event == "call" and frame.f_code in memory
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        verb()
    finally:
        sys.settrace(before)
    return steps, accesses


def add_all(guest: FakeGuest, session: Session) -> None:
    session.add(*(Spec(body.name) for body in guest.bodies))


def at_next_stop(guest: FakeGuest, verb: Callable[[], object]) -> Callable[[], object]:
    """Return `verb`, when the guest has run since: what was planned and is in detours is not known any more."""

    def run() -> object:
        guest.steps += 1
        return verb()

    return run


def costs(count: int) -> dict[str, tuple[int, int]]:
    """Return what each verb costs with so many probes."""
    guest = guest_of(count)
    guest.settings = replace(guest.settings, max_probes=10_000)
    session = guest.session()
    found = {"add": counted(guest, lambda: add_all(guest, session))}
    verbs: dict[str, Callable[[], object]] = {
        "list": session.views,
        "report": session.reports,
        "clear": session.clear,
        "save": session.saved,
        "check": session.check,
        "stop": session.optimizer.on_stop,
        "disable": session.disable,
        "enable": session.enable,
        # The collector runs at the end of the one or of the other.
        "delete every other": lambda: (session.delete([*range(1, count + 1, 2)]), session.commit(0)),
        "delete": lambda: (session.delete(), session.commit(0)),
    }
    for name, verb in verbs.items():
        found[name] = counted(guest, at_next_stop(guest, verb))
    found["leave"] = counted(guest, at_next_stop(guest, lambda: teardown.teardown(session)))
    assert not session.registry.probes() and guest.read_text() == guest_of(count).read_text()
    return found


def test_no_verb_costs_more_for_a_probe_when_there_are_many() -> None:
    few, many = costs(FEW), costs(FEW * TIMES)
    for verb, (steps, accesses) in many.items():
        assert steps <= MOST * few[verb][0] and accesses <= MOST * few[verb][1] + TIMES, (verb, few[verb], many[verb])
