"""What names mean in a running guest: its own types, its threads, its CPUs, interpreted at a stop."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.booted.gdb import Console

EVALUATE = Path(__file__).with_name("guest_evaluate.py")
COUNT = 7777
WORK = f"sh -c 'echo $$ > /pid; exec dd if=/dev/zero of=/dev/null bs={COUNT} count=1 2>/dev/null'"


@contextmanager
def stopped_in_read(guest: Guest, entry: int, third: str) -> Iterator[Console]:
    """Where dd has called vfs_read for COUNT bytes, whose register `third` says so."""
    with Console(guest) as gdb:
        gdb(f"source {EVALUATE}")
        gdb(f"break *{entry:#x} if {third} == {COUNT}")
        gdb.work = guest.spawn(WORK)
        assert "hit Breakpoint" in gdb("continue", timeout=60)
        yield gdb
        gdb.finish_work()


def data(gdb: Console, action: str) -> bytes | None:
    """What an action at vfs_read makes; None for a fault."""
    said = gdb(f"guest-evaluate vfs_read {action}")
    found = re.search(r'^("[0-9a-f]*"|null)$', said, re.MULTILINE)
    assert found, said
    made = json.loads(found[1])
    return None if made is None else bytes.fromhex(made)


def words(gdb: Console, expressions: Sequence[str]) -> list[int]:
    made = data(gdb, f"record({', '.join(expressions)})")
    assert made is not None
    return [int.from_bytes(made[at : at + 8], "little") for at in range(0, len(made), 8)]


def entry(guest: Guest) -> int:
    return address_of(guest, "vfs_read")


def test_x86_64_by_the_kernels_types(linux: Guest) -> None:
    expected = {
        '$comm == "dd"': 1,
        '$comm == "ddd"': 0,
        "count == 7777 && $arg3 == count && $rdx == count": 1,
        "$task->pid == $pid && $task->tgid == $tgid && $pid == $tgid": 1,
        "$percpu(runqueues).curr == $task && $percpu(runqueues.cpu) == $cpu": 1,
        'str(file->f_path.dentry->d_name.name) == "zero"': 1,
        'file->f_path.dentry->d_iname == "zero"': 1,
        "file->f_flags & 3": 0,
        "file->f_inode->i_mode >> 12": 2,
        "*pos": 0,
        "$task->comm[0]": ord("d"),
        "$pc == vfs_read": 1,
        "(unsigned long)jiffies > 0 && ((struct task_struct *)&init_task)->pid == 0": 1,
        "PIDTYPE_SID - PIDTYPE_PGID": 1,
    }
    with stopped_in_read(linux, entry(linux), "$rdx") as gdb:
        assert words(gdb, list(expected)) == list(expected.values())
        (pid,) = words(gdb, ["$pid"])
        key = b"dd".ljust(16, b"\0") + b"zero".ljust(64, b"\0")
        assert data(gdb, "count by ($comm, str(file->f_path.dentry->d_name.name))") == key
        assert data(gdb, "record(*(long *)16)") is None
        assert "HINT: vfs_read has: file, buf, count, pos" in gdb("guest-evaluate vfs_read hist(size)")
    assert int(linux.check("cat /pid")) == pid


def test_ppc64le_by_its_code(ppc_guest: Guest) -> None:
    expected = {
        '$comm == "dd"': 1,
        "$arg3 == 7777 && $r5 == $arg3": 1,
        "$pid == $tgid": 1,
        "$pc == (unsigned long)vfs_read + 8": 1,
        "*(char *)$task & 0": 0,
    }
    with stopped_in_read(ppc_guest, entry(ppc_guest) + 8, "$r5") as gdb:
        assert words(gdb, list(expected)) == list(expected.values())
        (pid,) = words(gdb, ["$pid"])
        assert "HINT: parameters are $arg1" in gdb("guest-evaluate vfs_read hist(count)")
    assert int(ppc_guest.check("cat /pid")) == pid


LOOP = "sh -c 'echo $$ > /pid; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'"
LOOKS = 20


@pytest.mark.parametrize(("guest", "level"), [("arm_guest", "($cpsr & 0xc)"), ("linux", "(3 - ($cs & 3))")])
def test_a_vcpu_in_a_program_has_the_kernel_s_thread(
    guest: str, level: str, request: pytest.FixtureRequest
) -> None:
    """Not what the program has in the registers that are the kernel's at other times. level: 0 in a program."""
    found: Guest = request.getfixturevalue(guest)
    with Console(found) as gdb:
        gdb("optprobe print $pid")
        gdb.work = found.spawn(LOOP)
        for _ in range(LOOKS):
            gdb.run_for(0.3)
            if any(_is_zero(gdb, level, vcpu) for vcpu in (1, 2)):
                break
        else:
            raise AssertionError("no vCPU was in the program")
        name, pid, cpu = (gdb(f"optprobe print {what}").strip() for what in ("$comm", "$pid", "$cpu"))
        assert name == '"sh"' and cpu in ("0", "1")
        gdb.finish_work()
    assert pid == found.check("cat /pid").strip()


def _is_zero(gdb: Console, expression: str, vcpu: int) -> bool:
    """Whether that is zero on a vCPU, which is selected then."""
    gdb(f"thread {vcpu}")
    return re.search(r"= 0$", gdb(f"print {expression}"), re.MULTILINE) is not None
