"""The events of system calls beside the guest's own trace events: the same counts, by the same fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.test_exact import TRACING
from tests.booted.test_returns import rows

READS = 500
MATCH = 'comm == "dd"'
WORK = Workload("; ".join(f"dd if=/dev/zero of=/dev/null bs={n} count={count}" for n, count in ((7, READS), (9, 3))))
EVENTS = {"sys_enter_read": "count", "sys_exit_read": "ret"}
_ROW = re.compile(r"(?:count|ret):\s*(\d+)\s*\}\s*hitcount:\s*(\d+)")


def trigger(event: str, key: str, on: bool = True) -> str:
    return f"echo '{'' if on else '!'}hist:keys={key} if {MATCH}' > {TRACING}/events/syscalls/{event}/trigger"


def of_trigger(text: str) -> dict[str, int]:
    return {key: int(hits) for key, hits in _ROW.findall(text)}


def test_counts_by_field_are_those_of_the_guests_own_events(each_linux: Guest) -> None:
    """The workload's file descriptors and sizes are known, and what the guest's own histograms hold agrees."""
    guest = each_linux
    script: list[str | Workload] = [Workload("; ".join(trigger(event, key) for event, key in EVENTS.items()))]
    script += [f'optprobe add tracepoint:syscalls:{event} if $comm == "dd" do count by args->{key}'
               for event, key in EVENTS.items()]  # fmt: skip
    script += ['optprobe add tracepoint:syscalls:sys_enter_read if $comm == "dd" && args->fd == 0', "optprobe commit"]
    script += [WORK, rows(1), rows(2), keep("list", "optprobe list")]
    script += [Workload(f"cat {TRACING}/events/syscalls/{event}/hist") for event in EVENTS]
    script += [Workload("; ".join(trigger(event, key, on=False) for event, key in EVENTS.items()))]
    script += ["optprobe check", "optprobe delete"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    enter, left = (of_trigger(text) for text in finished.workloads[-3:-1])
    assert enter["7"] == left["7"] == READS and enter["9"] == 3
    assert finished.json("rows 1") == enter, finished.output
    assert finished.json("rows 2") == left, finished.output
    probes: list[dict[str, Any]] = finished.json("list")
    assert [probe["kind"] for probe in probes] == ["kprobe", "kretprobe", "kprobe"]
    assert {(probe["tier"], probe["missed"], probe["faults"]) for probe in probes} == {("optimized", 0, 0)}
    assert probes[2]["hits"] >= READS + 3


def test_a_count_of_an_event_costs_what_one_of_its_function_does(linux: Guest) -> None:
    events = ("tracepoint:syscalls:sys_enter_read", "tracepoint:raw_syscalls:sys_enter")
    finished = batch(linux, [f"optprobe explain {event}" for event in events])
    assert finished.status == 0, finished.output
    found = re.findall(r"<(\w+)>: would be optimized, .* a hit costs 2 instructions", finished.output)
    assert found == ["__x64_sys_read", "x64_sys_call"], finished.output


def test_globs_saving_and_the_guests_own_tables(each_linux: Guest, tmp_path: Path) -> None:
    """Every call's event can be had; what is saved has the events, whatever their functions are called."""
    script: list[str | Workload] = ["set optprobe exit-on-error off", "optprobe add tracepoint:syscalls:sys_enter_*"]
    script += ["optprobe add tracepoint:syscalls:sys_exit_close do count by args->ret", keep("all", "optprobe list")]
    script += ["optprobe delete 2", f"optprobe save {tmp_path}/saved", "optprobe delete"]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    probes = finished.json("all")
    calls = int(each_linux.check(f"ls -d {TRACING}/events/syscalls/sys_enter_* | wc -l"))
    assert calls - 40 < len(probes) - 1 <= calls, "some names of one function are events of their own"
    saved = (tmp_path / "saved").read_text().splitlines()
    assert "optprobe add tracepoint:syscalls:sys_exit_close do count by args->ret" in saved
    assert "optprobe add tracepoint:syscalls:sys_enter_read" in saved
