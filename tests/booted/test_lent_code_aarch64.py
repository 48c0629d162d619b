"""The kernel lends code on aarch64: thousands of counts, exact, taken over after a kill, and given back."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import Console
from tests.booted.test_aarch64 import text_of
from tests.booted.test_lent_pages import KILLS, LENDS, TAKES_BACK, all_given_back

MANY = "optprobe add -glob 's*' -tier optimized"
"""More functions than the image has room for."""
ZERO = "dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null"
STEPS = {"lend": (27, 7), "give_back": (20, 7)}
"""Writes and runs of the guest, of which each is tried."""


def test_thousands_are_counted_and_all_is_given_back(arm_guest: Guest, tmp_path: Path) -> None:
    before = text_of(arm_guest, tmp_path)
    script: list[str | Workload] = [
        MANY, "optprobe add read_zero", Workload(ZERO), "optprobe check", keep("list", "optprobe list"),
        "optprobe delete", "optprobe check",
    ]  # fmt: skip
    with all_given_back(arm_guest):
        finished = batch(arm_guest, script)
    assert finished.status == 0 and LENDS in finished.output and TAKES_BACK in finished.output, finished.output
    assert finished.output.count("holds what we wrote") == 2, finished.output
    (zero,) = (one for one in finished.json("list") if one["location"] == "read_zero")
    assert zero["hits"] == 1000
    found = re.search(r"([\d,]+) addresses, ([\d,]+) optimized", finished.output)
    assert found is not None and found[1] == found[2] and int(found[1].replace(",", "")) > 2000, finished.output
    assert text_of(arm_guest, tmp_path) == before


def test_single_probes_have_room_in_the_journal(arm_guest: Guest, tmp_path: Path) -> None:
    """One after another: beside 29 KiB of code the journal of the image is as soon full as that."""
    before = text_of(arm_guest, tmp_path)
    with all_given_back(arm_guest):
        with Console(arm_guest) as gdb:
            gdb("set optprobe guardian off")
            gdb("set optprobe max-probes 2000")
            printed = gdb("python [gdb.execute(f'optprobe add *(vfs_read+{4 * (n % 100)})') for n in range(900)]")
            assert LENDS in printed and "journal" not in printed
            assert json.loads(gdb("optprobe list -json"))[899]["tier"] == "optimized"
            gdb.kill()
        finished = batch(arm_guest, ["optprobe recover", "optprobe check", "optprobe delete"])
        assert finished.status == 0 and "holds what we wrote" in finished.output, finished.output
    assert text_of(arm_guest, tmp_path) == before


def test_another_gdb_takes_over_what_is_in_lent_code(arm_guest: Guest, tmp_path: Path) -> None:
    before = text_of(arm_guest, tmp_path)
    with all_given_back(arm_guest):
        with Console(arm_guest) as gdb:
            gdb("set optprobe guardian off")
            assert LENDS in gdb(MANY)
            gdb("optprobe add read_zero")
            gdb.send("continue")
            arm_guest.check(ZERO)
            gdb.kill()
        arm_guest.check(ZERO)
        script = ["optprobe recover", "optprobe check", keep("list", "optprobe list"), "optprobe delete"]
        finished = batch(arm_guest, script)
        assert finished.status == 0 and TAKES_BACK in finished.output, finished.output
        assert "holds what we wrote" in finished.output
        (zero,) = (one for one in finished.json("list") if one["location"] == "read_zero")
        assert zero["hits"] == 2000
    assert text_of(arm_guest, tmp_path) == before


def test_settings_refuse_it(arm_guest: Guest) -> None:
    """What there is room for is put in; no hit of the others stops the guest unless it is asked for."""
    finished = batch(arm_guest, ["set optprobe max-memory 0", "optprobe add -glob '*'", "optprobe delete"])
    assert finished.status == 0 and LENDS not in finished.output, finished.output
    assert re.search(r"Probes 1-\d+: \d+ addresses, \d+ optimized", finished.output), finished.output
    assert "left out" in finished.output and "no room" in finished.output, finished.output


STATS = "for n in 1 2 3 4 5 6 7 8 9 10; do cat /proc/net/dev; done >/dev/null"
OF_MODULE = (
    "dummy_get_stats64 do count by str(((struct net_device *)$arg1)->name)",
    'dummy_get_stats64 -return if str(((struct net_device *)$arg1)->name) == "dummy0" do latency',
)


def test_functions_of_a_module_have_room_near_it(arm_guest: Guest) -> None:
    """Their trampolines are where those of the kernel are; what reads memory is near each. Another GDB takes all over.
    """
    arm_guest.check("insmod /lib/modules/dummy.ko numdummies=1")
    stop = "dummy_get_stats64 -return"
    script: list[str | Workload] = ["optprobe add vfs_read do count by file->f_mode"]
    script += [f"optprobe add {each}" for each in OF_MODULE]
    script += [f"optprobe explain {stop}", Workload(STATS), keep("list", "optprobe list"), "optprobe check"]
    script += ["optprobe delete", "optprobe check"]
    try:
        with all_given_back(arm_guest):
            finished = batch(arm_guest, script)
        assert finished.status == 0 and finished.output.count("holds what we wrote") == 2, finished.output
        # By chance a module is in reach of the image: then nothing is lent.
        assert (LENDS in finished.output) == (TAKES_BACK in finished.output), finished.output
        _, *probes = finished.json("list")
        assert [(one["tier"], one["hits"], one["faults"]) for one in probes] == [("optimized", 10, 0)] * 2
        with all_given_back(arm_guest), Console(arm_guest) as gdb:
            assert "optimized" in gdb(f"optprobe break {stop}")
            gdb.work = arm_guest.spawn("cat /proc/net/dev >/dev/null")
            gdb("continue", 60)
            assert "dev_get_stats" in gdb("backtrace 1")
            gdb("optprobe delete")
            gdb.finish_work()
        with all_given_back(arm_guest):
            with Console(arm_guest) as gdb:
                gdb("set optprobe guardian off")
                for each in OF_MODULE:
                    assert "optimized" in gdb(f"optprobe add {each}")
                gdb.kill()
            arm_guest.check(STATS)
            script = ["optprobe recover", Workload(STATS), keep("list", "optprobe list"), "optprobe check"]
            recovered = batch(arm_guest, [*script, "optprobe delete", "optprobe check"])
        assert recovered.output.count("holds what we wrote") == 2, recovered.output
        found = [(one["tier"], one["hits"], one["faults"]) for one in recovered.json("list")]
        assert found == [("optimized", 20, 0)] * 2, recovered.output
    finally:
        arm_guest.check("rmmod dummy")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["lend", "give_back"])
def test_gdb_is_killed_at_a_step(arm_guest: Guest, tmp_path: Path, method: str) -> None:
    before = text_of(arm_guest, tmp_path)
    writes, runs = STEPS[method]
    moments = [*map(str, range(1, writes + 1)), *(f"{number} during" for number in range(1, runs + 1))]
    with all_given_back(arm_guest):
        for moment in moments if FULL else random.sample(moments, 2):
            with Console(arm_guest) as gdb:
                gdb(f"source {KILLS}")
                gdb("set optprobe guardian off")
                gdb(f"dies-at {method} {moment}")
                gdb.send(MANY)
                if method == "give_back":
                    gdb.until("addresses")
                    gdb("optprobe delete")
                    gdb.send("quit")
                try:
                    gdb.process.wait(120)
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"GDB lives at {moment}: {gdb.transcript[-2000:]}") from None
            time.sleep(0.5)
            finished = batch(arm_guest, ["optprobe recover -remove", "optprobe doctor", "optprobe check"])
            nothing = method == "lend" and "no probes of an earlier GDB are in this guest" in finished.output
            assert finished.status == 0 or nothing, f"{moment}: {finished.output}"
            assert "internal error" not in finished.output and "Traceback" not in finished.output, finished.output
    assert text_of(arm_guest, tmp_path) == before
