"""The returns of a glob, which share a table of calls: exact, beside single ones and the guest's own, and taken out."""

from __future__ import annotations

import json
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
        for line in ("optprobe delete", "optprobe add -glob * -return do latency"):
            assert packets(line)[0] < functions / 2, line
        gdb(f"python {MIDDLE}")
        assert "Temporary breakpoint" in gdb("continue", 60)
        before = gdb(USED)
        for _ in range(2):
            gdb("stepi")
        assert gdb(USED) == before, "a step that is past a function's entry leaves that in its block"
        assert packets("optprobe delete")[0] < functions / 2
        assert "holds what we wrote" in gdb("optprobe check", 60)


MIDDLE = (
    "_at = int(gdb.parse_and_eval('(unsigned long)&schedule')); "
    "_code = sorted(current_session().target.guest.text.function(_at).whole.code); "
    "gdb.execute(f'tbreak *{_code[4]:#x}')"
)
HELP = "for i in $(seq 200); do (echo h > /proc/sysrq-trigger); sleep 0.3; done </dev/null >/dev/null 2>&1 &"
FAULT = ["break *(&proc_reg_write)", "continue", "set $FIRST = 0x10", "delete breakpoints", "optprobe run -for 1"]
CRASH = ["break *(&__handle_sysrq)", "continue", "set $rdi = 'c'", "delete breakpoints", "break panic", "continue"]
REPORTED = '{"type": "guest_trace"'
BT = "python print('@@bt'); gdb.execute('bt'); print('@@end')"
LAST = {"x86_64": "entry_SYSCALL_64_after_hwframe", "ppc64le": "system_call_vectored_common"}
CALLER = re.compile(r"^\[ *[\d.]+\]  ?(?:\[[0-9a-f]{16}\] \[[0-9a-f]{16}\] )?([\w.]+)\+0x[0-9a-f]+/0x[0-9a-f]+$", re.M)


def own_traces(log: str) -> list[list[str]]:
    """Return the functions in each trace that the guest has printed, without those that it doubts."""
    return [CALLER.findall(re.split(r"</TASK>|--- interrupt", part)[0]) for part in log.split("Call Trace:")[1:]]


@pytest.mark.parametrize("arch", sorted(LAST))
def test_an_oops_is_unwound_through_probed_returns(boot: Boot, arch: str) -> None:
    """The same fault without probes and with: the report has the trace that the guest prints without.

    In the panic that follows on x86-64, and that prints no trace after an oops, GDB's own backtrace has the callers.
    """
    guest = boot(arch=arch)
    guest.check(HELP)
    fault = [line.replace("FIRST", "rdi" if arch == "x86_64" else "r3") for line in FAULT]
    panic = [*CRASH, BT] if arch == "x86_64" else []
    probed = ["optprobe add -glob [kv]*s_* -return", *fault, *panic, "optprobe report -top 1"]
    script = ["optprobe list", *fault, *probed, "optprobe report -top 1 -json", "kill"]
    finished = batch(guest, script, timeout=100)
    (trace,) = (json.loads(line) for line in finished.output.splitlines() if line.startswith(REPORTED))
    assert "The guest's own trace of thread" in finished.output and not trace["cut"]
    (fault_at,) = (place for place, frame in enumerate(trace["frames"]) if frame.get("interrupted"))
    found = [frame["symbol"].partition("+")[0] for frame in trace["frames"][fault_at:]]
    without, probed_trace, *_ = own_traces(guest.log())
    assert found == ["proc_reg_write", *without] and found[-1] == LAST[arch], guest.log()
    assert len(probed_trace) < len(without), "it ends at a trampoline"
    if panic:
        shown = re.findall(r"^#\d+ .* in (\S+) \(\)", finished.output.split("@@bt\n")[1].split("@@end")[0], re.M)
        assert shown[:2] == ["panic", "sysrq_handle_crash"] and shown[-3:-1] == ["ksys_write", "do_syscall_64"]
