"""The guest's kernel lends memory when that for data is full, and has it back, whatever else happens."""

from __future__ import annotations

import os
import random
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, PARALLEL, Boot, on_every_isa
from tests.booted.gdb import Console

KILLS, SMALL, NO_PADDING = (
    Path(__file__).with_name(f"{name}.py") for name in ("lending_kills", "small_blocks", "no_padding")
)
LENDS, TAKES_BACK = "The guest runs until its kernel has lent", "The guest runs until its kernel has taken back"
LARGE = "set optprobe table-keys 1024", "set optprobe ring-records 1024"
"""With which neither tables nor rings fit into the memory that is there, whichever ISA it is."""
VFS = (
    "cancel_lock clean_context clone_file_range copy_file_range create create_mount dedupe_file_range "
    "dedupe_file_range_one dup_fs_context fadvise fallocate fchmod fchown fileattr_get fileattr_set fstat fstatat "
    "fsync fsync_range get_fsid get_link get_super get_tree getattr getattr_nosec getxattr getxattr_alloc "
    "inode_has_locks iocb_iter_read iocb_iter_write ioctl iter_read iter_write kern_mount link listxattr llseek "
    "lock_file mkdir mknod mkobj open parse_fs_param parse_fs_param_source parse_fs_string path_lookup "
    "path_parent_lookup read readlink readv removexattr rename rmdir set_acl_prepare set_acl_prepare_kgid "
    "set_acl_prepare_kuid setlease setpos setxattr statfs statx submount symlink test_lock tmpfile tmpfile_open "
    "truncate unlink utimes write writev "
)
TABLES = f"optprobe add {','.join(f'vfs_{name}' for name in VFS.split())} do count by $comm"
"""Each has a table of its own; those of a glob share one, which has room."""
RINGS = "optprobe add vfs_read,vfs_write,ksys_read,ksys_write do stack"
LOAD = (
    "touch /tmp/busy; for n in 1 2 3; do (while [ -e /tmp/busy ]; do cat /proc/meminfo > /tmp/some$n; "
    "dd if=/tmp/some$n of=/tmp/other$n bs=64 2>/dev/null; /bin/true; done) & done"
)
READS = "dd if=/dev/zero of=/dev/null bs=7 count=1000 2>/dev/null"
DD = re.compile(r"\[dd\]: 100[0-9]\b")
"""What READS reads and writes, and some bytes of its program."""
ROUNDS = int(os.environ.get("OPTPROBE_ROUNDS", "20" if FULL else "2"))
KIB_OF_A_PAGE = {"x86_64": 4, "aarch64": 4, "ppc64le": 64}
KIB_OF_NOISE = 1024
"""By which that differs from one moment to the next, though nothing is lost; a block has 2048."""


def free(guest: Guest) -> int:
    """KiB of the guest's memory that are free, or that it knows what it uses for: it does not of a block that is lost.

    The processes that print it use some themselves, so it is the median of a few.
    """
    return int(statistics.median(_free_now(guest) for _ in range(3)))


def _free_now(guest: Guest) -> int:
    """Read all at one moment, with what each CPU has in lists and counts of its own."""
    guest.check("sync; echo 3 > /proc/sys/vm/drop_caches; sleep 0.2; cat /proc/sys/vm/stat_refresh || true")
    said = guest.check("cat /proc/zoneinfo /proc/meminfo")
    known = "MemFree|Buffers|Cached|AnonPages|Slab|KernelStack|PageTables|Percpu|VmallocUsed"
    listed = sum(map(int, re.findall(r"\bcount: (\d+)", said))) * KIB_OF_A_PAGE[guest.options.arch]
    return listed + sum(map(int, re.findall(rf"^(?:{known}): +(\d+)", said, re.MULTILINE)))


@contextmanager
def all_given_back(guest: Guest) -> Iterator[None]:
    """The guest has as much memory behind the block as before, and nothing to complain of."""
    before = free(guest)
    yield
    for _ in range(3):  # some of it comes back late
        if (lost := before - free(guest)) < KIB_OF_NOISE:
            break
    assert lost < KIB_OF_NOISE, f"{lost} KiB are lost"
    assert guest.problems() == []


