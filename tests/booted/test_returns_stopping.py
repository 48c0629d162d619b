"""Return probes where the guest stops at the entry: GDB takes the call's slot then, and all is as exact."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, on_every_isa
from tests.booted.gdb import Console
from tests.booted.test_handlers import maps, records, report
from tests.booted.test_returns import PROCESSES, many_dd, read_theirs, rows, summed, theirs_of_read_zero, untrace

READS = 100 if FULL else 3
TIERS = ("breakpoint", "boosted", "emulated") if FULL else ("emulated",)
SIZE = 777
ENTRY = {"x86_64": ("ksys_read", "$rdx"), "ppc64le": ("ksys_read+8", "$r5"), "aarch64": ("ksys_read", "$x2")}


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_is_exact(each_linux: Guest, tier: str) -> None:
    """Returns, their values and what is saved of eight processes' calls, beside the guest's own kretprobe."""
    # The guest's own event makes the tracer's nop a call.
    mine = 'entry if $comm == "dd" do save size = $arg3, sum($arg3) if $saved.size == 7 do count by $retval'
    script: list[str | Workload] = [
        theirs_of_read_zero(each_linux),
        f"optprobe add read_zero -tier {tier} -return {mine}",
        many_dd(READS),
        rows(1),
        report("report"),
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
    assert calls["entries"] == calls["returns"] == PROCESSES * READS
    assert probe["stops"] >= PROCESSES * READS
    values = {int(value): count for value, count in finished.json("rows 1").items()}
    ours = sum(values.values()), sum(value * count for value, count in values.items())
    assert ours == summed(finished.workloads[-1])
    assert maps(finished, "report")[1, "entry sum($arg3)"] == ours[1]


@pytest.mark.parametrize("tier", ["optimized", *(TIERS if FULL else ())])
def test_actions_at_the_entry(each_linux: Guest, tier: str) -> None:
    """Carried out for the calls that find room and are looked at; what they gather stands beside the return's."""
    forced = f"-tier {tier}" if tier != "optimized" else ""
    reads = READS if forced else 150
    keeps = 'save n = $arg3, sum($arg3), count by $arg3, print("%s reads %ld", $comm, $arg3)'
    both = f'entry if $comm == "dd" && $arg3 < 100 do {keeps} if $retval == $saved.n do count by $retval'
    script: list[str | Workload] = [
        f"optprobe add ksys_read {forced} -return {both}",
        f"optprobe add vfs_read {forced} -return -maxactive 1 entry do count, hist($arg3)",
        # Its read takes the only slot for as long as it sleeps.
        Workload("(sleep 1000 | cat) </dev/null >/dev/null 2>&1 & sleep 0.3"),
        Workload(f"for n in 1 2 3; do dd if=/dev/zero of=/dev/null bs=$n count={reads} 2>/dev/null & done; wait"),
        keep("list", "optprobe list"),
        report("report"),
        "optprobe check",
        Workload("killall sleep; sleep 0.1"),
    ]
    finished = batch(each_linux, script, timeout=600 if FULL else 60)
    assert finished.status == 0, finished.output
    one, bounded = finished.json("list")
    assert (one["tier"], one["hits"], one["missed"], one["faults"]) == (tier, 3 * reads, 0, 0), finished.output
    found = maps(finished, "report")
    by_size = {(size,): reads for size in (1, 2, 3)}
    assert found[1, "entry count by $arg3"] == found[1, "count by $retval"] == by_size
    assert found[1, "entry sum($arg3)"] == 6 * reads
    texts = Counter(line["text"] for line in records(finished, "report"))
    assert texts == {f"dd reads {n}": reads for n in (1, 2, 3)}
    calls = bounded["calls"]
    assert calls["missed"] >= 3 * reads
    assert found[2, "entry count"] == sum(each["count"] for each in found[2, "entry hist($arg3)"])
    assert found[2, "entry count"] == calls["returns"] + calls["active"] + calls["dropped"]


def test_what_makes_no_sense_at_the_entry(linux: Guest) -> None:
    wanted = {
        "stop": "optprobe: 'stop' is no action at the entry",
        "latency": "optprobe: a call's time is known where it has returned",
        "sum($retval)": "optprobe: $retval is not available at this address",
        "sav n = 1": "optprobe: no action named 'sav'",
    }
    script = ["set optprobe exit-on-error off", *(f"optprobe add vfs_read -return entry do {each}" for each in wanted)]
    tried = [f"python\ntry: gdb.execute({line!r})\nexcept gdb.error as error: print(error)\nend" for line in script]
    finished = batch(linux, [*tried, keep("list", "optprobe list")], timeout=60)
    assert all(told in finished.output for told in wanted.values()), finished.output
    assert finished.json("list") == []


@on_every_isa
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
