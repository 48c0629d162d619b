"""The trapped tier: an instruction that traps, which is handled in the guest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qemu.guest import Guest
from tests.guest.batch import Workload, batch, keep
from tests.guest.gdb import TRACING, Console, release
from tests.guest.test_exact import HITS, arm, event_hits, ours, quiet, theirs, two_dd

EVENTS = "tests/guest/guest_events.py"
# A static key in the scheduler is switched, by traps of the guest's own; a kprobe of its own stays a trap.
KEY = "/proc/sys/kernel/sched_schedstats"
SWITCH = f"for n in $(seq 40); do echo 1 > {KEY}; echo 0 > {KEY}; done"
UNOPTIMIZED = "/proc/sys/debug/kprobes-optimization"
DD = "dd if=/dev/zero of=/dev/null bs=7 count={} 2>/dev/null"
NOINSTR = ("irqentry_enter", "irqentry_exit")


@pytest.fixture
def traced(linux: Guest) -> Iterator[Guest]:
    """The session's guest, whose own kprobes are traps."""
    linux.check(f"echo 0 > {UNOPTIMIZED}")
    yield linux
    quiet(linux)
    linux.check(f"echo 1 > {UNOPTIMIZED}")


def test_traps_count_what_the_guest_counts(traced: Guest) -> None:
    """Beside traps of the guest's own, which go on and off meanwhile."""
    one = two_dd(HITS).command
    script: list[str | Workload] = [f"optprobe add {place} -tier trapped" for place in ("vfs_read", "vfs_read+0xd")]
    script += ["optprobe add ksys_read -tier trapped -return do count, latency", f"source {EVENTS}"]
    script += [arm("vfs_read+11", "ksys_read+5"), keep("before", "optprobe list"), event_hits("events before")]
    script += [Workload(f"({SWITCH}) & {one}", 120), keep("list", "optprobe list"), event_hits("events")]
    script += ["optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(traced, script)
    assert finished.status == 0, finished.output
    assert finished.output.count("holds what we wrote") == 2
    assert {probe["tier"] for probe in finished.json("list")} == {"trapped"}
    hits, events = ours(finished), theirs(finished)
    assert hits["vfs_read"] == hits["vfs_read+0xd"] == events["vfs_read+0xb"] >= 2 * HITS
    (returns,) = (probe for probe in finished.json("list") if probe["symbol"] == "ksys_read")
    assert (returns["missed"], returns["dropped"]) == (0, 0)
    assert hits["ksys_read"] + returns["active"] == events["ksys_read+0x5"]
    assert traced.problems() == []


def test_where_linux_allows_no_kprobe(linux: Guest) -> None:
    """In what every interrupt runs, while all of it traps."""
    script: list[str | Workload] = [f"optprobe add {name} -tier trapped" for name in NOINSTR]
    script += [two_dd(HITS // 4), keep("list", "optprobe list"), "optprobe check", "optprobe delete"]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    probes = finished.json("list")
    assert {probe["tier"] for probe in probes} == {"trapped"}
    assert min(probe["hits"] for probe in probes) > 100
    assert linux.problems() == []


def test_switched_off_and_on_again(linux: Guest) -> None:
    with Console(linux) as gdb:
        gdb("optprobe add vfs_read -tier trapped")
        gdb("set optprobe trap off")
        assert gdb.probe(1)["tier"] in ("emulated", "boosted")
        gdb("set optprobe trap on")
        assert gdb.probe(1)["tier"] == "trapped"
        gdb.send("continue")
        linux.check(DD.format(300))
        gdb.interrupt()
        assert gdb.hits(1) >= 300 and gdb.probe(1)["stops"] == 0


def test_another_gdb_takes_traps_over(traced: Guest) -> None:
    traced.check(f"cd {TRACING}; echo 'p:trapped vfs_read+11' > kprobe_events; echo 1 > events/kprobes/enable")
    with Console(traced) as gdb:
        assert "trapped" in gdb("optprobe add vfs_read -tier trapped")
        (before,) = gdb.events().values()
        gdb.send("continue")
        traced.check(DD.format(500))
        gdb.kill()
    traced.check(DD.format(500))
    with Console(traced) as gdb:
        assert "trapped" in gdb("optprobe recover")
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
        (after,) = gdb.events().values()
        assert gdb.hits(1) == after - before >= 1000
    release(traced)
    assert traced.problems() == []
