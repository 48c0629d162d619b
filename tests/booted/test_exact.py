"""Counts agree with the guest's own tracing to the last hit, and the guest stays healthy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import MARK, Finished, Workload, at_once, batch, keep
from tests.booted.conftest import FULL, PARALLEL, Boot

TRACING = "/sys/kernel/tracing"
EVENTS = Path(__file__).with_name("guest_events.py")
HITS = 100_000 if FULL else 20_000


def two_dd(count: int) -> Workload:
    """Two processes at once, each of which reads and writes `count` single bytes."""
    one = f"dd if=/dev/zero of=/dev/null bs=1 count={count} 2>/dev/null"
    return Workload(f"{one} & {one} & wait")


@pytest.fixture
def traced(linux: Guest) -> Iterator[Guest]:
    """The session's guest; what a test switched on in its tracer is off afterwards."""
    yield linux
    quiet(linux)


def quiet(guest: Guest) -> None:
    guest.check(f"cd {TRACING}; echo 0 > events/enable; echo nop > current_tracer; echo > kprobe_events; echo > trace")


def arm(*places: str) -> Workload:
    """Switch the guest's own kprobe events at `places` on."""
    events = "; ".join(f"echo 'p:e{number} {place}' >> kprobe_events" for number, place in enumerate(places))
    return Workload(f"cd {TRACING}; {events}; echo 1 > events/kprobes/enable; cat kprobe_events")


def event_hits(name: str) -> str:
    return f'python print("{MARK}{name}"); gdb.execute("guest-event-hits")'


