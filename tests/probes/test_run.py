"""A run tells how long it was, and what was hit meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Command
from tests.fake_guest import MEETING, PLAIN, THREADS, TRACED, FakeDebugger, Registers, program

LONG = 1000.0
ROUNDS = 5


class Ended:
    """A command in the guest that ends with its first run. See probes.target.Command."""

    runs = 0
    is_open = True

    def outcome(self) -> str:
        self.runs += 1
        return "said\nended" if self.runs > 1 else ""

    def when_ended(self, act: Callable[[], None]) -> None:
        """The debugger here waits for nothing."""

    def close(self) -> None:
        self.is_open = False


@dataclass(frozen=True)
class Debugger(FakeDebugger):
    """Each run is one call of every function by each thread. stop: what ends it."""

    stop: str | None = None
    command: Ended = field(default_factory=lambda: Ended())

    def begin(self, command: str) -> Command:
        return self.command

    def run(self, seconds: float | None, until: Command | None = None) -> str | None:  # type: ignore[override]
        for number in range(THREADS):
            self.guest.run_to(number, MEETING)
        return self.stop


def probed(stop: str | None = None, *addresses: int) -> Session:
    guest = program()
    session = Session(replace(guest.target, debugger=Debugger(guest, stop)), lambda: guest.settings)
    if addresses:
        session.add(*(Spec(f"*{address:#x}") for address in addresses))
    return session


def test_the_line_has_time_and_hits() -> None:
    said = probed("stopped at breakpoint 3", PLAIN, TRACED).run(LONG)
    assert re.fullmatch(rf"stopped at breakpoint 3\nran for [\d.e-]+ s: {2 * THREADS} hits of 2 probes", said)


def test_hits_of_earlier_runs_do_not_count() -> None:
    session = probed("interrupted", PLAIN)
    assert session.run().endswith(f": {THREADS} hits of 1 probe")
    assert session.run().endswith(f": {THREADS} hits of 1 probe") and session.hits(1) == 2 * THREADS


def test_without_probes_there_are_no_hits() -> None:
    assert re.fullmatch(r"interrupted\nran for [\d.e-]+ s", probed("interrupted").run())


def test_a_number_of_hits_ends_it() -> None:
    said = probed(None, PLAIN).run(None, (1, 2 * THREADS))
    assert said.startswith(f"probe 1 has {2 * THREADS} hits\nran for ") and said.endswith(" hits of 1 probe")


def test_a_timeout_tells_the_hits_too() -> None:
    session = probed(None, PLAIN)
    with pytest.raises(OptprobeError, match=r"nothing stopped the guest within 1e-06 s: \d+ hits of 1 probe"):
        session.run(None, (1, 1 << 40), timeout=1e-6)


def test_a_command_in_the_guest_ends_it() -> None:
    session = probed(None, PLAIN)
    said = session.run(guest="dd")
    assert re.fullmatch(rf"said\nended\nran for [\d.e-]+ s: {THREADS} hits of 1 probe", said)
    debugger = session.target.debugger
    assert isinstance(debugger, Debugger) and not debugger.command.is_open


def test_something_is_done_again_and_again() -> None:
    session = probed(None, PLAIN, TRACED)
    seen = []

    def then() -> None:
        seen.append(session.hits(1))
        session.clear([1])

    said = session.run(None, (2, ROUNDS * THREADS), every=1e-9, then=then)
    assert seen == [0, *[THREADS] * (ROUNDS - 1)]
    assert said.endswith(f": {2 * ROUNDS * THREADS} hits of 2 probes"), "what was cleared counts too"


def recording(ring_records: int = 512) -> Session:
    """Two probes that record, and one that does not."""
    guest = program()
    guest.names = NamesAt(Registers(guest.isa), cpu=Constant(0))
    session = Session(replace(guest.target, debugger=Debugger(guest)), lambda: Settings(ring_records=ring_records))
    session.add(*(Spec(f"*{address:#x}", actions=("record($rdi)",)) for address in (PLAIN, TRACED)))
    session.add(Spec(f"*{PLAIN:#x}"))
    return session


def test_records_are_taken_out_as_they_come() -> None:
    session, shown = recording(), list[list[int]]()
    follower = session.follower(None, lambda views: shown.append([len(view.records) for view in views]))
    session.run(None, (1, ROUNDS * THREADS), every=1e-9, then=lambda: min(follower(), 1e-9))
    follower()
    assert shown == [[], *[[THREADS, THREADS]] * ROUNDS]
    assert (follower.records, follower.lost) == (2 * ROUNDS * THREADS, 0)
    assert [(view.hits, view.records) for view in session.reports([1, 2])] == [(ROUNDS * THREADS, ())] * 2


def test_of_the_chosen_probes_only() -> None:
    session, shown = recording(), list[int]()
    follower = session.follower([2], lambda views: shown.extend(view.number for view in views))
    session.run(None, (1, THREADS), every=1e-9, then=follower)
    follower()
    assert shown == [2] and [len(view.records) for view in session.reports([1, 2])] == [THREADS, 0]


def test_what_could_not_be_shown_is_there_still() -> None:
    session = recording()

    def fails(views: object) -> None:
        raise OptprobeError("the terminal is gone")

    session.target.debugger.run(None)
    with pytest.raises(OptprobeError, match="terminal"):
        session.follower(None, fails)()
    assert [len(view.records) for view in session.reports([1, 2])] == [THREADS] * 2


def test_what_is_lost_is_counted_once_and_stays_in_the_report() -> None:
    session = recording(2)
    follower = session.follower([1], bool)
    for _ in range(2):
        for _ in range(ROUNDS):
            session.target.debugger.run(None)
        follower()
    assert (follower.records, follower.lost) == (4, 2 * ROUNDS * THREADS - 4)
    assert session.reports([1])[0].dropped == follower.lost


def test_there_is_something_to_follow() -> None:
    with pytest.raises(OptprobeError, match="no probe keeps records"):
        recording().follower([3], bool)
