"""Programs of the guest's, found from outside, and bytes of ours in their processes: in no others', not in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import answer
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL

USER = f"source {Path(__file__).with_name('guest_user.py')}"
WAITING = 3
AT_ONCE = 8
STORM = 120 if FULL else 4
"""Seconds."""


@pytest.mark.parametrize("bits", [64, 32])
def test_every_process_now_and_later_and_never_the_file(linux: Guest, tmp_path: Path, bits: int) -> None:
    path = f"/tmp/answer{bits}"
    program = answer.build(tmp_path, bits)
    answer.put(linux, program, path)
    before = linux.check(f"touch /tmp/said; md5sum {path}")
    for _ in range(WAITING):
        linux.check(f"(sleep 300 | {path} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    try:
        value = f"answer+{answer.VALUE[bits]}"
        ask = f"{path}; echo said $?"
        several = f"for i in $(seq {AT_ONCE}); do ({path}; echo said $?) & done; wait"
        found = batch(
            linux,
            [
                USER,
                f"user-find {path} {value}",
                f"user-spaces {path}",
                # The second is behind its code, on the same page.
                f"user-arm {path} filler+8=c3c3 {value}=09",
                "user-check",
                Workload(f"{ask}; cat {path} | md5sum"),
                Workload(several),
                Workload(f"killall sleep; while [ $(grep -c said /tmp/said) -lt {WAITING} ]; do sleep 0.1; done"),
                f"user-disarm {path} {value}",
                Workload(ask),
                f"user-disarm {path} filler+8",
                "user-leave",
                "optprobe commit -timeout 20",
            ],
        )
    finally:
        linux.run("killall sleep; sleep 0.2")
        said = linux.check("cat /tmp/said; rm -f /tmp/said")
    assert found.status == 0, found.output
    assert re.search(rf"^place {re.escape(value)} 0x[0-9a-f]+ answer{bits}:answer\+\S+ 07", found.output, re.M)
    assert len(re.findall(rf"^space answer{bits} \(\d+\)$", found.output, re.M)) == WAITING
    armed, at_once, _, disarmed = found.workloads
    assert armed.splitlines()[0] == "said 9" and armed.split()[2] == before.split()[0]
    assert at_once.splitlines() == ["said 9"] * AT_ONCE
    assert said.splitlines() == ["said 9"] * WAITING
    assert disarmed == "said 7\n"
    assert "problem" not in found.output and "everything is settled" in found.output
    assert linux.check(f"md5sum {path}") == before


def test_armed_and_disarmed_while_processes_come_and_go(linux: Guest) -> None:
    """Nothing is left in any, forks and what is just being loaded among them."""
    some = "(true; (ls / | wc -l); expr 1 + 1) > /dev/null || echo bad >> /tmp/storm"
    loop = f"while [ ! -e /tmp/enough ]; do {some}; done; echo done >> /tmp/storm"
    linux.check(f"rm -f /tmp/enough; : > /tmp/storm; for j in 1 2 3 4; do ({loop}) > /dev/null 2>&1 & done")
    digest = linux.check("md5sum /bin/busybox")
    try:
        script = [USER, f"user-rounds /bin/busybox {STORM}", "user-leave"]
        found = batch(linux, script)
    finally:
        linux.check("touch /tmp/enough; until [ $(grep -c done /tmp/storm) = 4 ]; do sleep 0.1; done", timeout=100)
        said = linux.check("cat /tmp/storm; rm /tmp/storm /tmp/enough")
    assert found.status == 0, found.output
    assert re.search(r"^rounds [1-9]", found.output, re.M) and "problem" not in found.output, found.output
    assert said.split() == 4 * ["done"] and linux.check("md5sum /bin/busybox") == digest


@pytest.fixture
def swapping(linux: Guest, tmp_path: Path) -> Iterator[Path]:
    """A program that a process runs, which waits, and whose pages the guest swaps out when it is told to."""
    program = answer.build(tmp_path, 64)
    answer.put(linux, program, SWAPPED)
    linux.check("insmod /lib/modules/brd.ko rd_nr=1 rd_size=16384; mkswap /dev/ram0; swapon /dev/ram0")
    linux.check("mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg; echo +memory > /tmp/cg/cgroup.subtree_control")
    linux.check("mkdir /tmp/cg/test")
    start = f"echo 0 > /tmp/cg/test/cgroup.procs; sleep 300 | {SWAPPED} wait; echo said $? > /tmp/said"
    linux.check(f"({start}) > /dev/null 2>&1 &")
    yield program
    linux.run(f"killall sleep; sleep 0.2; rm -f /tmp/said {SWAPPED}; swapoff /dev/ram0; rmmod brd")
    linux.run("rmdir /tmp/cg/test; umount /tmp/cg; rmdir /tmp/cg")


SWAPPED = "/tmp/answer"
SIZE = f"grep -A22 r-xp /proc/$(pidof {SWAPPED.rpartition('/')[2]})/smaps | grep -m 1 Swap:"
# It takes two looks to see that a page is not used, and the program has to have begun.
SWAP = f"for i in $(seq 50); do echo 8M > /tmp/cg/test/memory.reclaim 2> /dev/null; {SIZE} | grep -q 4 && break; done"
GO_ON = "killall sleep; while [ ! -s /tmp/said ]; do sleep 0.1; done; cat /tmp/said"
only_in_full = pytest.mark.skipif(not FULL, reason="a guest under load takes its time to swap out; OPTPROBE_FULL=1")


@only_in_full
def test_what_the_guest_has_swapped_out_is_put_back_too(linux: Guest, swapping: Path) -> None:
    place = f"answer+{answer.VALUE[64]}"
    found = batch(
        linux,
        [
            USER,
            f"user-arm {SWAPPED} {place}=09",
            Workload(f"{SWAP}; {SIZE}"),
            "user-check",
            f"user-disarm {SWAPPED} {place}",
            Workload(SIZE),
            Workload(GO_ON),
            "user-leave",
            "optprobe commit -timeout 20",
        ],
    )
    assert found.status == 0, found.output
    assert [line.split() for line in found.workloads] == [["Swap:", "4", "kB"], ["Swap:", "0", "kB"], ["said", "7"]]
    assert "problem" not in found.output and "everything is settled" in found.output


@only_in_full
def test_a_page_that_has_come_back_is_known_again(linux: Guest, swapping: Path) -> None:
    """As the one that it was: hits are counted."""
    places = [f"{SWAPPED}:answer", f"{SWAPPED}:answer+4"]
    script: list[str | Workload] = [f"optprobe add -user {place}" for place in places]
    script += [Workload(f"{SWAP}; {SIZE}"), Workload(GO_ON), keep("list", "optprobe list"), "optprobe check"]
    found = batch(linux, script)
    assert found.status == 0, found.output
    assert [line.split() for line in found.workloads] == [["Swap:", "4", "kB"], ["said", "7"]]
    assert [probe["hits"] for probe in found.json("list")] == [1, 1]


def test_bad_input_is_one_line_and_the_file_on_the_host_has_to_be_the_same(linux: Guest, tmp_path: Path) -> None:
    whole, other = answer.build(tmp_path, 64), answer.build(tmp_path, 32)
    answer.put(linux, answer.strip(whole), "/tmp/stripped")
    try:
        found = batch(
            linux,
            [
                USER,
                "user-find /tmp/nosuch",
                "user-find tmp/stripped",
                "user-find /dev/null",
                "user-find /tmp",
                "user-find /init",
                "user-find /tmp/stripped answer 0x10 0xfffffffff answer+ -1",
                f"user-find /tmp/stripped answer answer+4 answer+0x1000 nosuch file={whole}",
                f"user-find /tmp/stripped file={other}",
                f"user-find /tmp/stripped file={tmp_path}/nosuch",
            ],
        )
    finally:
        linux.run("rm -f /tmp/stripped")
    lines = [line for line in found.output.splitlines() if line.startswith(("refused", "program", "place"))]
    assert [line.split(";")[0] for line in lines if line.startswith("refused")] == [
        "refused: the guest has no file /tmp/nosuch in memory",
        "refused: tmp/stripped is no path in the guest",
        "refused: /dev/null is no regular file of the guest",
        "refused: /tmp is no regular file of the guest",
        "refused: /init is no program of this machine's (ELF)",
        "refused: /tmp/stripped has no symbols: it is stripped",
        "refused: offset 0x10 of /tmp/stripped is outside its code",
        "refused: offset 0xfffffffff of /tmp/stripped is outside its code",
        "refused: answer+ is no location in /tmp/stripped",
        "refused: offset -0x1 of /tmp/stripped is outside its code",
        "refused: answer+0x1000 is in no code of /tmp/stripped",
        "refused: /tmp/stripped has no function nosuch",
        f"refused: {other} is another program than /tmp/stripped in the guest",
        f"refused: {tmp_path}/nosuch cannot be read: No such file or directory",
    ]
    places = [line.split()[1:] for line in lines if line.startswith("place")]
    assert [(where, spelled) for where, _, spelled, _ in places] == [
        ("answer", "stripped:answer"),
        ("answer+4", "stripped:answer+0x4"),
    ]
    assert "Traceback" not in found.output
