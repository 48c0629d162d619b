"""Probes on the stock aarch64 kernel: exact counts, programs, the tracer beside them, a GDB that is killed."""

from __future__ import annotations

import re
from pathlib import Path

from qemu.guest import Guest
from tests.booted.addresses import addresses_of
from tests.booted.batch import Workload, batch, keep
from tests.booted.gdb import Console
from tests.booted.test_ppc64le import ATTEMPT, TRACING, attempt, probes, two_dd

HITS = 5_000
DD = "dd if=/dev/zero of=/dev/null bs=1 count=300 2>/dev/null"
SWITCH = (
    f"cd {TRACING}; for tracer in function function_graph nop; do echo $tracer > current_tracer; {DD}; done; "
    "echo 'p:x vfs_read' > kprobe_events; echo 'p:y vfs_write+0x20' >> kprobe_events; "
    f"echo 1 > events/kprobes/enable; {DD}; echo 0 > events/kprobes/enable; echo > kprobe_events"
)


def text_of(guest: Guest, folder: Path) -> bytes:
    """All of the kernel's text, whatever its vCPUs do: physical memory, in which it is as it is linked."""
    first, last = addresses_of(guest, "_stext", "_etext")
    code = int(guest.check("grep 'Kernel code' /proc/iomem").strip().partition("-")[0], 16)
    path = folder / "text"
    with guest.qmp() as control:
        control.execute("pmemsave", val=code, size=last - first, filename=str(path))
    return path.read_bytes()


def test_optimized_and_exact_on_two_cpus(arm_guest: Guest, tmp_path: Path) -> None:
    """`read_zero` runs once for each byte that is read. A null pointer is a fault of the hit, not of the kernel."""
    before = text_of(arm_guest, tmp_path)
    script: list[str | Workload] = [
        "set optprobe table-keys 64",
        "optprobe add read_zero",
        "optprobe add vfs_read if count == 1 do count by $comm, hist(count)",
        "optprobe add vfs_read+0x1c",
        "optprobe add read_zero -maxactive 64 -return do latency, hist($retval)",
        "optprobe add do_sys_openat2 do count by str($arg2)",
        "optprobe add vfs_write if *(long*)8 == 1",
        two_dd(HITS),
        "optprobe report",
        keep("list", "optprobe list"),
        "optprobe check",
        "optprobe delete",
        "optprobe commit",
        "optprobe check",
    ]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    zero, read, inside, returned, opened, written = finished.json("list")
    assert {probe["tier"] for probe in (zero, read, inside, returned, opened, written)} == {"optimized"}
    assert zero["hits"] == returned["hits"] == 2 * HITS
    assert read["hits"] >= 2 * HITS and inside["hits"] >= 2 * HITS
    assert written["faults"] >= 2 * HITS and not written["hits"]
    assert re.search(r"\[/dev/zero\]: 2$", finished.output, re.M) and opened["hits"] >= 4, finished.output
    assert finished.output.count("holds what we wrote") == 2
    assert text_of(arm_guest, tmp_path) == before


def test_beside_the_tracer_and_the_guest_s_own_kprobes(arm_guest: Guest) -> None:
    """A branch is on the instruction before the tracer's site, so that neither is in the other's way."""
    script: list[str | Workload] = ["optprobe add read_zero,vfs_read", Workload(SWITCH), two_dd(100)]
    finished = batch(arm_guest, [*script, keep("list", "optprobe list"), "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    assert probes(finished)["read_zero"]["hits"] == 4 * 300 + 200
    assert int(str(probes(finished)["vfs_read"]["hits"])) >= 4 * 300 + 200


def test_a_gdb_that_is_killed_leaves_probes_that_another_one_takes_over(arm_guest: Guest) -> None:
    with Console(arm_guest) as gdb:
        gdb("set optprobe guardian off")
        assert "optimized" in gdb("optprobe add read_zero")
        gdb.send("continue")
        arm_guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null")
        gdb.kill()
    arm_guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null")
    script = ["optprobe recover", keep("list", "optprobe list"), "optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    assert finished.json("list")[0]["hits"] == 200


def test_what_is_not_built_is_refused_in_a_line(arm_guest: Guest) -> None:
    finished = batch(
        arm_guest,
        [
            *ATTEMPT,
            attempt("el1_abort -tier trapped"),
            attempt("-user /bin/busybox:0x1000 -return"),
            attempt("el1h_64_sync"),
            "optprobe break vfs_write if count == 77",
            "optprobe list",
        ],
    )
    assert "runs between a trap and its handler" in finished.output
    assert "is not known: it has no symbol" in finished.output
    assert "ENTRY_TEXT" in finished.output or "is entry text" in finished.output
    assert "Traceback" not in finished.output and "internal error" not in finished.output
    assert re.search(r"1\s+optimized", finished.output), finished.output


def test_a_backtrace_from_a_stop_to_the_system_call(arm_guest: Guest) -> None:
    with Console(arm_guest) as gdb:
        gdb("optprobe break vfs_read if count == 77")
        running = arm_guest.spawn("dd if=/dev/zero of=/dev/null bs=77 count=1 2>/dev/null")
        assert "hit optprobe" in gdb("continue")
        frames = gdb("bt")
        assert re.search(r"#0 .*vfs_read.*#1 .*ksys_read.*el0t_64_sync_handler", frames, re.S), frames
        gdb("optprobe delete")
        gdb("detach")
        running.wait(30.0)
        running.close()
