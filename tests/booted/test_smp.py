"""What compiled handlers gather on several CPUs at once is exact: by the guest's own hist triggers of the same run.

The guest counts at its tracepoints of read(2) and write(2), we where those calls go on, each by process. In a guest of
several threads the tracepoints are on from boot: see conftest.py on guests that rewrite their text while vCPUs run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import Finished, Workload, batch, keep
from tests.booted.conftest import EVERY_ISA, FULL, PARALLEL, Boot
from tests.booted.test_handlers import report, reported

EACH = 125_000 if FULL else 1_500
SIZES = (50, 100, 5_000, 7_777)
EVENTS = "/sys/kernel/tracing/events/syscalls/sys_enter_{}"
AT_BOOT = "trace_event=syscalls:sys_enter_read,syscalls:sys_enter_write"
KEPT_ALL = ("count by $pid", "sum($arg3) by $pid", "max($arg3) by $pid")
PRESSED = ("count by $time", "sum($arg3) by ($arg3, $time >> 4 & 1023)")
"""The clock of aarch64 has steps of 16 ns."""
MACHINES = [("x86_64", 4), ("ppc64le", 2), *([("x86_64", 2), ("ppc64le", 4)] if FULL else [])]
MACHINES += [("aarch64", 2)] * EVERY_ISA


def dd(size: int) -> str:
    return f"dd if=/dev/zero of=/dev/null bs={size} count={EACH} 2>/dev/null"


WORK = Workload(" & ".join(map(dd, SIZES * 2)) + " & wait", 3000 if FULL else 120)


def trigger(call: str, sign: str = "") -> str:
    """The guest's own count and sum, by process, of what dd asks for."""
    text = f'{sign}hist:keys=common_pid:vals=count:size=4096 if comm == "dd"'
    return f"echo '{text}' > {EVENTS.format(call)}/trigger"


def by_process(guest: Guest, call: str) -> dict[int, tuple[int, int]]:
    """Calls, and the bytes asked for, as the guest itself has counted."""
    text = guest.check(f"cat {EVENTS.format(call)}/hist")
    assert re.search(r"Dropped: 0$", text, re.MULTILINE), text
    lines = re.findall(r"\{ common_pid: +(\d+) \} +hitcount: +(\d+) +count: +(\d+)", text)
    return {int(pid): (int(calls), int(total)) for pid, calls, total in lines}


@pytest.mark.parametrize(("arch", "cpus"), MACHINES)
def test_totals(request: pytest.FixtureRequest, boot: Boot, arch: str, cpus: int) -> None:
    if arch == "ppc64le" and not FULL:
        guest = request.getfixturevalue("ppc_guest")
    else:
        guest = boot(arch=arch, smp=cpus, append=AT_BOOT, extra=PARALLEL)
    calls = {"read": "ksys_read", "write": "ksys_write"}
    alone = ("sum($arg3)", "min($arg3)", "max($arg3)", "avg($arg3)", "hist($arg3)", "lhist($arg3, 0, 8000, 500)")
    script: list[str | Workload] = []
    for place in calls.values():
        script += [f'optprobe add {place} if $comm == "dd" do {", ".join((*alone, *KEPT_ALL))}']
        script += [f'optprobe add {place} if $comm == "dd" do {", ".join((*PRESSED, "record($pid, $arg3)"))}']
    script += ["optprobe commit", Workload("; ".join(map(trigger, calls))), WORK]
    script += [keep("list", "optprobe list"), report("report"), "optprobe check", "optprobe delete"]
    try:
        finished = batch(guest, script, timeout=3000 if FULL else 300)
        assert finished.status == 0, finished.output
        theirs = [by_process(guest, call) for call in calls]
    finally:
        guest.check("; ".join(trigger(call, "!") for call in calls))
    assert {probe["tier"] for probe in finished.json("list")} == {"optimized"}, finished.output
    assert guest.problems() == []
    first = finished.json("list")[0]["number"]
    for at, expected in zip((first, first + 2), theirs, strict=True):
        assert len(expected) == len(SIZES) * 2 and sum(hits for hits, _ in expected.values()) >= 8 * EACH
        check_kept(finished, at, expected)
        check_pressed(finished, at + 1, expected)


def check_kept(finished: Finished, number: int, expected: Mapping[int, tuple[int, int]]) -> None:
    """Nothing is lost where there is room."""
    lines = [line for line in reported(finished, "report") if line["type"] == "map" and line["number"] == number]
    assert [line["lost"] for line in lines] == [0] * len(lines)
    found: dict[str, Any] = {line["action"]: entries(line) for line in lines}
    assert {pid: hits for (pid,), hits in found["count by $pid"].items()} == {p: n for p, (n, _) in expected.items()}
    assert {pid: total for (pid,), total in found["sum($arg3) by $pid"].items()} == {
        pid: total for pid, (_, total) in expected.items()
    }
    hits, total = (sum(each) for each in zip(*expected.values(), strict=True))
    sizes = {pid: of_it // EACH for pid, (_, of_it) in expected.items()}
    assert Counter(sizes.values()) == Counter(SIZES * 2)
    assert {pid: greatest for (pid,), greatest in found["max($arg3) by $pid"].items()} == sizes
    assert found["sum($arg3)"][()] == total
    assert (found["min($arg3)"][()], found["max($arg3)"][()]) == (min((*SIZES, *said(expected))), max(SIZES))
    assert found["avg($arg3)"][()] == total // hits
    for histogram in ("hist($arg3)", "lhist($arg3, 0, 8000, 500)"):
        assert sum(bucket["count"] for bucket in found[histogram][()]) == hits


def check_pressed(finished: Finished, number: int, expected: Mapping[int, tuple[int, int]]) -> None:
    """What is kept, and what there was no room for, is all there was."""
    lines = [line for line in reported(finished, "report") if line["number"] == number]
    (probe,) = (line for line in lines if line["type"] == "probe")
    hits = sum(each for each, _ in expected.values())
    assert probe["hits"] == hits
    by_action = {line["action"]: line for line in lines if line["type"] == "map"}
    unique, sums = (by_action[action] for action in PRESSED)
    assert unique["lost"] > 0 and sum(entries(unique).values()) + unique["lost"] == hits
    assert sums["lost"] > 0
    # Every value of a key is the key's own: what is kept is a number of them, and the rest was lost.
    kept = sum(total // size for (size, _), total in entries(sums).items())
    assert all(total % size == 0 for (size, _), total in entries(sums).items())
    assert kept + sums["lost"] == hits
    made = [line["values"] for line in lines if line["type"] == "record"]
    assert len(made) + probe["dropped"] == hits and len(made) > 0
    assert {pid for pid, _ in made} <= set(expected)
    assert all(size in (expected[pid][1] // EACH, *said(expected)) for pid, size in made)


def said(expected: Mapping[int, tuple[int, int]]) -> set[int]:
    """How long the lines are that dd ends with; they are written, never read."""
    return {total % EACH for calls, total in expected.values() if calls > EACH}


def entries(line: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
    return {tuple(entry["key"]): entry["value"] for entry in line["entries"]}
