"""GDB is killed: the guest runs on without another one, what is optimized counts on, and no breakpoint is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qemu.debugger import PATIENTLY, gdb_program
from qemu.guest import Guest
from tests.booted.batch import batch
from tests.booted.conftest import FULL, Boot
from tests.booted.gdb import ROOT, Console

KILLS = int(os.environ.get("OPTPROBE_KILLS", "500" if FULL else "5"))
SOON = 60.0
"""Seconds within which the guest must run."""
LONGEST = 3.0 if FULL else 1.0
"""Seconds into adding, running and deleting that GDB is killed at the latest."""
BUSY = "while :; do dd if=/dev/zero of=/dev/null bs=7 count=50 2>/dev/null; cat /proc/uptime > /dev/null; done"
READS = 1000


@pytest.mark.parametrize("arch", ["x86_64", *["aarch64"] * FULL])
def test_killed_at_any_instant(boot: Boot, tmp_path: Path, arch: str) -> None:
    guest = boot(arch=arch)
    guest.check(f"({BUSY}) > /dev/null 2>&1 &")
    guest.snapshot("clean")
    instants = random.Random(7)
    doing: Counter[str] = Counter()
    slowest = 0.0
    for kill in range(KILLS):
        if kill:
            guest.restore("clean")
        line, seconds = one_kill(guest, tmp_path / str(kill), kill, instants.uniform(0, LONGEST))
        doing[line.split()[1]] += 1
        slowest = max(slowest, seconds)
        assert guest.problems() == [], f"kill {kill}, at {line}"
    print(f"{KILLS} kills, the guest ran after {slowest:.2f} s at the latest; at {dict(doing)}")


def test_it_comes_with_the_first_probe_and_goes_with_gdb(linux: Guest) -> None:
    process = "python from gdb_optprobe.debugger.attach import attachments; print(attachments.guard.process.pid)"
    with Console(linux) as gdb:
        gdb("set optprobe on-exit keep")
        gdb("optprobe explain vfs_read")
        assert "NoneType" in gdb(process)
        gdb("optprobe add vfs_read")
        gdb("optprobe add vfs_write")
        first = int(gdb(process))
        assert lives(first)
        gdb("set optprobe guardian off")
        assert ends(first)
        gdb("set optprobe guardian on")
        second = int(gdb(process))
        assert second != first and lives(second)
        gdb("disconnect")
        assert ends(second) and not running(linux)
        for line in gdb.lines():
            gdb(line)
        assert len(gdb.probes()) == 2
        third = int(gdb(process))
        assert third != second and lives(third)
        gdb("set optprobe on-exit remove")
        gdb.send("quit")
        gdb.rest()
        assert ends(third) and running(linux)


@pytest.mark.parametrize("then", ["recover", "recover -remove"])
def test_killed_after_it_took_over_while_the_guest_stands(linux: Guest, then: str) -> None:
    """A GDB that adds nothing of its own is guarded as soon as it takes probes over, or out."""
    with Console(linux) as gdb:
        assert "optimized" in gdb("optprobe add vfs_read")
        gdb.kill()
        frees_itself(linux)
    with Console(linux) as gdb:
        said = gdb(f"optprobe {then}")
        assert "optprobe:" not in said, said
        assert not running(linux)
        gdb.kill()
        frees_itself(linux)
    batch(linux, ["set optprobe exit-on-error off", "optprobe recover -remove"])


@pytest.mark.parametrize("how", ["Ctrl-D", "a hang-up"])
def test_an_end_at_which_gdb_does_not_wait_leaves_a_guest_that_runs(linux: Guest, how: str) -> None:
    """To take a handler off a tracepoint the guest must run; GDB cannot detach then, and QEMU keeps its breakpoints."""
    with Console(linux) as gdb:
        gdb("set optprobe on-exit remove")
        assert "optimized" in gdb("optprobe add tracepoint:sched:sched_switch")
        assert "optimized" in gdb("optprobe add vfs_read")
        if how == "Ctrl-D":
            gdb.send("\x04")
        else:
            gdb.process.send_signal(signal.SIGHUP)
        assert "GDB ends without waiting for the guest" in gdb.rest()
    frees_itself(linux)
    linux.check(read_one(7))
    assert running(linux)
    said = batch(linux, ["optprobe recover", "optprobe list", "optprobe check"])
    assert "No probes." in said.output and "holds what we wrote" in said.output


@pytest.mark.parametrize(("goes_on", "left"), [(False, "code without probes stays"), (True, "1 probe stays in it")])
def test_an_end_at_which_gdb_does_not_wait_tells_where_no_guardian_frees_the_guest(
    linux: Guest, goes_on: bool, left: str
) -> None:
    with Console(linux) as gdb:
        gdb("set optprobe on-exit remove")
        gdb("set optprobe guardian off")
        assert "optimized" in gdb("optprobe add tracepoint:sched:sched_switch")
        if goes_on:
            gdb.send("continue\n")
            while not running(linux):
                time.sleep(0.05)
            gdb.process.send_signal(signal.SIGHUP)
        else:
            gdb.send("\x04")
        said = gdb.rest()
        assert goes_on or "GDB ends without waiting for the guest" in said
        assert left in said and "no guardian frees the guest: it stops at the next breakpoint" in said
        assert "'optprobe recover -remove' there takes out what is left" in said
    batch(linux, ["set optprobe exit-on-error off", "optprobe recover -remove"])
    assert running(linux)
    assert linux.check("echo runs").strip() == "runs"


def frees_itself(guest: Guest) -> None:
    """Wait until a guardian lets the guest run, while no GDB is connected."""
    deadline = time.monotonic() + SOON
    while not running(guest):
        assert time.monotonic() < deadline, "the guest stands"
        time.sleep(0.05)
    assert guest.check("echo runs").strip() == "runs"


DIES_AT_THE_PC = (
    "python import os; from gdb_optprobe.debugger import stops; write = stops.write_selected_registers; "
    "stops.write_selected_registers = lambda values: (write({'rip': values['rip']}), os.kill(os.getpid(), 9))"
)


def test_a_push_that_was_half_emulated_is_made_whole(linux: Guest) -> None:
    with Console(linux) as gdb:
        assert "emulated" in gdb("optprobe add vfs_write+5 -tier emulated")
        gdb(DIES_AT_THE_PC)
        gdb.send("continue")
        work = linux.spawn("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null")
        assert gdb.process.wait(20) == -9
        assert work.wait(20)[0] == 0
    assert running(linux)


@pytest.mark.parametrize("place", ["read_zero", "read_zero+5"])
def test_a_kill_at_a_stop_does_not_count_the_hit_again(linux: Guest, place: str) -> None:
    """The vCPU stands at the probed address, where the branch is, or was; its hit has been counted."""
    work = read_one(7)
    with Console(linux) as gdb:
        gdb(f"optprobe add {place}")
        gdb("optprobe add ksys_read if $arg3 == 7")
        assert "needs GDB" in gdb("optprobe break read_zero if $arg3 == 7" if place == "read_zero" else AFTER)
        gdb.send("continue")
        running_there = linux.spawn(work)
        gdb.until("hit optprobe")
        gdb("optprobe list")
        gdb.kill()
    assert running_there.wait(60)[0] == 0
    linux.check(read_one(8))
    with Console(linux) as gdb:
        gdb("optprobe recover")
        assert [gdb.hits(number) for number in (2, 3)] == [1, 1]
        # A branch that was out of the text for the stop stayed out.
        assert gdb.hits(1) in ((2,) if place == "read_zero" else (1, 2))
        assert "holds what we wrote" in gdb("optprobe check")


def read_one(size: int) -> str:
    return f"dd if=/dev/zero of=/dev/null bs={size} count=1 2>/tmp/said"


AFTER = "optprobe break read_zero+5 if $rdx == 7"


def one_kill(guest: Guest, notes: Path, seed: int, after: float) -> tuple[str, float]:
    """What GDB was about when it was killed, and in how many seconds the guest ran."""
    gdb = killable(guest, notes, seed)
    try:
        ready = lines(notes, gdb)[0]
        time.sleep(after)
    finally:
        gdb.kill()
        gdb.wait()
    killed = time.monotonic()
    while lives(ready["guardian"]) or not running(guest):
        assert time.monotonic() < killed + SOON, f"killed at {lines(notes)[-1]}: the guest does not run"
        time.sleep(0.01)
    seconds = time.monotonic() - killed
    before = word(guest, ready["counter"])
    guest.check(f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null", timeout=20)
    assert word(guest, ready["counter"]) - before >= READS
    assert running(guest)
    return str(lines(notes)[-1]), seconds


def killable(guest: Guest, notes: Path, seed: int, program: str = "") -> subprocess.Popen[bytes]:
    """A GDB that adds, runs and deletes, and tells `notes`. program: on which."""
    script = notes.with_suffix(".gdb")
    script.write_text(
        f"set pagination off\n{PATIENTLY}\ntarget remote {guest.gdb_socket}\nsource {ROOT}/scripts/optprobe.py\n"
        f"set optprobe exit-on-error off\n"
        f"source {Path(__file__).with_name('guest_kills.py')}\nguest-kills {notes} {seed} {program}\n"
    )
    with notes.with_suffix(".out").open("wb") as out:
        command = [gdb_program(), "-nx", "-batch", "-x", str(script)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT)


def lines(notes: Path, gdb: subprocess.Popen[bytes] | None = None) -> list[Any]:
    """What was told so far; where a GDB is given, that is waited for."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(FileNotFoundError):
            if (found := notes.read_text().splitlines()) or gdb is None:
                return [json.loads(line) for line in found]
        waits = gdb is not None and gdb.poll() is None and time.monotonic() < deadline
        assert waits, notes.with_suffix(".out").read_text()
        time.sleep(0.02)


def lives(process: int) -> bool:
    """Whether it has not ended; who is to be reaped has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int) -> bool:
    """Whether it does so soon."""
    deadline = time.monotonic() + SOON
    while lives(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not lives(process)


def running(guest: Guest) -> bool:
    with guest.qmp() as control:
        return bool(control.execute("query-status")["running"])


def word(guest: Guest, address: int) -> int:
    """A word of the guest's physical memory, without GDB."""
    with guest.qmp() as control:
        return int(control.monitor(f"xp /1gx {address:#x}").split(":")[1], 16)
