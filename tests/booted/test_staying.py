"""Probes on what must stay where it is: jump labels, traps and faults that the kernel knows by their addresses.

The kernel rewrites jump labels under the probes, as its tracepoints are switched on and off.
"""

from __future__ import annotations

from pathlib import Path

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import on_every_isa
from tests.booted.test_hot_functions import HELPERS, left

PLACES = Path(__file__).with_name("staying_places.py")
FUNCTIONS = "__schedule try_to_wake_up finish_task_switch sched_fork wake_up_new_task do_exit release_task"
FUNCTIONS += " mm_account_fault kmem_cache_alloc kmem_cache_free __alloc_pages handle_mm_fault filemap_get_pages"
FUNCTIONS += " update_curr vfs_write hrtimer_interrupt __hrtimer_run_queues __run_timers mod_timer del_timer"
FUNCTIONS += " tick_sched_timer account_user_time"
WORK = Workload("i=0; while [ $i -lt 40 ]; do /bin/busybox stat / > /tmp/stat; i=$((i+1)); done", 300)
SWITCHED = "for e in sched kmem timer; do echo {} > /sys/kernel/tracing/events/$e/enable; done"


@on_every_isa
def test_what_must_stay_is_counted_while_the_kernel_rewrites_it(each_linux: Guest, tmp_path: Path) -> None:
    text = tmp_path / "text"
    finished = batch(
        each_linux,
        [
            f"source {HELPERS}",
            f"source {PLACES}",
            f"keep-text {text}",
            'python print("@@places")',
            f"probe-staying {FUNCTIONS}",
            WORK,
            Workload(SWITCHED.format(1)),
            'python print("@@rewritten")',
            "staying-bytes",
            WORK,
            Workload(SWITCHED.format(0)),
            "stop-idle",
            keep("list", "optprobe list"),
            "optprobe check",
            "set optprobe on-exit remove",
        ],
        timeout=900,
    )
    assert finished.status == 0, finished.output
    places, rewritten = finished.json("places"), finished.json("rewritten")
    hits = {probe["number"]: probe["hits"] for probe in finished.json("list")}
    assert len(places) >= 10 and {tier for _, _, tier, *_ in places} == {"optimized"}, places
    assert any(before != now for before, now in rewritten.values()), "the guest has rewritten one of them"
    counted = [(hits[stays], hits[leads]) for stays, leads, _, falls, is_plain in places if falls and is_plain]
    assert all(stays == leads for stays, leads in counted) and sum(one for one, _ in counted) > 1_000
    assert all(hits[stays] <= hits[leads] for stays, leads, *_ in places)
    assert left(each_linux, text) == []
    assert each_linux.problems() == []


@on_every_isa
def test_a_later_gdb_takes_over_what_one_that_was_killed_has_left(each_linux: Guest, tmp_path: Path) -> None:
    text, functions = tmp_path / "text", "__schedule try_to_wake_up do_exit release_task"
    killed = [f"source {HELPERS}", f"keep-text {text}", f"source {PLACES}", 'python print("@@places")']
    killed += [f"probe-staying {functions}", "python import os, signal", "python os.kill(os.getpid(), signal.SIGKILL)"]
    left_by = batch(each_linux, killed)
    places = left_by.json("places")
    assert left_by.status == -9 and places, left_by.output
    taken = [f"source {HELPERS}", "optprobe recover", WORK, "stop-idle", keep("list", "optprobe list")]
    finished = batch(each_linux, [*taken, "optprobe check", "set optprobe on-exit remove"])
    assert finished.status == 0, finished.output
    probes = {probe["number"]: probe for probe in finished.json("list")}
    added = {number for stays, leads, *_ in places for number in (stays, leads)}
    assert probes.keys() == added and {probe["tier"] for probe in probes.values()} == {"optimized"}
    pairs = [(probes[one]["hits"], probes[other]["hits"]) for one, other, _, falls, plain in places if falls and plain]
    assert all(stays == leads for stays, leads in pairs)
    assert sum(probe["hits"] for probe in probes.values()) > 100
    assert left(each_linux, text) == []
    assert each_linux.problems() == []
