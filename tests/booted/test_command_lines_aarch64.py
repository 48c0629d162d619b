"""Command lines of an aarch64 kernel, by which its text is mapped in other ways: all kinds of probes are exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.test_aarch64 import text_of
from tests.booted.test_exact import arm, quiet
from tests.booted.test_ppc64le import two_dd
from tests.booted.test_programs_aarch64 import ENTRY, code_of_read
from tests.booted.test_trapped import event_hits

HITS = 5_000
LOAD = "while :; do ls -R /sys/kernel/mm > /dev/null; cat /proc/uptime > /dev/null; done"
BEHIND = "read_zero+0x24"
"""Where the guest's own event is."""


FORCED = {
    "rodata=on": "ON by KASLR",
    "rodata=full": "ON by KASLR",
    "nokaslr": None,
    "kpti=off": "OFF by kpti command line option",
    "kpti=on nokaslr": "ON by kpti command line option",
}
"""What the kernel's log says of page-table isolation."""


@pytest.mark.skipif(not FULL, reason="boots guests of its own: OPTPROBE_FULL=1")
@pytest.mark.parametrize("append", FORCED)
def test_all_kinds_of_probes_are_exact_under_load(boot: Boot, tmp_path: Path, append: str) -> None:
    """A count, a return, a trap in the kernel, one in a program: the text is as it was when they are gone."""
    guest = boot(arch="aarch64", cpu="cortex-a57", append=append)
    told = re.search(r"page table isolation forced (.*)", guest.log())
    assert (told[1] if told is not None else None) == FORCED[append]
    entry = next(at for at, word in code_of_read(guest).items() if word == ENTRY)
    load = guest.check(f"({LOAD}) > /dev/null 2>&1 & echo $!").strip()
    before = text_of(guest, tmp_path)
    script: list[str | Workload] = [
        "set optprobe table-keys 8",
        "optprobe add read_zero",
        "optprobe add read_zero -maxactive 64 -return do count",
        'optprobe add vfs_read -tier trapped if $comm == "dd" && $arg3 == 1',
        f'optprobe add -user /bin/busybox:{entry:#x} if $comm == "dd"',
        arm(BEHIND),
        two_dd(HITS),
        keep("list", "optprobe list"),
        "optprobe check",
        "optprobe delete",
        "optprobe commit",
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    found = finished.json("list")
    assert [probe["tier"] for probe in found] == ["optimized", "optimized", "trapped", "trapped"], finished.output
    assert [probe["hits"] for probe in found] == [2 * HITS] * 4, finished.output
    assert not any(probe["missed"] or probe["faults"] or probe["stops"] for probe in found), finished.output
    assert event_hits(guest) == (2 * HITS, 0)
    assert finished.output.count("holds what we wrote") == 2
    guest.check(f"kill {load}")
    quiet(guest)
    assert text_of(guest, tmp_path) == before
    assert guest.problems() == []


@pytest.mark.skipif(not FULL, reason="boots guests of its own: OPTPROBE_FULL=1")
def test_a_kernel_that_protects_nothing_is_refused_by_its_name(boot: Boot, tmp_path: Path) -> None:
    """To wait for the end of its boot would be in vain."""
    guest = boot(arch="aarch64", append="rodata=off")
    before = text_of(guest, tmp_path)
    finished = batch(guest, ["optprobe add vfs_read"])
    assert finished.status == 1 and "was booted with rodata=off" in finished.output, finished.output
    assert text_of(guest, tmp_path) == before
