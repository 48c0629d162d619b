"""What the probes of a glob share, on stock kernels of each architecture: maps by function, and one routine.

The guest's own histogram trigger counts the same calls by the same keys, beside a workload of known size.
"""

from __future__ import annotations

import json
import re

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep

COUNT = 3000
TRACING = "/sys/kernel/tracing"
EVENT = f"{TRACING}/events/syscalls/sys_enter_write"
DD = f"dd if=/dev/zero of=/dev/null bs=1 count={COUNT} 2>/dev/null"
BEGIN = f"mount -t tracefs none {TRACING} 2>/dev/null; echo hist:keys=common_pid > {EVENT}/trigger"
END = f"cat {EVENT}/hist; echo '!hist:keys=common_pid' > {EVENT}/trigger"
NO_LOAN = "set optprobe max-memory 0"


def reports(printed: str) -> list[dict[str, object]]:
    lines = printed.partition("@@all\n")[2].splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_glob_s_map_agrees_with_the_guest_s_own_histogram(each_linux: Guest) -> None:
    """Without a loan: tables of their own would take 17 KB for each function."""
    script = [
        NO_LOAN, "optprobe add -glob vfs_* do count by $pid, sum($arg3) by $comm",
        Workload(BEGIN), Workload(f"{DD}; {DD}; true"), Workload(END), keep("all", "optprobe report"),
        "optprobe report -clear", "optprobe delete", "optprobe commit -timeout 60", "detach",
    ]  # fmt: skip
    found = batch(each_linux, script)
    own = {pid: int(hits) for pid, hits in re.findall(r"common_pid: +(\d+) .*hitcount: +(\d+)", found.workloads[-1])}
    programs = [pid for pid, hits in own.items() if hits >= COUNT]
    assert len(programs) == 2, found.workloads
    lines = reports(found.output)
    maps = [line for line in lines if line["type"] == "map" and line["action"] == "count by $pid"]
    probes = {line["number"]: line for line in lines if line["type"] == "probe"}
    writes, reads = (
        next(
            {str(entry["key"][0]): entry["value"] for entry in one["entries"]}  # type: ignore[attr-defined]
            for one in maps
            if str(probes[one["number"]]["symbol"]).partition("+")[0] == name
        )
        for name in ("vfs_write", "vfs_read")
    )
    assert {pid: writes[pid] for pid in programs} == {pid: own[pid] for pid in programs}
    assert all(COUNT <= reads[pid] <= COUNT + 20 for pid in programs)
    for one in maps:
        entries: list[dict[str, int]] = one["entries"]  # type: ignore[assignment]
        assert sum(entry["value"] for entry in entries) == probes[one["number"]]["hits"] and one["lost"] == 0


def test_a_condition_of_a_glob_counts_exactly_and_leaves_nothing(each_linux: Guest) -> None:
    script = [
        NO_LOAN, 'optprobe add -glob vfs_* if $comm == "dd"',
        "python from gdb_optprobe.debugger.attach import current_session as s",
        'python print("together", len(s().registry.blocks), len(s().block_routines.placed), s().check())',
        Workload(f"{DD}; cat /proc/version > /dev/null"), keep("all", "optprobe report"), "optprobe disable",
        Workload(DD), "optprobe enable", Workload(DD),
        'python print("writes", *(view.hits for view in s().views() if view.symbol.partition("+")[0] == "vfs_write"))',
        "optprobe delete", 'python print("left", s().block_routines.placed)', "optprobe commit -timeout 60", "detach",
    ]  # fmt: skip
    printed = batch(each_linux, script).output
    assert re.search(r"together [1-9]\d* ([1-9]\d*) \(\)\n", printed) and "left []" in printed, printed
    hits = {str(line["symbol"]).partition("+")[0]: line["hits"] for line in reports(printed) if line["type"] == "probe"}
    assert COUNT <= hits["vfs_write"] <= COUNT + 5 and COUNT <= hits["vfs_read"] <= COUNT + 10, hits
    assert f"writes {2 * hits['vfs_write']}" in printed, printed


