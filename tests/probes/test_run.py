"""A run tells how long it was, and what was hit meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.run import NOT_BEGUN, NOT_SENT, STILL_RUNS
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Command, Ticks
from tests.fake_guest import MEETING, PLAIN, START, THREADS, TRACED, FakeDebugger, Registers, program

LONG = 1000.0
ROUNDS = 5


class Ended:
    """A command in the guest that ends with its first run. See probes.target.Command."""

    runs = 0
    is_open = True
    has_begun = is_sent = True

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

    def run(self, seconds: float | None, until: Command | None = None, ticks: Ticks | None = None) -> str | None:  # type: ignore[override]
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


@pytest.mark.parametrize("begun", [True, False])
def test_a_command_that_goes_on_is_told_from_one_that_never_began(begun: bool) -> None:
    session = probed("interrupted")
    command = session.target.debugger.begin("dd")
    assert isinstance(command, Ended)
    command.has_begun, command.runs = begun, -9
    said = session.run(guest="dd")
    assert said.endswith(STILL_RUNS if begun else NOT_BEGUN)
    assert begun or "it may still run it" in said, "else it is given once more, and runs twice"
    command.is_sent = command.has_begun = False
    command.runs = -9
    assert session.run(guest="dd").endswith(NOT_SENT)


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

    def then(runs: bool) -> None:
        assert not runs
        seen.append(session.hits(1))
        session.clear([1])

    said = session.run(None, (2, ROUNDS * THREADS), every=1e-9, then=then)
    assert seen == [0, *[THREADS] * (ROUNDS - 1)]
    assert said.endswith(f": {2 * ROUNDS * THREADS} hits of 2 probes"), "what was cleared counts too"


def recording(ring_records: int = 512, debugger: type[Debugger] = Debugger) -> Session:
    """Two probes that record, and one that does not."""
    guest = program()
    guest.names = NamesAt(Registers(guest.isa), cpu=Constant(0))
    session = Session(replace(guest.target, debugger=debugger(guest)), lambda: Settings(ring_records=ring_records))
    session.add(*(Spec(f"*{address:#x}", actions=("record($rdi)",)) for address in (PLAIN, TRACED)))
    session.add(Spec(f"*{PLAIN:#x}"))
    return session


def test_records_are_taken_out_as_they_come() -> None:
    session, shown = recording(), list[list[int]]()
    follower = session.follower(None, lambda views: shown.append([len(view.records) for view in views]))
    session.run(None, (1, ROUNDS * THREADS), every=1e-9, then=lambda runs: min(follower(runs), 1e-9))
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


class Memory:
    """What a way reads while the guest runs: the guest's own, until it cannot be read any more."""

    def __init__(self, session: Session, reads: int) -> None:
        self.memory, self.left = session.target.guest.machine, reads

    def read(self, address: int, size: int) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise Unreadable(address, size)
        return self.memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        raise AssertionError("nothing is written")


def watched(debugger: type[Debugger], reads: int, looks: int) -> tuple[str, list[tuple[bool, int]]]:
    """What a run that is watched says, and what was seen: whether the guest ran, and the hits."""
    guest = program()
    session = Session(replace(guest.target, debugger=debugger(guest)), lambda: guest.settings)
    session.add(Spec(f"*{PLAIN:#x}"))
    sampler, seen = session.sampler(), list[tuple[bool, int]]()

    def look(memory: Any, runs: bool) -> bool:
        seen.append((runs, sampler.sample(memory).hits[0]))
        return len(seen) < looks

    return session.watch(look, cast("LiveMemory", Memory(session, reads)), 0.001), seen


class Ticking(Debugger):
    """The guest runs as long as the ticks want it to."""

    def run(  # type: ignore[override]
        self, seconds: float | None, until: Command | None = None, ticks: Ticks | None = None
    ) -> str | None:
        continues = True
        while continues:
            super().run(seconds)
            continues = ticks is not None and ticks.act() is not None
        return None


def test_a_guest_that_is_watched_runs_until_a_look_ends_it() -> None:
    said, seen = watched(Ticking, 100, 3)
    assert seen == [(True, THREADS), (True, 2 * THREADS), (True, 3 * THREADS)]
    assert said.endswith(f": {3 * THREADS} hits of 1 probe")


def test_where_its_memory_can_no_longer_be_read_it_is_stopped_for_each_look() -> None:
    _, seen = watched(Ticking, 1, 4)
    assert seen == [(True, THREADS), (False, 3 * THREADS), (False, 4 * THREADS), (False, 5 * THREADS)]