def compare(guest: Guest, locations: Sequence[str], events: Sequence[str], workload: Workload, *add: str) -> Finished:
    """Put probes on, work, and read ours and the guest's own counts at the same instants, before and after."""
    script: list[str | Workload] = [*add, *[f"optprobe add {location}" for location in locations], "optprobe commit"]
    script += [arm(*events), f"source {EVENTS}", keep("before", "optprobe list"), event_hits("events before"), workload]
    script += [
        keep("list", "optprobe list"),
        event_hits("events"),
        "optprobe check",
        "optprobe delete",
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output
    assert {probe["tier"] for probe in finished.json("list")} == {"optimized"}, finished.output
    return finished


def ours(finished: Finished) -> dict[str, int]:
    """Hits during the workload by symbol."""
    before = {probe["number"]: probe["hits"] for probe in finished.json("before")}
    return {probe["symbol"]: probe["hits"] - before[probe["number"]] for probe in finished.json("list")}


def theirs(finished: Finished) -> dict[str, int]:
    before = finished.json("events before")
    return {place: hits - before[place] for place, hits in finished.json("events").items()}


def test_two_processes_on_two_cpus(traced: Guest) -> None:
    finished = compare(traced, ["vfs_read"], ["vfs_read+11"], two_dd(HITS))
    assert ours(finished)["vfs_read"] == theirs(finished)["vfs_read+0xb"] >= 2 * HITS


def test_in_the_middle_of_a_function(traced: Guest) -> None:
    finished = compare(traced, ["vfs_read+5", "vfs_read+0x13"], ["vfs_read+11"], two_dd(HITS))
    assert ours(finished) == {
        "vfs_read+0x5": theirs(finished)["vfs_read+0xb"],
        "vfs_read+0x13": theirs(finished)["vfs_read+0xb"],
    }


def test_256_probes_at_once(traced: Guest) -> None:
    finished = compare(
        traced,
        ["vfs_read", "vfs_write", "ksys_read"],
        ["vfs_read+11", "vfs_write+11", "ksys_read+5"],
        two_dd(HITS // 4),
        "optprobe add __x64_sys_[a-m]* ",
        "optprobe add ext4_[a-d]*",
    )
    hits, events = ours(finished), theirs(finished)
    assert len(finished.json("list")) >= 256
    assert hits["vfs_read"] == events["vfs_read+0xb"] >= HITS // 2
    assert hits["vfs_write"] == events["vfs_write+0xb"] >= HITS // 2
    assert hits["ksys_read"] == events["ksys_read+0x5"] >= HITS // 2


def test_full_kernel_with_page_table_isolation(boot: Boot) -> None:
    guest = boot(package="linux-image-amd64", cpu="Nehalem")
    assert "PTI" in guest.check("cat /sys/devices/system/cpu/vulnerabilities/meltdown")
    finished = compare(guest, ["vfs_read", "vfs_read+5"], ["vfs_read+11"], two_dd(HITS))
    hits = ours(finished)
    assert hits["vfs_read"] == hits["vfs_read+0x5"] == theirs(finished)["vfs_read+0xb"] >= 2 * HITS
    assert guest.problems() == []


DD = "dd if=/dev/zero of=/dev/null bs=1 count=500 2>/dev/null"
ROUNDS = "1 2 3" if FULL else "1"
SWITCH = (
    f"cd {TRACING}; for round in {ROUNDS}; do "
    f"for tracer in function function_graph nop; do echo $tracer > current_tracer; {DD}; done; "
    "echo 'p:x vfs_read' > kprobe_events; echo 'p:y vfs_write+11' >> kprobe_events; echo 1 > events/kprobes/enable; "
    f"{DD}; echo 0 > events/kprobes/enable; echo > kprobe_events; done"
)


def test_the_guest_s_tracers_go_on_and_off_over_256_entry_probes(fresh: Boot) -> None:
    traced = fresh()
    script: list[str | Workload] = ["optprobe add __x64_sys_[a-p]*", "optprobe add vfs_write"]
    script += [Workload(SWITCH, 240), keep("list", "optprobe list"), "optprobe check", "optprobe delete"]
    finished = batch(traced, script, timeout=400)
    assert finished.status == 0, finished.output
    probes = finished.json("list")
    assert len(probes) >= 256 and {probe["tier"] for probe in probes} == {"optimized"}
    assert "holds what we wrote" in finished.output
    assert traced.problems() == []
    # The tracer still works, on what was probed too.
    seen = traced.check(
        f"cd {TRACING}; echo vfs_write > set_ftrace_filter; echo function > current_tracer; echo x > /dev/null;"
        " head -n 20 trace; echo nop > current_tracer; echo > set_ftrace_filter"
    )
    assert "vfs_write" in seen


def test_two_cpus_that_run_at_once(fresh: Boot) -> None:
    """No event of the guest's here: each byte is one hit of `read_zero`, which nothing else calls."""
    finished = batch(
        fresh(extra=PARALLEL),
        ["optprobe add read_zero", "optprobe add vfs_read", two_dd(HITS), keep("list", "optprobe list")],
    )
    assert finished.status == 0, finished.output
    zero, entry = finished.json("list")
    assert zero["hits"] == 2 * HITS
    assert entry["hits"] >= 2 * HITS


def test_an_entry_in_use_gets_the_next_instruction(traced: Guest) -> None:
    traced.check(f"cd {TRACING}; echo vfs_read > set_ftrace_filter; echo function > current_tracer")
    finished = batch(traced, ["optprobe add vfs_read", keep("list", "optprobe list"), "optprobe explain vfs_read"])
    traced.check(f"cd {TRACING}; echo nop > current_tracer; echo > set_ftrace_filter")
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    assert (probe["symbol"], probe["tier"]) == ("vfs_read+0x5", "optimized")
    assert "FTRACE_IN_USE" in finished.output


def test_a_new_gdb_takes_over_what_an_earlier_one_left(fresh: Boot) -> None:
    guest = fresh()
    first = batch(guest, ["set optprobe on-exit keep", "optprobe add vfs_read"])
    assert first.status == 0, first.output
    script = ["optprobe recover", "optprobe add vfs_write", two_dd(HITS // 4)]
    finished = batch(guest, [*script, keep("list", "optprobe list"), "optprobe check"])
    assert finished.status == 0, finished.output
    for probe in finished.json("list"):
        assert probe["tier"] == "optimized" and probe["hits"] >= HITS // 2
    assert guest.problems() == []


@pytest.mark.parametrize("tier", ["emulated", "boosted", "breakpoint"])
def test_tiers_that_stop_on_two_cpus_at_once(fresh: Boot, tier: str) -> None:
    """Two vCPUs come to the stop point together again and again: no hit is lost and none is told twice."""
    guest = fresh(extra=PARALLEL)
    count = 2000 if FULL else 150
    script: list[str | Workload] = ["optprobe add vfs_read", f"optprobe add vfs_read+5 -tier {tier}"]
    script += [at_once(guest, two_dd(count).command), keep("list", "optprobe list"), "optprobe delete"]
    finished = batch(guest, script, timeout=900)
    assert finished.status == 0, finished.output
    entry, behind = finished.json("list")
    assert (entry["tier"], behind["tier"]) == ("optimized", tier)
    assert entry["hits"] == behind["hits"] >= 2 * count
