"""Return probes on ppc64le: as exact as on x86-64, with backtraces through trampolines, and removed under way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import Boot
from tests.booted.test_returns import (
    EVERYWHERE,
    STATE,
    emptied,
    every_call_is_accounted_for,
    exact,
    keeps_of_each_call,
    nobody_is_dropped,
    sleepers,
    sleeping,
    untrace,
)

SLEEPERS = 10


@pytest.fixture
def traced(ppc_guest: Guest) -> Iterator[Guest]:
    """The session's guest; what a test switched on in its tracer is off afterwards."""
    yield ppc_guest
    untrace(ppc_guest)


def test_eight_processes(traced: Guest) -> None:
    exact(traced, ("sys_read", "ksys_read", "vfs_read"))


def test_what_an_entry_keeps(ppc_guest: Guest) -> None:
    keeps_of_each_call(ppc_guest)


def test_every_call_is_accounted_for(ppc_guest: Guest) -> None:
    every_call_is_accounted_for(ppc_guest)


def test_probes_are_removed_while_calls_are_under_way(ppc_guest: Guest) -> None:
    emptied(ppc_guest)
    script: list[str | Workload] = [
        "optprobe add hrtimer_nanosleep -return",
        sleepers(SLEEPERS),
        keep("list", "optprobe list"),
        "optprobe delete",
        "optprobe commit",
        STATE.format("waiting"),
        Workload("killall sleep; sleep 0.2"),
        "optprobe commit",
        STATE.format("gone"),
    ]
    finished = batch(ppc_guest, script, timeout=120)
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    assert (probe["active"], probe["missed"], sleeping(probe)) == (SLEEPERS, 0, SLEEPERS)
    assert finished.json("waiting")[:3] == [1, 1, 1]
    assert finished.json("gone") == [0, 0, 0, 0, 0]


def test_a_returning_thread_is_not_dropped(boot: Boot) -> None:
    nobody_is_dropped(boot(arch="ppc64le"), EVERYWHERE.replace("__x64_sys_read", "do_nanosleep"))
