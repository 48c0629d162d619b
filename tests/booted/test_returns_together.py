"""The returns of a glob, which share a table of calls: exact, beside single ones and the guest's own, and taken out."""

from __future__ import annotations

import re

import pytest

from qemu.debugger import Debugger
from qemu.guest import Guest
from qemu.rsp_proxy import RspProxy
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import Boot

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
    """No thread rests for ever in what is probed: its call would stay behind the test."""
    script: list[str | Workload] = [
        "set optprobe max-probes 60000",
        f"optprobe add -glob [t-v]* -return{action}",
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
    assert CALLS <= hits["vfs_write"] < CALLS + 100


USED = "python arena = current_session().optimizer.arena; print('used', arena.code.used, arena.data.used)"


def test_every_function_of_a_kernel(linux: Guest) -> None:
    """What that takes, in packets and in bytes of the guest's memory."""
    with RspProxy(linux.gdb_socket) as proxy, Debugger(proxy.path) as gdb:
        gdb("python from gdb_optprobe.debugger.attach import current_session")
        gdb("optprobe add vfs_read")  # what the first probe of a boot takes
        gdb("optprobe delete")

        def packets(line: str) -> tuple[int, str]:
            before = proxy.count().packets
            said = gdb(line, 120)
            return proxy.count().packets - before, said

        first, added = packets("optprobe add -glob * -return do latency")
        found = re.search(r"(\d+) addresses, (\d+) optimized", added)
        assert found is not None and found[1] == found[2], added
        functions = int(found[1])
        code, data = map(int, gdb(USED).rpartition("used")[2].split())
        print(f"{functions} returns: {first} packets, {code} bytes of code, {data} of data")
        assert functions > 30_000 and "the guest's own traces of its stacks" in " ".join(added.split())
        assert first < 0.6 * functions  # the functions are looked at, once
        assert code < 17 * functions and data < 24 * functions
        gdb("optprobe run -for 1", 60)
        slowest = gdb("optprobe report -sort time -top 5", 60)
        assert slowest.count("sum($elapsed)") == 5
        for line in ("optprobe delete", "optprobe add -glob * -return do latency", "optprobe delete"):
            assert packets(line)[0] < functions / 2, line
        assert "holds what we wrote" in gdb("optprobe check", 60)


def test_a_panic_shows_its_callers_in_gdb(boot: Boot) -> None:
    """The guest's own dump ends at a trampoline: every function on the stack has its return probed."""
    guest = boot()
    guest.check("(sleep 3; echo c > /proc/sysrq-trigger) </dev/null >/dev/null 2>&1 &")
    trace = "python print('@@bt'); gdb.execute('bt')"
    script = ["optprobe add -glob * -return", "break panic", "continue", trace, "kill"]
    finished = batch(guest, script, timeout=100)
    lines = finished.output.split("@@bt\n")[1].splitlines()
    frames = [found[1] for line in lines if (found := re.match(r"#\d+ .* in (\S+) \(\)", line))]
    assert frames[:2] == ["panic", "sysrq_handle_crash"], finished.output
    assert frames[-3:-1] == ["ksys_write", "do_syscall_64"] and "vfs_write" in frames
