"""The guest's kernel lends memory when that for data is full, and has it back, whatever else happens."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, PARALLEL, Boot
from tests.booted.gdb import Console

KILLS, SMALL, NO_PADDING = (
    Path(__file__).with_name(f"{name}.py") for name in ("lending_kills", "small_blocks", "no_padding")
)
LENDS, TAKES_BACK = "The guest runs until its kernel has lent", "The guest runs until its kernel has taken back"
TABLES = "optprobe add -glob 'vfs_*' do count by $comm"
RINGS = "optprobe add vfs_read,vfs_write,ksys_read,ksys_write do stack"
LOAD = (
    "touch /tmp/busy; for n in 1 2 3; do (while [ -e /tmp/busy ]; do cat /proc/meminfo > /tmp/some$n; "
    "dd if=/tmp/some$n of=/tmp/other$n bs=64 2>/dev/null; /bin/true; done) & done"
)
READS = "dd if=/dev/zero of=/dev/null bs=7 count=1000 2>/dev/null"
DD = re.compile(r"\[dd\]: 100[0-9]\b")
"""What READS reads and writes, and some bytes of its program."""
ROUNDS = int(os.environ.get("OPTPROBE_ROUNDS", "20" if FULL else "3"))
KIB_OF_NOISE = 1024
"""By which that differs from one moment to the next, though nothing is lost; a block has 2048."""


def free(guest: Guest) -> int:
    """KiB of the guest's memory that are free, or that it knows what it uses for: it does not of a block that is lost.

    A block that is freed comes to a list of its CPU, of which `MemFree` knows nothing.
    """
    guest.check("sync; echo 3 > /proc/sys/vm/drop_caches; sleep 0.2")
    known = "MemFree|Buffers|Cached|AnonPages|Slab|KernelStack|PageTables|Percpu|VmallocUsed"
    found = guest.check(f"grep -E '^({known}):' /proc/meminfo; grep ' count:' /proc/zoneinfo").splitlines()
    return sum(int(line.split()[1]) * (4 if " count:" in line else 1) for line in found)


@contextmanager
def all_given_back(guest: Guest) -> Iterator[None]:
    """The guest has as much memory behind the block as before, and nothing to complain of."""
    before = free(guest)
    yield
    after = max(free(guest) for _ in range(3))
    assert after > before - KIB_OF_NOISE, f"{before - after} KiB are lost"
    assert guest.problems() == []


@contextmanager
def busy(guest: Guest) -> Iterator[None]:
    guest.check(LOAD)
    try:
        yield
    finally:
        guest.check("rm -f /tmp/busy; wait; sleep 0.5; rm -f /tmp/some? /tmp/other?")


def check_counts(guest: Guest, add: str = TABLES) -> None:
    """Probes that need more data than there are count what they should, are taken over by another GDB, and go."""
    with all_given_back(guest):
        with Console(guest) as gdb:
            said = gdb(add)
            assert LENDS in said and "optimized" in said, said
            gdb.send("continue")
            guest.check(READS)
            gdb.interrupt()
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
            if add == TABLES:
                report = gdb("optprobe report -all")
                assert len(DD.findall(report)) == 2, report
            gdb.send("continue")
            gdb.kill()
        guest.check(READS)
        with Console(guest) as gdb:
            assert "optimized" in gdb("optprobe recover")
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
            if add == TABLES:
                report = gdb("optprobe report -all")
                assert len(re.findall(r"\[dd\]: 20[01][0-9]\b", report)) == 2, report
            gdb("optprobe delete")
            assert "lent" in gdb("optprobe doctor")
            gdb.send("quit")
            said = gdb.rest()
            assert TAKES_BACK in said and "stay lent" not in said, said


def test_tables_that_need_more_than_the_padding_has(linux: Guest) -> None:
    check_counts(linux)


def test_rings_in_a_busy_guest(linux: Guest) -> None:
    with busy(linux):
        finished = batch(linux, [RINGS, Workload(READS), "optprobe check", keep("probes", "optprobe list")])
    assert finished.status == 0 and LENDS in finished.output and TAKES_BACK in finished.output, finished.output
    assert "holds what we wrote" in finished.output
    assert all(probe["tier"] == "optimized" for probe in finished.json("probes"))
    assert linux.problems() == []


@pytest.mark.parametrize("vcpus", [1, 4])
def test_on_other_numbers_of_vcpus(boot: Boot, vcpus: int) -> None:
    guest = boot(smp=vcpus, extra=PARALLEL)
    check_counts(guest)
    with busy(guest):
        finished = batch(guest, [RINGS, TABLES, RINGS, Workload(READS), "optprobe check"])
    assert finished.status == 0 and finished.output.count(LENDS) == 2, finished.output
    assert guest.problems() == []


def test_many_rounds_lose_nothing(linux: Guest) -> None:
    with all_given_back(linux):
        for _ in range(ROUNDS):
            finished = batch(linux, [TABLES, "optprobe run -for 0.2", "optprobe delete"])
            assert finished.status == 0 and TAKES_BACK in finished.output, finished.output


@pytest.mark.parametrize("changed", [SMALL, NO_PADDING])
def test_in_other_guests(linux: Guest, changed: Path) -> None:
    """One has no large pieces of memory, the other has lent all the memory for detours that there is."""
    with all_given_back(linux):
        finished = batch(linux, [f"source {changed}", TABLES, Workload(READS), "optprobe check"])
        assert finished.status == 0 and LENDS in finished.output and TAKES_BACK in finished.output, finished.output
        assert "holds what we wrote" in finished.output


def test_pieces_larger_than_a_block(linux: Guest) -> None:
    with all_given_back(linux):
        finished = batch(linux, ["set optprobe ring-records 8192", "optprobe add vfs_read do stack", Workload(READS),
                                 "optprobe check", "optprobe doctor"])  # fmt: skip
        assert finished.status == 0 and "6,144 KiB of it are lent" in finished.output, finished.output


def test_where_threads_are_interrupted_are_probes(linux: Guest) -> None:
    """A thread that enters a probed function is as safe to call from."""
    where = ["optprobe add -glob 'ksys_*'", "optprobe add -glob 'do_sys_*'", "optprobe add schedule_timeout",
             "optprobe add kernel_wait4 -return", "optprobe add hrtimer_nanosleep"]  # fmt: skip
    with all_given_back(linux):
        finished = batch(linux, [*where, TABLES, Workload(READS), "optprobe report -all", "optprobe check"])
    assert finished.status == 0 and LENDS in finished.output, finished.output
    assert len(DD.findall(finished.output)) == 2 and "holds what we wrote" in finished.output, finished.output


def test_a_guest_that_comes_to_no_safe_point_keeps_them(linux: Guest) -> None:
    """`quit` says so, and another GDB has them given back."""
    with all_given_back(linux):
        never = "python from gdb_optprobe.probes import lent_pages; lent_pages.LEAVING = 0"
        finished = batch(linux, [never, TABLES, "optprobe delete"])
        assert "2048 KiB of the guest's memory stay lent, and serve the next GDB" in finished.output, finished.output
        finished = batch(linux, [TABLES, Workload(READS), "optprobe report -all", "optprobe check", never])
        assert LENDS not in finished.output and len(DD.findall(finished.output)) == 2, finished.output
        assert "stay lent" in finished.output
        finished = batch(linux, ["optprobe recover -remove"])
        assert finished.status == 0 and TAKES_BACK in finished.output, finished.output


def test_settings_refuse_it(linux: Guest) -> None:
    """Then nothing runs, and the refusal tells how much is needed."""
    finished = batch(linux, ["set optprobe exit-on-error off", "set optprobe max-memory 0", TABLES])
    assert LENDS not in finished.output and "the memory for detours is full" in finished.output, finished.output
    wide = [f"set optprobe {name}" for name in ("exit-on-error off", "max-memory 2", "ring-records 4096")]
    finished = batch(linux, [*wide, RINGS])
    assert LENDS not in finished.output and "set optprobe max-memory" in finished.output, finished.output


def steps(method: str) -> list[str]:
    """Every moment at which GDB is killed in a method: see lending_kills.py."""
    writes, runs = {"lend": (10, 3), "give_back": (12, 5)}[method]
    return [*map(str, range(1, writes + 1)), *(f"{number} during" for number in range(1, runs + 1))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["lend", "give_back"])
@pytest.mark.parametrize("busily", [False, True])
def test_gdb_is_killed_at_every_step(linux: Guest, method: str, busily: bool) -> None:
    moments = steps(method)
    chosen = moments if FULL else random.sample(moments, 3)
    with all_given_back(linux):
        for number, moment in enumerate(chosen):
            if busily:
                linux.check(LOAD)
            try:
                die(linux, method, moment)
                take_over(linux, number % 3)
            except BaseException as error:
                error.add_note(f"{method}: killed at {moment}, then taken over in way {number % 3}")
                raise
            finally:
                if busily:
                    linux.check("rm -f /tmp/busy; wait; sleep 0.5; rm -f /tmp/some? /tmp/other?")


def die(guest: Guest, method: str, moment: str) -> None:
    with Console(guest) as gdb:
        gdb(f"source {KILLS}")
        gdb(f"dies-at {method} {moment}")
        gdb.send(TABLES)
        if method == "give_back":
            gdb.until("76 optimized|addresses")
            gdb("optprobe delete")
            gdb.send("quit")
        try:
            gdb.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"GDB lives: {gdb.transcript[-2000:]}") from None
        assert gdb.process.returncode == -9, gdb.transcript[-2000:]
    time.sleep(0.5)
    guest.check(READS)


def take_over(guest: Guest, way: int) -> None:
    nothing = "no probes of an earlier GDB are in this guest"
    with Console(guest) as gdb:
        if way == 0:
            said = gdb("optprobe recover -remove")
            assert "0 probes of an earlier GDB removed" in said or nothing in said, said
        elif way == 1:
            said = gdb("optprobe recover")
            assert "optprobe:" not in said or nothing in said, said
        if way:
            said = gdb(TABLES)
            assert "optimized" in said, said
            gdb.send("continue")
            guest.check(READS)
            gdb.interrupt()
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
            gdb("optprobe delete")
        gdb.send("quit")
        said = gdb.rest()
        assert "stay" not in said, said
