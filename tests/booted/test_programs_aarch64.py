"""Probes on 64-bit programs of the stock aarch64 guest: exact counts on two CPUs, and nothing left behind."""

from __future__ import annotations

import re
import struct

from gdb_optprobe.isa.aarch64 import AARCH64
from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.test_handlers import maps, report
from tests.booted.test_ppc64le import ATTEMPT, attempt, two_dd

HITS = 2_000
SVC, READ = 0xD400_0001, 0xD280_07E8  # mov x8, #63
ENTRY = 0xA9BD_7BFD  # stp x29, x30, [sp, #-48]!
PIECE = "dd if=/bin/busybox bs=4096 skip={} count={} 2>/dev/null | od -A n -v -t x4"


def code_of_read(guest: Guest) -> dict[int, int]:
    """Words of busybox's read(), by their offset in the file: from its entry to its return."""
    first, count = 0, 64
    while True:
        words = [int(word, 16) for word in guest.check(PIECE.format(first, count)).split()]
        assert words, "busybox calls read"
        for at in range(len(words) - 1):
            if words[at : at + 2] == [READ, SVC] and ENTRY in words[max(0, at - 16) : at]:
                start = max(place for place in range(max(0, at - 16), at) if words[place] == ENTRY)
                end = words.index(0xD65F_03C0, at)
                return {4096 * first + 4 * place: words[place] for place in range(start, end + 1)}
        first += count


def test_a_program_is_counted_exactly_and_runs_as_before(arm_guest: Guest) -> None:
    """At its entry, at a system call, at a branch and at a return; in processes that begin later, on two CPUs."""
    code = code_of_read(arm_guest)
    entry, *_, last = code
    call = next(at for at, word in code.items() if word == SVC)
    branch = next(at for at, word in code.items() if word >> 24 == 0x34)  # cbz
    insns = [AARCH64.decode(struct.pack("<I", code[at]), at)[0].text for at in (entry, call, branch, last)]
    places = 'if $comm == "dd"'
    script: list[str | Workload] = [
        "set optprobe table-keys 8",
        f"optprobe add -user /bin/busybox:{entry:#x} {places} do hist($x2), count by *(unsigned char *)$x1 & 0",
        f"optprobe add -user /bin/busybox:{call:#x} {places}",
        f"optprobe add -user /bin/busybox:{branch:#x} {places}",
        f"optprobe add -user /bin/busybox:{call + 4:#x} {places} do count by $x0",
        f"optprobe add -user /bin/busybox:{last:#x} {places}",
        two_dd(HITS),
        keep("list", "optprobe list"),
        report("report"),
        "optprobe check",
        *ATTEMPT,
        attempt(f"-user /bin/busybox:{entry:#x} -return"),
        "optprobe delete",
        Workload("dd if=/dev/zero of=/dev/null bs=1 count=10 2>/dev/null"),
        "optprobe check",
    ]
    finished = batch(arm_guest, script)
    assert finished.status == 0, finished.output
    probes = finished.json("list")
    assert [probe["tier"] for probe in probes] == ["trapped"] * 5
    assert [probe["hits"] for probe in probes] == [2 * HITS] * 5, insns
    found = maps(finished, "report")
    assert dict(found[4, "count by $x0"]) == {(1,): 2 * HITS}
    assert not any(probe["faults"] for probe in probes)
    assert "-return is not built yet for this guest's programs" in finished.output
    assert len(re.findall("holds what we wrote", finished.output)) == 2