def test_the_time_of_a_watch_is_up() -> None:
    session = probed(None, PLAIN)
    seen = list[bool]()

    def look(memory: Any, runs: bool) -> bool:
        seen.append(runs)
        return True

    said = session.watch(look, None, 0.001, 0.01)
    assert seen and not any(seen) and said.startswith("ran for ")


def test_what_stops_a_watch_is_said() -> None:
    session = probed("stopped at breakpoint 3", PLAIN)
    assert session.watch(lambda memory, runs: True, None, 1.0).startswith("stopped at breakpoint 3\nran for ")


@dataclass(frozen=True)
class Rounds(Debugger):
    """The guest runs for ROUNDS rounds, with a tick after each. stops: how often it was stopped, without the last."""

    rounds: list[int] = field(default_factory=lambda: [*range(ROUNDS)])
    stops: list[int] = field(default_factory=list)

    def run(  # type: ignore[override]
        self, seconds: float | None, until: Command | None = None, ticks: Ticks | None = None
    ) -> str | None:
        while self.rounds:
            super().run(seconds)
            self.rounds.pop()
            if ticks is None or ticks.act() is None:
                self.stops.append(len(self.rounds))
                return None
        return "the end"


class Live:
    """What reads the guest's memory while it runs, between two ticks; fails: it does so no longer."""

    def __init__(self, session: Session, fails: bool = False) -> None:
        self.machine, self.fails = cast("Any", session.target.guest.machine), fails

    def read(self, address: int, size: int) -> bytes:
        assert self.machine.runs, "only while it runs"
        if self.fails:
            raise Unreadable(address, size)
        return bytes(self.machine.memory[address - START :][:size])


def followed(ring_records: int, numbers: Sequence[int], fails: bool = False) -> tuple[Session, list[int], Follower]:
    """Follow records while the guest runs. Return the session, where it stopped, and what took the records."""
    session = recording(ring_records, Rounds)
    follower = session.follower(numbers, bool)
    live = cast("LiveMemory", Live(session, fails))
    assert session.run(every=LONG, then=follower, live=live).startswith("the end")
    follower()
    debugger = session.target.debugger
    assert isinstance(debugger, Rounds)
    return session, debugger.stops, follower


def test_records_are_read_while_the_guest_runs_without_a_stop() -> None:
    session, stops, follower = followed(512, [1, 2])
    assert stops == [] and (follower.records, follower.lost) == (2 * ROUNDS * THREADS, 0)
    assert [(view.hits, view.records) for view in session.reports([1, 2])] == [(ROUNDS * THREADS, ())] * 2


def test_a_ring_is_emptied_at_a_stop_once_it_is_half_full() -> None:
    _, stops, follower = followed(8, [1])
    assert THREADS == 2 and stops == [3, 1], "4 records after two rounds, and after two more"
    assert (follower.records, follower.lost) == (ROUNDS * THREADS, 0)


def test_where_memory_can_no_longer_be_read_each_look_is_a_stop() -> None:
    _, stops, follower = followed(512, [1], fails=True)
    assert len(stops) == ROUNDS and follower.records == ROUNDS * THREADS


def test_reports_are_made_while_the_guest_runs_and_never_go_back() -> None:
    session = recording(512, Rounds)
    session.add(Spec(f"*{PLAIN:#x}", actions=("count by $rsp", "hist($rcx)")))
    seen = list[list[int]]()

    def report(runs: bool) -> None:
        assert runs and session.target.guest.machine.runs
        views = session.reports()
        seen.append([view.hits for view in views])
        assert {len(view.records) for view in views[:2]} == {view.hits for view in views[:2]}
        assert sum(row.words[0] for row in views[3].objects[1].rows) == views[3].hits

    session.run(every=LONG, then=report, live=cast("LiveMemory", Live(session)))
    debugger = session.target.debugger
    assert isinstance(debugger, Rounds) and debugger.stops == []
    assert seen == [[THREADS * one] * 4 for one in range(1, ROUNDS + 1)]
    assert seen[-1] == [view.hits for view in session.reports()], "the same at a stop"


def test_what_needs_a_stop_gets_one() -> None:
    session, asked = recording(512, Rounds), list[bool]()

    def then(runs: bool) -> None:
        asked.append(runs)
        session.clear(None)

    session.run(every=LONG, then=then, live=cast("LiveMemory", Live(session)))
    assert asked == [True, False] * ROUNDS, "it is done again where it could not be done"
