"""The demo, as a newcomer runs it: it shows what it promises and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.conftest import EVERY_ISA, FULL

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "scripts" / "demo"


@pytest.mark.parametrize(
    ("arch", "entry"), [("x86_64", ""), *[("ppc64le", r"\+0x8")] * FULL, *[("aarch64", "")] * EVERY_ISA]
)
def test_it_prints_costs_and_a_report_and_stays_in_gdb_when_asked(arch: str, entry: str) -> None:
    lines = "optprobe add vfs_read\noptprobe list\nquit\n"
    done = subprocess.run([DEMO, "-i", "--arch", arch], input=lines, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    for name in ("no probe", "optprobe, optimized", "GDB's break … if"):
        assert name in done.stdout
    assert re.search(rf"^ +\d+ +100\d{{3}} .*instructions +vfs_read{entry}$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(rf"a stop \(boosted\) +ksys_sync{entry}$", done.stdout, re.MULTILINE), done.stdout
    assert "Num Tier" in done.stdout.partition("optprobe report")[2]


def test_a_guest_of_the_users_own(linux: Guest) -> None:
    command = [DEMO, "--gdb", linux.gdb_socket]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "(gdb) optprobe report" in done.stdout
    assert "gdb-multiarch -ex 'target remote" in done.stdout.splitlines()[-1]
    # What the demo left is a guest that runs, without probes.
    assert linux.check("echo alive", 20) == "alive\n"


@pytest.mark.parametrize("said", ["booting a guest", "measuring what a hit costs"])
def test_nothing_is_left_running_after_ctrl_c(said: str) -> None:
    demo = subprocess.Popen(
        [DEMO],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stderr is not None
    while said not in (line := demo.stderr.readline()):
        assert line, "the demo has ended before"
    time.sleep(1)
    started = children(demo.pid)
    assert started
    # As a terminal does it: to the whole foreground group.
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(20) != 0
    demo.stderr.close()
    assert [pid for pid in started if alive(pid)] == []


def children(pid: int) -> list[int]:
    """All processes below `pid`."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for child in found for each in (child, *children(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
