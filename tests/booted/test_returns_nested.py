"""Return probes in functions that nest, and under way when GDB is killed."""

from __future__ import annotations

import re

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import Console
from tests.booted.test_guardian import running
from tests.booted.test_returns import rows

SLEEPERS = 50 if FULL else 10
ASLEEP = 4 if FULL else 2
"""Seconds."""


def hits(name: str) -> str:
    return keep(name, "optprobe list")


PINGS = 20
WITHIN = '$_any_caller_is("raw_sendmsg", 30)'
SAVED = (
    "python from gdb_optprobe.debugger.attach import current_session; from json import dumps; _s = current_session(); "
    "print('@@saved'); "
    "(_r,) = [r for r in _s.optimizer.rethooks.known if not r.closed]; "  # an earlier test may have left others
    "print(dumps([c.saved[0] for c in _r.read_calls(_s.target.guest).active]))"
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
        Workload(f"(sleep 0.3; ping -c {PINGS} -i 0.1 127.0.0.1) >/dev/null 2>&1 </dev/null &"),
        # ksoftirqd may send one's reply as well, while its request is nobody's caller.
        f"tbreak icmp_reply if {WITHIN}",
        "continue",
        f"tbreak ip_finish_output2 if {WITHIN}",
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


@pytest.mark.parametrize(
    ("guest", "kills"),
    [("linux", 100 if FULL else 2), ("ppc_guest", 20 if FULL else 2), ("arm_guest", 20 if FULL else 2)],
)
def test_gdb_is_killed_while_calls_are_under_way(request: pytest.FixtureRequest, guest: str, kills: int) -> None:
    """They return as they should; the next GDB takes the probe over and counts them, or takes out what is left."""
    linux: Guest = request.getfixturevalue(guest)
    under_way = 0
    for kill in range(kills):
        with Console(linux) as gdb:
            assert "optimized" in gdb("optprobe add hrtimer_nanosleep -return do hist($elapsed)")
            assert "optimized" in gdb("optprobe add hrtimer_nanosleep")
            sleepers = linux.spawn(f"for n in $(seq {SLEEPERS}); do (sleep {ASLEEP} && echo woken) & done; wait")
            gdb(f"optprobe run -until-hits 2:{SLEEPERS} -timeout 20", timeout=30)
            gdb.send("continue")
            gdb.kill()
        assert running(linux)
        with Console(linux) as gdb:
            if kill % 2:
                gdb("optprobe recover -remove", timeout=30)
                assert {probe["state"] for probe in gdb.probes()} <= {"deleted"}
            else:
                assert gdb("optprobe recover").count("optimized") == 2
                under_way += gdb.probes()[0]["active"]
            gdb.send("continue")
            status, output = sleepers.wait(20)
            assert (status, output.split()) == (0, ["woken"] * SLEEPERS)
            gdb.interrupt()
            if not kill % 2:
                returned, entered = gdb.probes()
                assert returned["hits"] == returned["calls"]["returns"] == entered["hits"] >= SLEEPERS
                assert (returned["active"], returned["missed"], returned["dropped"]) == (0, 0, 0)
            assert "holds what we wrote" in gdb("optprobe check")
        assert linux.problems() == [], f"kill {kill}"
    assert under_way or not FULL, "no call was under way when it was taken over"
    print(f"{kills} kills; {under_way} calls of {(kills + 1) // 2 * SLEEPERS} were under way when they were taken over")
