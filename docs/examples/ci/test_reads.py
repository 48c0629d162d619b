"""What reads.gdb asserts, in Python: python -m pytest test_reads.py"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gdb_optprobe_qemu.probed_guest import ProbedGuest, probed_guest

READS = "dd if=/dev/zero of=/dev/null bs=1 count=1000"


@pytest.fixture(scope="module")
def booted() -> Iterator[ProbedGuest]:
    """One guest for all tests of the file. probed_guest(Options(kernel="bzImage", smp=4)) boots a kernel of yours."""
    with probed_guest() as g:
        yield g


@pytest.fixture
def g(booted: ProbedGuest) -> Iterator[ProbedGuest]:
    yield booted
    booted("optprobe delete")


def test_each_read_is_seen(g: ProbedGuest) -> None:
    g('optprobe add vfs_read if $comm == "dd" && count == 1')
    g.run(READS)
    assert g.hits() == 1000


def test_a_read_has_a_time(g: ProbedGuest) -> None:
    g('optprobe add vfs_read -return if $comm == "dd" && $retval == 1 do latency')
    g.run(READS)
    (times,) = [line for line in g.json("optprobe report -json") if line["type"] == "map"]
    assert sum(bucket["count"] for bucket in times["entries"][0]["value"]) == 1000
