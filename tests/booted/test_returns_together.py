"""The returns of a glob, which share a table of calls: exact, beside single ones and the guest's own, and taken out."""

from __future__ import annotations

import re

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep

CALLS = 5000
TRACING = "mount -t tracefs t /sys/kernel/tracing 2>/dev/null; cd /sys/kernel/tracing"
OWN = f"{TRACING}; echo 'r:own __x64_sys_read' > kprobe_events; echo 1 > events/kprobes/enable"
PROFILE = f"{TRACING}; cat kprobe_profile"
OFF = f"{TRACING}; echo 0 > events/kprobes/enable; echo > kprobe_events"
DD = f"dd if=/dev/zero of=/dev/null bs=1 count={CALLS} 2>/dev/null"
LOAD = "for i in 1 2 3 4 5; do ls -lR /proc/1 >/dev/null 2>&1; cat /proc/version >/tmp/f; done"


@pytest.mark.parametrize("action", ["", " do latency"])
def test_a_glob_of_returns(linux: Guest, action: str) -> None:
    """read_zero is called by dd alone. ksys_read is jumped to from a function with a kretprobe of the guest's own: its
    return address has two hooks.
    """
    linux.check(OWN)
    script: list[str | Workload] = [
        "set optprobe max-probes 60000",
        f"optprobe add -glob *s*_* -return{action}",
        "optprobe add read_zero -return do count by $retval",
        Workload(DD),
        Workload(PROFILE),
        keep("list", "optprobe list"),
        Workload(LOAD),
        "optprobe check",
        "optprobe delete",
        Workload(DD),
        # While the guest's kretprobe is on, its tracer is kept off the sites: they are free for us all the same.
        f"optprobe add -glob *s*_* -return{action}",
        keep("again", "optprobe list"),
        "optprobe delete",
        Workload(OFF),
        "optprobe commit",
        "optprobe check",
    ]
    try:
        finished = batch(linux, script, timeout=100)
    finally:
        linux.check(OFF)
    assert finished.status == 0, finished.output
    assert len(finished.json("again")) == len(finished.json("list")) - 1
    assert finished.output.count("The guest's memory holds what we wrote.") == 2
    assert "the guest's own traces of its stacks" in finished.output
    hits = {row["symbol"]: row["hits"] for row in finished.json("list")}
    own = re.search(r"own +(\d+)", finished.workloads[1])
    assert own is not None and hits["ksys_read"] - int(own[1]) in range(8), "what reads the profile reads too"
    assert CALLS <= hits["vfs_write"] < CALLS + 100 and hits["read_zero"] == CALLS


@pytest.mark.parametrize("action", ["", " do latency"])
def test_a_glob_of_returns_on_ppc64le(ppc_guest: Guest, action: str) -> None:
    script: list[str | Workload] = [
        "set optprobe max-probes 60000",
        f"optprobe add -glob [r-v]* -return{action}",
        Workload(DD),
        keep("list", "optprobe list"),
        keep("report", "optprobe report -top 5"),
        Workload(LOAD),
        "optprobe check",
        "optprobe delete",
        Workload(DD),
        "optprobe commit",
        "optprobe check",
    ]
    finished = batch(ppc_guest, script, timeout=200)
    assert finished.status == 0, finished.output
    assert finished.output.count("The guest's memory holds what we wrote.") == 2
    rows = finished.json("list")
    hits = {row["symbol"].partition("+")[0]: row["hits"] for row in rows}  # of what is behind a global entry
    assert len(rows) > 1000 and not any(row["missed"] for row in rows)
    assert CALLS <= hits["vfs_write"] < CALLS + 100 and hits["read_zero"] == CALLS
