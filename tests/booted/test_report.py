"""What `add` says of a glob, and what a report prints of real probes besides counts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch
from tests.booted.conftest import EVERY_ISA, PARALLEL, Boot

WORK = Workload("dd if=/dev/zero of=/dev/null bs=77 count=20 2>/dev/null")
NAME = "path->dentry->d_name.name"


def test_globs_shared_addresses_and_records_in_order(linux: Guest) -> None:
    script: list[str | Workload] = [
        "optprobe add vfs_c* -return if $retval < 0",
        f"optprobe add vfs_open do count by {NAME}",
        "optprobe add vfs_read,vfs_write if count == 77 do stack",
        "optprobe add vfs_read -name plain",
        WORK,
        "optprobe report",
        "optprobe report -timeline -json",
        "optprobe report -folded",
    ]
    finished = batch(linux, script)
    said = finished.output
    assert finished.status == 0, said
    assert re.search(r"NOTE: left out: .*vfs_clean_context.*: \$retval of type 'void' is not supported", said), said
    assert f"NOTE: {NAME} is an address, and str({NAME}) the text there" in said
    assert re.search(r"^and \d+ of vfs_c\* never hit: -all$", said, re.MULTILINE), said
    own, site = map(int, re.search(r" (\d+) instructions \(site: ~(\d+)\) +vfs_read \"plain\"", said).groups())
    assert own < site
    records = [json.loads(line) for line in said.splitlines() if line.startswith('{"type": "record"')]
    times = [record["time"] for record in records]
    assert len(times) == 40 and times == sorted(times)
    assert [record["number"] for record in records[:2]] == [records[0]["number"], records[0]["number"] + 1]
    folded = dict(re.findall(r"^([\w;.\[\]]+;vfs_(?:read|write)) (\d+)$", said, re.MULTILINE))
    for function in ("read", "write"):
        assert sum(int(n) for path, n in folded.items() if path.endswith(f"ksys_{function};vfs_{function}")) == 20, said


def test_a_record_has_the_time_of_the_kernels_log(each_linux: Guest) -> None:
    """It lies between the lines that the kernel logged before and after."""
    before, after = "echo before >/dev/kmsg", "echo after >/dev/kmsg"
    dd = "dd if=/dev/zero of=/dev/null bs=79 count=1 2>/dev/null"
    work = Workload(f"for n in 1 2 3; do {before}; {dd}; {after}; sleep 0.3; done; dmesg | grep -E 'before|after'")
    script = ["optprobe add vfs_read if $arg3 == 79 do record($arg3)", work, "optprobe report", "optprobe report -json"]
    finished = batch(each_linux, script)
    logged = [*map(_seconds, re.findall(r"^\[ *([\d.]+)\] (?:before|after)$", finished.workloads[0], re.MULTILINE))]
    found = [*map(_seconds, re.findall(r"^ {4}\[ *([\d.]+)\] \[\d\]: \$arg3=79$", finished.output, re.MULTILINE))]
    assert len(logged) == 6 and len(found) == 3, finished.output
    for number, time in enumerate(found):
        assert logged[2 * number] <= time <= logged[2 * number + 1], finished.output
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"type": "record"')]
    assert [line["since_boot"] // 1000 for line in lines] == found


def test_what_was_lost_is_told_at_its_time(each_linux: Guest) -> None:
    dd = "dd if=/dev/zero of=/dev/null bs=79 count=100 2>/dev/null"
    script = ["set optprobe ring-records 64", "optprobe add vfs_read if $arg3 == 79 do record($arg3)"]
    finished = batch(each_linux, [*script, Workload(dd), "optprobe report", f"optprobe run -follow -guest '{dd}'"])
    found = [line.strip() for line in finished.output.splitlines() if re.search(r"arg3=79$| lost after", line)]
    assert len(found) >= 130, finished.output
    for at in (64, 129):
        time = found[at - 1].partition("[")[2].partition("]")[0]
        assert found[at].endswith(f" lost after [{time}]"), finished.output
    assert found[64].startswith("36 ") and 36 <= int(found[129].split()[0]) <= 136, "read while it came, or afterwards"


MINE = "if $arg3 == 79 || $arg3 == 83 || $arg3 == 89 do record($arg3, $cpu)"


def dd(size: int, count: int) -> str:
    return f"dd if=/dev/zero of=/dev/null bs={size} count={count} 2>/dev/null"


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le", *["aarch64"] * EVERY_ISA])
def test_a_ring_that_overwrites_has_the_last_records(boot: Boot, arch: str) -> None:
    """Of reads on two vCPUs at once. Of the smaller ring's two places one hit may find both taken."""
    guest = boot(arch=arch, smp=2, extra=PARALLEL)
    both = Workload(f"{dd(79, 400)} & {dd(83, 400)} & wait; {dd(89, 20)}")
    script: list[str | Workload] = ["set optprobe ring-records 32", f"optprobe add vfs_read -overwrite {MINE}"]
    script += ["set optprobe ring-records 2", f"optprobe add ksys_read -overwrite {MINE}", both]
    first = batch(guest, [*script, "optprobe report -json", "set optprobe on-exit keep"])
    records, lost = _records(first.output, 1), _lost(first.output, 1)
    assert (len(records), lost) == (32, 820 - 32), first.output
    assert [each["values"][0] for each in records[-20:]] == [89] * 20, "the last that there were"
    assert {each["values"][0] for each in records[:-20]} <= {79, 83}
    small = _records(first.output, 2)
    assert [each["values"][0] for each in small] == [89, 89] and _lost(first.output, 2) == 818, first.output

    followed = f"optprobe run -follow 1 -json -guest '{dd(89, 40)}'"
    later = batch(guest, ["optprobe recover", "optprobe report -json", followed, "optprobe report -json"])
    before, after = later.output.split('{"type": "run"')
    adopted = [(each["time"], each["values"]) for each in _records(before, 1)]  # and those that are followed
    assert adopted[:32] == [(each["time"], each["values"]) for each in records], later.output
    run = json.loads('{"type": "run"' + after.splitlines()[0])
    assert run["records"] + run["lost"] == 860 and run["records"] >= 32, later.output
    assert _lost(after, 1) == run["lost"] and not _records(after, 1), "that counts what was lost before, too"


def _records(output: str, number: int) -> list[dict[str, Any]]:
    """Return the records of a probe."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"type": "record"')]
    return [line for line in lines if line["number"] == number]


def _lost(output: str, number: int) -> int:
    """Return how many of its records a probe lost."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"type": "probe"')]
    return next(int(line["dropped"]) for line in lines if line["number"] == number)


def _seconds(text: str) -> int:
    """Return a time of the log in microseconds."""
    seconds, below = text.split(".")
    return int(seconds) * 1_000_000 + int(below)