def test_a_backtrace_in_the_routine_shows_the_probed_function(each_linux: Guest) -> None:
    """At the routine's first instruction and behind what it saves; a program that writes runs meanwhile."""
    each_linux.check("dd if=/dev/zero of=/dev/null bs=1 > /dev/null 2>&1 & echo $! > /tmp/dd")
    stop = ['python gdb.execute(f"tbreak *{at:#x}")', "continue", "bt 4"]
    script = [
        "optprobe add -glob vfs_* if $pid != -1",
        "python from gdb_optprobe.debugger.attach import current_session as s",
        "python routine = s().block_routines.at(s().block_routines.placed[0].address).installed.detour",
        "python insns = s().target.guest.isa.decode(routine.data, routine.address)",
        "python at = insns[0].address", *stop, "python at = insns[-1].address", *stop,
        'python [print("probed", view.address) for view in s().views()]', "optprobe delete", "detach",
    ]  # fmt: skip
    printed = batch(each_linux, script).output
    each_linux.check("kill $(cat /tmp/dd)")
    probed = re.findall(r"^#2 +0x([0-9a-f]+) in", printed, re.MULTILINE)
    callers = re.findall(r"^#3 .* in (\w+)", printed, re.MULTILINE)
    assert len(probed) == 2 and {*callers} <= {"ksys_write", "ksys_read"} and len(callers) == 2, printed
    assert all(f"probed {int(at, 16)}\n" in printed for at in probed), printed


def by_key(lines: list[dict[str, object]], function: str, action: str) -> dict[str, int]:
    """Return what an action has gathered of a function."""
    (number,) = (
        line["number"] for line in lines
        if line["type"] == "probe" and str(line["symbol"]).partition("+")[0] == function
    )  # fmt: skip
    (found,) = (line for line in lines if (line["type"], line["number"], line.get("action")) == ("map", number, action))
    entries: list[dict[str, list[object]]] = found["entries"]  # type: ignore[assignment]
    return {str(entry["key"][0]): entry["value"] for entry in entries}  # type: ignore[misc]


def test_a_routine_fills_the_map_of_a_glob_and_another_gdb_takes_it_over(each_linux: Guest) -> None:
    """As large globs have it: the actions are in one routine, a function's detour is its call."""
    actions = "count by $pid, sum($arg3) by $comm"
    session = "python from gdb_optprobe.debugger.attach import current_session as s"
    blocks = "len(s().registry.blocks), len(s().block_routines.placed), s().check()"
    first = batch(each_linux, [
        NO_LOAN, "python from gdb_optprobe.probes import block_routines as r; r.INLINE = 1 << 20",
        f'optprobe add -glob vfs_* if $comm == "dd" do {actions}', session, f'python print("together", {blocks})',
        'python print("steps", *(block.step for block in s().registry.blocks))',
        Workload(BEGIN), Workload(f"{DD}; {DD}; cat /proc/version > /dev/null"), Workload(END),
        keep("all", "optprobe report"), "set optprobe on-exit keep", "detach",
    ])  # fmt: skip
    assert re.search(r"together ([1-9]\d*) \1 \(\)\n", first.output), first.output
    steps = re.search(r"steps (.*)", first.output)
    assert steps is not None and all(int(step) <= 24 for step in steps[1].split())
    own = {pid: int(hits) for pid, hits in re.findall(r"common_pid: +(\d+) .*hitcount: +(\d+)", first.workloads[-1])}
    lines = reports(first.output)
    writes = by_key(lines, "vfs_write", "count by $pid")
    assert len(writes) == 2 and writes == {pid: own[pid] for pid in writes}, (writes, own)
    asked = sum(by_key(lines, "vfs_write", "sum($arg3) by $comm").values())
    assert 2 * COUNT <= asked <= 2 * COUNT + 1000 and {*by_key(lines, "vfs_read", "sum($arg3) by $comm")} == {"dd"}
    second = batch(each_linux, [
        "optprobe recover", session, f'python print("together", {blocks})', Workload(DD),
        keep("all", "optprobe report"), "optprobe delete", 'python print("left", s().block_routines.placed)',
        "optprobe commit -timeout 60", "detach",
    ])  # fmt: skip
    assert re.search(r"together ([1-9]\d*) \1 \(\)\n", second.output) and "left []" in second.output, second.output
    again = by_key(reports(second.output), "vfs_write", "count by $pid")
    assert writes.items() < again.items() and len(again) == 3, (writes, again)
    assert {again[pid] for pid in again} == {*writes.values()}
