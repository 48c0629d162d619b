"""Return probes beside the guest's own kretprobes, in functions that nest, and under way when GDB is killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from qemu.guest import Guest
from tests.guest.batch import Workload, batch, keep
from tests.guest.conftest import FULL
from tests.guest.gdb import Console
from tests.guest.test_exact import TRACING
from tests.guest.test_guardian import running
from tests.guest.test_returns import TRIGGER, rows, theirs, untrace

READS = 100
KILLS = 100 if FULL else 2
SLEEPERS = 10
OURS = 'optprobe add vfs_read -return if $comm == "dd" do count'
DD = Workload(f"dd if=/dev/zero of=/dev/null bs=7 count={READS} 2>/dev/null")


@pytest.fixture
def traced(linux: Guest) -> Iterator[Guest]:
    """The session's guest; what a test switched on in its tracer is off afterwards."""
    yield linux
    untrace(linux)


@dataclass(frozen=True)
class Tracer:
    """How one of the guest's own is switched on and off, and prints how many returns of dd's it has seen."""

    on: Workload
    off: Workload
    count: Workload


TRACERS = {
    "kretprobe": Tracer(
        theirs("vfs_read"),
        Workload(
            f"cd {TRACING}; echo '!{TRIGGER}' > events/kprobes/r0/trigger; echo 0 > events/kprobes/r0/enable; "
            "echo > kprobe_events"
        ),
        Workload(f"sed -n 's/ *Hits: //p' {TRACING}/events/kprobes/r0/hist"),
    ),
}


def hits(name: str) -> str:
    return keep(name, "optprobe list")


@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_a_tracer_that_was_there_before(traced: Guest, tracer: Tracer) -> None:
    """Both see every call; ours goes and comes under it, and stays when the other one goes."""
    script: list[str | Workload] = [tracer.on, OURS, "optprobe commit", DD, hits("both"), tracer.count]
    script += ["optprobe delete", DD, tracer.count, OURS, "optprobe commit", DD, tracer.count]
    script += [tracer.off, DD, hits("ours"), "optprobe check", "optprobe delete", DD, "optprobe check"]
    finished = batch(traced, script, timeout=60)
    assert finished.status == 0, finished.output
    seen = [int(text) for text in finished.workloads if text.strip().isdigit()]
    assert seen == [READS, 2 * READS, 3 * READS], finished.workloads
    for name, expected in ("both", READS), ("ours", 2 * READS):
        (probe,) = finished.json(name)
        calls = probe["calls"]
        assert (probe["tier"], probe["hits"], probe["missed"]) == ("optimized", expected, 0)
        assert calls["entries"] == calls["returns"] + calls["active"]


@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_a_tracer_that_comes_later(traced: Guest, tracer: Tracer) -> None:
    """It sees nothing where our probe is, and all when it is switched on after that has gone; ours is exact."""
    script: list[str | Workload] = [OURS, "optprobe commit", tracer.on, DD, hits("both"), tracer.count, tracer.off]
    script += [DD, hits("ours"), "optprobe check", tracer.on, "optprobe delete", DD, tracer.off]
    script += [tracer.on, DD, tracer.count, tracer.off, "optprobe check"]
    finished = batch(traced, script, timeout=60)
    assert finished.status == 0, finished.output
    seen = [int(text) for text in finished.workloads if text.strip().isdigit()]
    assert seen == [0, READS], finished.workloads
    for name, expected in ("both", READS), ("ours", 2 * READS):
        (probe,) = finished.json(name)
        assert (probe["tier"], probe["hits"], probe["missed"]) == ("optimized", expected, 0)


PINGS = 20
SAVED = (
    "python from gdb_optprobe.debugger.attach import current_session; from json import dumps; _s = current_session(); "
    "print('@@saved'); "
    "print(dumps([c.saved[0] for c in _s.optimizer.returns.points[0].instances(_s.target).active]))"
)


def test_calls_within_calls(linux: Guest) -> None:
    """The reply to a ping of this machine itself is sent while the request is: each level has what it saved."""
    linux.check("ifconfig lo 127.0.0.1 up")
    probe = "optprobe add ip_output -return entry do save sp = $sp do count by $saved.sp == $sp"
    script: list[str | Workload] = [
        probe,
        "optprobe add ip_output",
        Workload(f"ping -c {PINGS} -i 0.01 127.0.0.1 >/dev/null"),
        rows(1),
        hits("list"),
        Workload("(sleep 0.3; ping -c 1 127.0.0.1) >/dev/null 2>&1 </dev/null &"),
        "tbreak icmp_reply",
        "continue",
        "tbreak ip_finish_output2",
        "continue",
        SAVED,
        "python print('@@bt'); gdb.execute('bt')",
        "finish",
        "optprobe check",
    ]
    finished = batch(linux, script, timeout=60)
    assert finished.status == 0, finished.output
    assert finished.json("rows 1") == {"1": 2 * PINGS}
    returned, entered = finished.json("list")
    assert (returned["tier"], returned["missed"], returned["dropped"]) == ("optimized", 0, 0)
    assert returned["hits"] == entered["hits"] == 2 * PINGS
    saved = finished.json("saved")
    assert len(saved) == len(set(saved)) == 2, "the request's and the reply's"
    frames = re.findall(r"^#\d+ .* in (\w+) \(\)", finished.output.split("@@bt\n")[1], re.M)
    assert frames.count("ip_output") == 2
    assert frames.index("icmp_reply") < frames.index("raw_sendmsg")


def test_gdb_is_killed_while_calls_are_under_way(linux: Guest) -> None:
    """They return as they should; the next GDB takes out what is left, and has its own probe there."""
    work = f"for n in $(seq {SLEEPERS}); do (sleep 0.8 && echo woken) & done; wait"
    for kill in range(KILLS):
        with Console(linux) as gdb:
            if kill:
                gdb("optprobe recover -remove")
            assert "optimized" in gdb("optprobe add hrtimer_nanosleep -return do hist($elapsed)")
            sleepers = linux.spawn(work)
            gdb("optprobe run -for 0.4")
            (probe,) = json.loads(gdb("optprobe list -json").splitlines()[-1])
            assert (probe["active"], probe["missed"]) == (SLEEPERS, 0)
            gdb.send("continue")
            gdb.process.kill()
            assert gdb.process.wait(20) == -9
            status, output = sleepers.wait(20)
            assert (status, output.split()) == (0, ["woken"] * SLEEPERS)
        assert running(linux)
    with Console(linux) as gdb:
        gdb("optprobe recover -remove")
        assert json.loads(gdb("optprobe list -json").splitlines()[-1]) == []
    assert not linux.problems()
