"""Return probes where the guest stops at the entry: GDB takes the call's slot then, and all is as exact."""

from __future__ import annotations

import re

import pytest

from qemu.guest import Guest
from tests.guest.batch import Workload, batch, keep
from tests.guest.conftest import FULL
from tests.guest.gdb import Console
from tests.guest.test_returns import PROCESSES, many_dd, read_theirs, rows, summed, theirs, untrace

READS = 100 if FULL else 3
TIERS = ("breakpoint", "boosted", "emulated") if FULL else ("emulated",)
SIZE = 777
ENTRY = {"x86_64": ("ksys_read", "$rdx"), "ppc64le": ("ksys_read+8", "$r5")}


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_is_exact(each_linux: Guest, tier: str) -> None:
    """Returns, their values and what is saved of eight processes' calls, beside the guest's own kretprobe."""
    # The guest's own event makes the tracer's nop a call.
    mine = 'entry if $comm == "dd" do save size = $arg3 if $saved.size == 7 do count by $retval'
    script: list[str | Workload] = [
        theirs("ksys_read"),
        f"optprobe add ksys_read -tier {tier} -return {mine}",
        many_dd(READS),
        rows(1),
        read_theirs(0),
        keep("list", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(each_linux, script, timeout=600 if FULL else 60)
    untrace(each_linux)
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    calls = probe["calls"]
    assert (probe["tier"], probe["faults"], calls["missed"], calls["dropped"]) == (tier, 0, 0, 0), finished.output
    assert calls["entries"] == calls["returns"] + calls["active"] >= PROCESSES * READS
    assert probe["stops"] >= PROCESSES * READS
    values = {int(value): count for value, count in finished.json("rows 1").items()}
    ours = sum(values.values()), sum(value * count for value, count in values.items())
    assert ours == summed(finished.workloads[-1])


def test_the_users_own_breakpoint(each_linux: Guest) -> None:
    """A call that he stops at its entry is seen to return once, whatever becomes of his breakpoint meanwhile."""
    place, size = ENTRY[each_linux.options.arch]
    each_linux.check(f"printf 'dd if=/dev/zero of=/dev/null bs={SIZE} count=6 2>/dev/null\\n' > /s")
    with Console(each_linux) as gdb:
        gdb(f"optprobe add ksys_read -return if $arg3 == {SIZE}")
        gdb(f"break *({place}) if {size} == {SIZE}")
        gdb.work = each_linux.spawn("sh /s")
        assert "Breakpoint 1, " in gdb("continue")
        callers = re.findall(r"in (\w+) \(\)", gdb("bt"))
        assert callers[0] == "ksys_read" and len(callers) > 2 and "optprobe" not in gdb("bt")
        calls = gdb.probe(1)["calls"]
        assert (calls["active"], calls["missed"]) == (1, 0)
        gdb("delete")  # the branch comes back under his feet: the call is entered there
        assert (gdb.probe(1)["tier"], gdb.probe(1)["calls"]["active"]) == ("optimized", 0)
        assert re.findall(r"in (\w+) \(\)", gdb("bt")) == callers
        gdb(f"break *({place}) if {size} == {SIZE}")
        gdb("stepi")
        gdb("delete")
        gdb(f"optprobe break ksys_read if $arg3 == {SIZE}")
        assert "hit optprobe 2, " in gdb("continue")
        assert gdb.probe(1)["calls"]["active"] == 1
        gdb("optprobe disable 2")
        gdb.finish_work()
        probe = gdb.probe(1)
        assert (probe["hits"], probe["missed"], probe["dropped"]) == (6, 0, 0)
        assert probe["calls"]["entries"] == probe["calls"]["returns"]
