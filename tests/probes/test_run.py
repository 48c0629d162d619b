"""A run tells how long it was, and what was hit meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import MEETING, PLAIN, THREADS, TRACED, FakeDebugger, program

LONG = 1000.0


@dataclass(frozen=True)
class Debugger(FakeDebugger):
    """Each run is one call of every function by each thread. stop: what ends it."""

    stop: str | None = None

    def run(self, seconds: float | None) -> str | None:  # type: ignore[override]
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
