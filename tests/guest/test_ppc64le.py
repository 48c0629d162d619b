"""Probes on the stock ppc64le kernel: every tier, exact counts, the tracer beside them, bad input."""

from __future__ import annotations

import re

from qemu.guest import Guest
from tests.guest.batch import Finished, Workload, batch, keep

HITS = 5_000
TRACING = "/sys/kernel/tracing"


def two_dd(count: int) -> Workload:
    """Two processes at once, each of which reads and writes `count` single bytes: 2 * count + 4 calls of read_zero…"""
    one = f"dd if=/dev/zero of=/dev/null bs=1 count={count} 2>/dev/null"
    return Workload(f"{one} & {one} & wait")


def probes(finished: Finished, name: str = "list") -> dict[str, dict[str, object]]:
    return {probe["symbol"]: probe for probe in finished.json(name)}


def text_of(guest: Guest, function: str) -> str:
    """The function's code, as the guest sees it."""
    start = int(guest.check(f"grep ' [tT] {function}$' /proc/kallsyms").split()[0], 16)
    finished = batch(guest, [f"x/64xw {start:#x}"], source=False)
    return "\n".join(re.findall(r"^0x[0-9a-f]+.*?:\s*(.*)$", finished.output, re.M))


def test_optimized_and_exact_on_two_cpus(ppc_guest: Guest) -> None:
    """`read_zero` runs once for each byte that is read; vfs_read for each, and for whatever else reads."""
    before = text_of(ppc_guest, "vfs_read")
    script: list[str | Workload] = ["optprobe add read_zero", "optprobe add vfs_read", "optprobe add vfs_read+0x10"]
    script += [two_dd(HITS), keep("list", "optprobe list"), "optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(ppc_guest, script)
    assert finished.status == 0, finished.output
    found = probes(finished)
    assert {probe["tier"] for probe in found.values()} == {"optimized"}, finished.output
    assert found["read_zero+0x8"]["hits"] == 2 * HITS
    assert found["vfs_read+0x8"]["hits"] == found["vfs_read+0x10"]["hits"]
    assert int(str(found["vfs_read+0x8"]["hits"])) >= 2 * HITS
    assert finished.output.count("holds what we wrote") == 2
    assert text_of(ppc_guest, "vfs_read") == before
