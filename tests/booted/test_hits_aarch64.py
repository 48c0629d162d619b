"""What a hit on the stock aarch64 kernel finds out: memory that may not be there, callers, time, how calls end."""

from __future__ import annotations

import re

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.gdb import Console
from tests.booted.test_handlers import maps, report
from tests.booted.test_ppc64le import two_dd

HITS = 2_000
MIXED = "($time * 0x9E3779B97F4A7C15 ^ $time >> 9)"
READS = {
    "anywhere": MIXED,
    "a program's": f"({MIXED} >> 17)",
    "the kernel's": f"({MIXED} >> 16 | 0xFFFF000000000000)",
    "the linear map": f"(((unsigned long)$task & ~0x3fffffff) + ({MIXED} >> 33))",
    "the image and modules": f"(((unsigned long)&vfs_read & ~0xffffff) + ({MIXED} >> 39))",
    "devices": f"(0xFFFFFBFFFD000000 + ({MIXED} >> 39))",
    "across pages of the kernel": "(((unsigned long)$task & ~4095) + 4093)",
    "the program's buffer": "((unsigned long)buf & ~7)",
}
ALL, NONE = ("across pages of the kernel", "the program's buffer"), ("anywhere",)
KSTACK = 'kprobe:read_zero / comm == "dd" / { @k[kstack(8)] = count(); @u[ustack(2)] = count(); }'
CALLERS = ("read_zero", "vfs_read", "ksys_read", "__arm64_sys_read", "invoke_syscall")


@pytest.mark.skipif(not FULL, reason="boots guests of its own: OPTPROBE_FULL=1")
@pytest.mark.parametrize("cpu", ["max", "neoverse-n1"])
def test_the_same_on_other_cpus(boot: Boot, cpu: str) -> None:
    """With signed return addresses and PAN, and with PAN alone."""
    guest = boot(arch="aarch64", cpu=cpu)
    test_memory_that_may_not_be_there_is_read_or_a_fault(guest)
    test_callers_by_frame_records_and_the_time_of_the_kernel_s_log(guest)
    test_a_backtrace_passes_the_trampolines_of_functions_that_return_to_them(guest)


def test_memory_that_may_not_be_there_is_read_or_a_fault(arm_guest: Guest) -> None:
    """Each read is one or the other; the guest does not notice."""
    script: list[str | Workload] = ["set optprobe table-keys 8"]
    for place in READS.values():
        script.append(f'optprobe add vfs_read if $comm == "dd" do count by (*(long *){place} & 0)')
    script += [f'optprobe add vfs_read if $comm == "dd" do count by str((char *){MIXED})']
    script += [two_dd(HITS), keep("list", "optprobe list"), report("report"), "optprobe check", "optprobe delete"]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    probes, found = finished.json("list"), maps(finished, "report")
    for name, probe in zip([*READS, "text"], probes, strict=True):
        ((_, done),) = [item for item in found.items() if item[0][0] == probe["number"]]
        assert probe["tier"] == "optimized" and probe["hits"] >= 2 * HITS
        assert sum(done.values()) + probe["faults"] == probe["hits"], name
        assert name not in ALL or not probe["faults"], name
        assert name not in NONE or probe["faults"] > 0, name
    assert any(0 < probe["faults"] < probe["hits"] for probe in probes)
    assert "holds what we wrote" in finished.output
    assert arm_guest.problems() == []


def test_callers_by_frame_records_and_the_time_of_the_kernel_s_log(arm_guest: Guest) -> None:
    script: list[str | Workload] = [
        f"optprobe script -guest 'dd if=/dev/zero of=/dev/null bs=1 count=77' -e '{KSTACK}'",
        'optprobe add vprintk_store do print("at %lu", $time)',
        Workload("echo told > /dev/kmsg; dmesg | grep told"),
        "optprobe report -timeline",
        "optprobe delete",
    ]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    kernel, program = finished.output.split("@k[")[1].split("@u[")[:2]
    frames = re.findall(r"^\s+(\w+)\+\d+$", kernel, re.M)
    assert tuple(frames[: len(CALLERS)]) == CALLERS and "]: 77" in kernel, finished.output
    assert re.search(r"0x4[\da-f]+\n\s+0x4[\da-f]+\n\]: 77", program), finished.output
    (ours,) = (int(at) for at in re.findall(r": at (\d+)$", finished.output, re.M))
    logged = re.search(r"\[ *(\d+)\.(\d{6})\] told", finished.workloads[0])
    assert logged is not None
    behind = int(logged[1] + logged[2]) * 1_000 - ours
    assert -1_000 <= behind < 50_000_000, "the log's time is taken right behind the entry"


def test_a_backtrace_passes_the_trampolines_of_functions_that_return_to_them(arm_guest: Guest) -> None:
    """vfs_read shares a hook with others, ksys_read has its own; both have signed return addresses where there is PAC.
    """
    with Console(arm_guest) as gdb:
        gdb("set optprobe table-keys 8")
        gdb("optprobe add vfs_* -return do count")
        assert "optimized" in gdb("optprobe add ksys_read -return -maxactive 64 do count by $retval")
        gdb('optprobe break read_zero if $comm == "dd"')
        running = arm_guest.spawn("dd if=/dev/zero of=/dev/null bs=77 count=1 2>/dev/null")
        assert "hit optprobe" in gdb("continue")
        frames = re.findall(r"^#\d+ .* in (\S+) \(", gdb("bt"), re.M)
        assert tuple(frames[: len(CALLERS)]) == CALLERS and frames[-1] == "el0t_64_sync", frames
        gdb("optprobe delete")
        gdb("detach")
        running.wait(30.0)
        running.close()