def prepare(gdb: Console) -> None:
    for line in LARGE:
        gdb(line)


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
            prepare(gdb)
            said = gdb(add)
            assert LENDS in said and "optimized" in said, said
            lent = _kib(LENDS, said)
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
            assert _kib(TAKES_BACK, said) <= lent, "the notice before the guest runs names all that is lent"


def _kib(notice: str, said: str) -> int:
    """Return how much a notice tells of, in KiB."""
    return sum(int(size.replace(",", "")) for size in re.findall(rf"{notice} ([0-9,]+) KiB", said))


def test_tables_that_need_more_than_there_is(each_linux: Guest) -> None:
    check_counts(each_linux)


@on_every_isa
def test_rings_in_a_busy_guest(each_linux: Guest) -> None:
    with busy(each_linux):
        listed = keep("probes", "optprobe list")
        finished = batch(each_linux, [*LARGE, RINGS, Workload(READS), "optprobe check", listed])
    assert finished.status == 0 and LENDS in finished.output and TAKES_BACK in finished.output, finished.output
    assert "holds what we wrote" in finished.output
    assert all(probe["tier"] == "optimized" for probe in finished.json("probes"))
    assert each_linux.problems() == []


@pytest.mark.parametrize(("arch", "vcpus"), [("x86_64", 4), *[("ppc64le", 4), ("x86_64", 1)] * FULL])
def test_on_other_numbers_of_vcpus(boot: Boot, arch: str, vcpus: int) -> None:
    guest = boot(arch=arch, smp=vcpus, extra=PARALLEL)
    check_counts(guest)
    with busy(guest):
        finished = batch(guest, [*LARGE, RINGS, TABLES, RINGS, Workload(READS), "optprobe check"])
    assert finished.status == 0 and finished.output.count(LENDS) > 2, finished.output
    assert guest.problems() == []


def test_many_rounds_lose_nothing(each_linux: Guest) -> None:
    with all_given_back(each_linux):
        for _ in range(ROUNDS):
            finished = batch(each_linux, [*LARGE, TABLES, "optprobe run -for 0.2", "optprobe delete"])
            assert finished.status == 0 and TAKES_BACK in finished.output, finished.output


def test_where_memory_is_in_small_pieces(each_linux: Guest) -> None:
    lends_what_is_in_use(each_linux, SMALL)


def test_where_the_memory_for_detours_is_lent_itself(linux: Guest) -> None:
    lends_what_is_in_use(linux, NO_PADDING)


def lends_what_is_in_use(guest: Guest, changed: Path) -> None:
    with all_given_back(guest):
        finished = batch(guest, [f"source {changed}", *LARGE, TABLES, Workload(READS), "optprobe check"])
        assert finished.status == 0 and LENDS in finished.output and TAKES_BACK in finished.output, finished.output
        assert "holds what we wrote" in finished.output


LARGEST = {"x86_64": "6,144", "ppc64le": "8,192", "aarch64": "8,192"}
"""KiB for a piece of 4.5 MiB: in several blocks side by side, or in one."""


def test_pieces_larger_than_a_block(each_linux: Guest) -> None:
    with all_given_back(each_linux):
        finished = batch(each_linux, ["set optprobe ring-records 8192", "optprobe add vfs_read do stack",
                                      Workload(READS), "optprobe check", "optprobe doctor"])  # fmt: skip
        lent = f"{LARGEST[each_linux.options.arch]} KiB of it are lent"
        assert finished.status == 0 and lent in " ".join(finished.output.split()), finished.output


