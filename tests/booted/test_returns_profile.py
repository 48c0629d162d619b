"""Per-call profiling, as the guide shows it: what is kept of each call is that call's, by the guest's own tracing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.test_exact import TRACING, quiet

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "returns.md"
READS = 5000 if FULL else 300
WAITS = 1000 if FULL else 60
ENTRY, RETURN, TIMES = "kprobes/p0", "kprobes/r0", "synthetic/took"
CLOCK = "clock=mono"
"""The others of the tracer go by ticks on a machine of several vCPUs, whose TSC the kernel takes for unstable."""
TRIGGERS = (
    (ENTRY, 'hist:keys=common_pid:vals=size if comm == "dd"'),
    (ENTRY, f'hist:keys=common_pid:began=common_timestamp:{CLOCK} if comm == "dd"'),
    (RETURN, 'hist:keys=common_pid:vals=ret if comm == "dd"'),
    (
        RETURN,
        "hist:keys=common_pid:ended=common_timestamp-$began:onmatch(kprobes.p0).took($ended,common_pid)"
        f':{CLOCK} if comm == "dd"',
    ),
    (TIMES, "hist:keys=pid:vals=time"),
)
_ROW = re.compile(r"_?pid:\s*(\d+)\s*\} hitcount:\s*(\d+)\s+(?:size|ret|time):\s*(\d+)")
Sums = dict[int, tuple[int, int]]
"""By process: its calls, and the sum of something over them."""


def example() -> str:
    """The command of the guide's profile."""
    section = GUIDE.read_text().split("## A profile of calls\n")[1]
    return next(line for line in section.splitlines() if "optprobe add" in line).removeprefix("(gdb) ")


@pytest.fixture
def traced(linux: Guest) -> Iterator[Guest]:
    yield linux
    untrace(linux)


def trace(third: str) -> Workload:
    """The guest's own events on `ksys_read`, which calls `vfs_read`: sizes, results and times by process.

    third: the register of the third argument, as the guest's tracing spells it.
    """
    lines = [
        f"cd {TRACING}",
        f"echo 'p:p0 ksys_read size={third}' >> kprobe_events",
        "echo 'r:r0 ksys_read ret=$retval' >> kprobe_events",
        "echo 'took u64 time; int pid' > synthetic_events",
        *(f"echo '{trigger}' >> events/{event}/trigger" for event, trigger in TRIGGERS),
        "echo 1 > events/kprobes/enable",
    ]
    return Workload("; ".join(lines))


def untrace(guest: Guest) -> None:
    lines = [f"echo '!{trigger}' >> events/{event}/trigger" for event, trigger in reversed(TRIGGERS)]
    guest.check(f"cd {TRACING}; ({'; '.join(lines)}; echo > synthetic_events) 2>/dev/null; true")
    quiet(guest)
    assert not guest.check(f"cat {TRACING}/kprobe_events {TRACING}/synthetic_events").strip()


def work() -> Workload:
    """Readers that get what they ask for, and some that wait for less of it, all at once."""
    full = [f"dd if=/dev/zero of=/dev/null bs={100 * n} count={READS + n} 2>/dev/null" for n in range(1, 5)]
    short = [f"yes | dd of=/dev/null bs=70000 count={WAITS} 2>/dev/null"] * 4
    return Workload("; ".join(f"({one}) &" for one in (*full, *short)).replace("&;", "&") + " wait")


def rows(number: int) -> str:
    """A line that prints all keyed tables of probe `number`, by action."""
    return (
        "python from gdb_optprobe.debugger.attach import current_session; from json import dumps; "
        f"print('@@tables'); _v = current_session().reports([{number}])[0]; "
        "print(dumps({o.action: {row.key[0]: row.words for row in o.rows} for o in _v.objects if o.rows[0].key}))"
    )


def summed(text: str) -> Sums:
    return {int(pid): (int(hits), int(total)) for pid, hits, total in _ROW.findall(text)}


def profile(guest: Guest, command: str, third: str) -> None:
    finished = batch(
        guest,
        [
            trace(third),
            command,
            "optprobe commit",
            work(),
            rows(1),
            keep("list", "optprobe list"),
            *(Workload(f"cat {TRACING}/events/{event}/hist") for event in (ENTRY, RETURN, TIMES)),
            "optprobe check",
        ],
        timeout=120,
    )
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    assert (probe["tier"], probe["missed"], probe["dropped"], probe["faults"]) == ("optimized", 0, 0, 0)
    sizes, results, times = (summed(text) for text in finished.workloads[-3:])
    tables: dict[str, dict[str, list[int]]] = finished.json("tables")
    calls, asked, got, took = (
        {int(pid): words for pid, words in tables[f"{what} by $saved.pid"].items()}
        for what in ("count", "sum($saved.size)", "sum($retval)", "avg($elapsed)")
    )
    assert len(calls) == len(times) == 8 and sum(words[0] for words in calls.values()) > 4 * READS + 4 * WAITS
    assert {pid: (calls[pid][0], asked[pid][0]) for pid in calls} == sizes
    assert {pid: (calls[pid][0], got[pid][0]) for pid in calls} == results
    assert sum(words[0] for words in asked.values()) > sum(words[0] for words in got.values()), "some were short"
    for pid, (count, time) in times.items():
        assert took[pid][0] == count == calls[pid][0]
        assert 0 < took[pid][1] <= time
    assert sum(words[1] for words in took.values()) > sum(time for _, time in times.values()) / 2


def test_the_profile_of_the_guide(traced: Guest) -> None:
    profile(traced, example(), "%dx")


def test_the_same_on_ppc64le(ppc_guest: Guest) -> None:
    """Where no types are, a parameter goes by its number."""
    try:
        profile(ppc_guest, example().replace("= count,", "= $arg3,"), "%gpr5")
    finally:
        untrace(ppc_guest)
