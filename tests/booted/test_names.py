"""What names mean, compiled and run in a detour, in both architectures: beside what the guest itself tells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.booted.batch import Finished, Workload, batch
from tests.booted.conftest import EVERY_ISA
from tests.booted.test_handlers import records, report, reported

BYTES = 7777
WORK = f"sh -c 'echo $$ > /pid; exec dd if=/dev/zero of=/dev/null bs={BYTES} count=2 2>/dev/null'"
AT_ONCE = 4  # of one record

ANYWHERE: Mapping[str, int] = {
    "$arg3": BYTES,
    "$pid == $tgid": 1,
    '$comm == "dd" && $comm != "d"': 1,
    "(unsigned long)$task >> 62": 3,
    "$pc == $entry": 1,
    "$optprobe_test + 1": 42,
    "sizeof(u16) + sizeof(long)": 10,
    "&vfs_read == vfs_read": 1,
}
BY_TYPES: Mapping[str, int] = {
    "count - (size_t)$arg3": 0,
    "$task->pid == $pid && $task->tgid == $tgid && $task->group_leader == $task": 1,
    "$task->comm[0] * 256 + $task->comm[1]": 256 * ord("d") + ord("d"),
    "$task->static_prio": 120,
    "(char *)&$task->comm[3] - (char *)&$task->comm": 3,
    "&((struct task_struct *)0)->comm[3] - ((struct task_struct *)0)->comm": 3,
    "sizeof $task->comm": 16,
    "PIDTYPE_SID * 10 + PIDTYPE_PGID": 32,
    "(enum pid_type)PIDTYPE_SID": 3,
    "file->f_inode->i_mode >> 12": 2,
    "file->f_path.dentry->d_iname[2]": ord("r"),  # zero
    "((char *)file)[&file->f_flags - (unsigned int *)file << 2] & 3": 0,
    "file->f_mapping->host == file->f_inode": 1,
    '!(str(file->f_path.dentry->d_name.name) != "zero")': 1,
}
BY_SYMBOLS_OF_DATA: Mapping[str, int] = {
    "*(int *)&nr_threads > 20 && *(int *)&nr_threads < 200": 1,
    "$percpu(runqueues).curr == $task && $percpu(runqueues.cpu) == $cpu": 1,
    '((struct uts_namespace *)&init_uts_ns)->name.sysname == "Linux"': 1,
    "((struct uts_namespace *)&init_uts_ns)->name.release[1]": ord("."),
    "((struct task_struct *)&init_task)->no_cgroup_migration": 0,
    "$percpu(cpu_info).cpu_index == $cpu && $percpu(cpu_info.initialized)": 1,
    "$percpu(cpu_info).x86_vendor_id[11]": ord("D"),  # AuthenticAMD
}
REFUSED: Sequence[tuple[str, str]] = [
    ("$retval", "known where a function has returned"),
    ("&$pid + $nowhere", "no register or variable named '$nowhere'"),
    ("&count", "'count' has no address"),
    ("&((struct task_struct *)0)->no_cgroup_migration", "a bit field has no address"),
    ("PIDTYPE_NOT", "if it is a macro of the kernel's, give its value"),
]
WITHOUT_TYPES: Sequence[tuple[str, str]] = [
    ("count", "parameters are $arg1, $arg2, …"),
    ("$retval", "known where a function has returned"),
    ("$task->pid", "no pointer to a struct"),
    ("*(struct file *)$arg1", "read a member by its offset"),
]
GUESTS = {"x86_64": "linux", "ppc64le": "ppc_guest", "aarch64": "arm_guest"}
PROBED = '$comm == "dd" && $arg3 == 7777'


def chunks(expressions: Sequence[str]) -> list[Sequence[str]]:
    return [expressions[at : at + AT_ONCE] for at in range(0, len(expressions), AT_ONCE)]


def told(finished: Finished, number: int, size: int) -> list[int]:
    """The last record's words: those of one hit."""
    made = [line["values"] for line in records(finished, "report") if line["number"] == number]
    assert len(made) == 2 and len(made[0]) == size, finished.output
    return list(made[-1])


@pytest.mark.parametrize(
    ("arch", "tier"), [("x86_64", ""), ("x86_64", "emulated"), ("ppc64le", ""), *[("aarch64", "")] * EVERY_ISA]
)
def test_what_names_mean(request: pytest.FixtureRequest, arch: str, tier: str) -> None:
    guest: Guest = request.getfixturevalue(GUESTS[arch])
    typed = arch != "ppc64le"
    table = {**ANYWHERE, **(BY_TYPES if typed else {}), **(BY_SYMBOLS_OF_DATA if arch == "x86_64" else {})}
    refused = [*(REFUSED if typed else WITHOUT_TYPES)]
    forced = f"-tier {tier}" if tier else ""
    entry = address_of(guest, "vfs_read") + (0 if typed else 8)
    script: list[str | Workload] = ["set $optprobe_test = 41", f"set $entry = {entry:#x}"]
    groups = [*chunks(list(table)), ["$pid", "$tgid", "$cpu", "$time", "$ticks"][: 5 if not forced else 3]]
    script += [f"optprobe add vfs_read {forced} if {PROBED} do record({', '.join(group)})" for group in groups]
    if not forced:
        script += ["set optprobe exit-on-error off", "python import gdb"]
        attempt = "python\ntry: gdb.execute({!r})\nexcept gdb.error as error: print(error)\nend"
        script += [attempt.format(f"optprobe add vfs_read do record({text})") for text, _ in refused]
    if typed:
        script += [f"optprobe add vfs_read {forced} if {PROBED} do count by file->f_op, record(file->f_op)"]
    script += [Workload(WORK), report("report"), "optprobe report", "optprobe delete"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    probes = [line for line in reported(finished, "report") if line["type"] == "probe"]
    assert len(probes) == len(groups) + typed, finished.output
    numbers = [probe["number"] for probe in probes[: len(groups)]]
    found: dict[str, int] = {}
    for number, group in zip(numbers, groups, strict=True):
        found |= dict(zip(group, told(finished, number, len(group)), strict=True))
    assert {text: found[text] for text in table} == table
    assert found["$pid"] == found["$tgid"] == int(guest.check("cat /pid"))
    if typed:
        # The table of arm64 has functions alone: data are named by the last symbol before them.
        named = " <zero_fops>" if arch == "x86_64" else r" <_etext\+0x[0-9a-f]+>"
        assert re.search(rf"^ *\[0xf{{4}}[0-9a-f]{{12}}{named}\]: 2$", finished.output, re.MULTILINE), finished.output
        assert re.search(rf": file->f_op=0xf{{4}}[0-9a-f]{{12}}{named}$", finished.output, re.MULTILINE)
    last = next(line for line in reversed(records(finished, "report")) if line["number"] == numbers[-1])
    assert found["$cpu"] == last["cpu"] < guest.options.processors
    if not forced:
        assert found["$ticks"] == last["time"], "the record's own"
        assert abs(found["$time"] - last["since_boot"]) < 10_000_000, "of add, and of report: some millionths apart"
        for text, words in refused:
            assert words in finished.output, (text, finished.output)