def test_where_threads_are_interrupted_are_probes(each_linux: Guest) -> None:
    """A thread that enters a probed function is as safe to call from."""
    where = ["optprobe add -glob 'ksys_*'", "optprobe add -glob 'do_sys_*'", "optprobe add schedule_timeout",
             "optprobe add kernel_wait4 -return", "optprobe add hrtimer_nanosleep"]  # fmt: skip
    with all_given_back(each_linux):
        seen = ["optprobe report -all", "optprobe check"]
        finished = batch(each_linux, [*LARGE, *where, TABLES, Workload(READS), *seen])
    assert finished.status == 0 and LENDS in finished.output, finished.output
    assert len(DD.findall(finished.output)) == 2 and "holds what we wrote" in finished.output, finished.output


STAYS = {"x86_64": 2048, "ppc64le": 2048, "aarch64": 4096}
"""KiB for tables of 2,343: beside the image of aarch64 are 52, of the others more."""


def test_a_guest_that_comes_to_no_safe_point_keeps_them(each_linux: Guest) -> None:
    """`quit` says so, and another GDB has them given back."""
    with all_given_back(each_linux):
        never = "python from gdb_optprobe.probes import lent_pages; lent_pages.LEAVING = 0"
        finished = batch(each_linux, [never, *LARGE, TABLES, "optprobe delete"])
        stays = f"{STAYS[each_linux.options.arch]} KiB of the guest's memory stay lent, and serve the next GDB"
        assert stays in finished.output, finished.output
        finished = batch(each_linux, [*LARGE, TABLES, Workload(READS), "optprobe report -all", "optprobe check", never])
        assert LENDS not in finished.output and len(DD.findall(finished.output)) == 2, finished.output
        assert "stay lent" in finished.output
        finished = batch(each_linux, ["optprobe recover -remove"])
        assert finished.status == 0 and TAKES_BACK in finished.output, finished.output


def test_settings_refuse_it(each_linux: Guest) -> None:
    """Then nothing runs, and the refusal tells how much is needed."""
    finished = batch(each_linux, [*LARGE, "set optprobe exit-on-error off", "set optprobe max-memory 0", TABLES])
    assert LENDS not in finished.output and "the memory for detours is full" in finished.output, finished.output
    wide = [f"set optprobe {name}" for name in ("exit-on-error off", "max-memory 2", "ring-records 4096")]
    finished = batch(each_linux, [*wide, RINGS])
    assert LENDS not in finished.output and "set optprobe max-memory" in finished.output, finished.output


STEPS = {
    "x86_64": {"lend": (11, 3), "give_back": (12, 5)},
    "ppc64le": {"lend": (10, 3), "give_back": (7, 3)},
    "aarch64": {"lend": (23, 5), "give_back": (13, 5)},
}
"""Writes and runs of the guest: on ppc64le no page table is written, and nothing flushed; aarch64 lends two blocks."""


def steps(arch: str, method: str) -> list[str]:
    """Every moment at which GDB is killed in a method: see lending_kills.py."""
    writes, runs = STEPS[arch][method]
    return [*map(str, range(1, writes + 1)), *(f"{number} during" for number in range(1, runs + 1))]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", ["lend", "give_back"])
def test_gdb_is_killed_at_every_step(each_linux: Guest, method: str) -> None:
    """While the guest has nothing to do, and while it has."""
    moments = steps(each_linux.options.arch, method)
    all_of_them = [(moment, busily) for busily in (False, True) for moment in moments]
    chosen = all_of_them if FULL else [*zip(random.sample(moments, 2), (False, True), strict=True)]
    with all_given_back(each_linux):
        for number, (moment, busily) in enumerate(chosen, random.randrange(3)):
            try:
                with all_given_back(each_linux), busy(each_linux) if busily else nullcontext():
                    die(each_linux, method, moment)
                    take_over(each_linux, number % 3)
            except BaseException as error:
                how = "busy" if busily else "idle"
                error.add_note(f"{method}: killed at {moment}, {how}, then taken over in way {number % 3}")
                raise


def die(guest: Guest, method: str, moment: str) -> None:
    with Console(guest) as gdb:
        gdb(f"source {KILLS}")
        gdb(f"dies-at {method} {moment}")
        prepare(gdb)
        gdb.send(TABLES)
        if method == "give_back":
            gdb.until("addresses")
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
            prepare(gdb)
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
