"""Steps, `finish`, `until` and the user's own breakpoints among probes of every tier: nothing lost, each hit once.

The probes are neighbours at the head of vfs_read, whose instructions are 5, 2, 2, 2, 2, 1 … bytes long: the branch of
the one at +7 covers three of them. Their counts are compared with the event of the guest's own kprobes in ksys_read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qemu.guest import Guest
from tests.booted.conftest import FULL
from tests.booted.gdb import Console, reads, traced_at
from tests.booted.progress import without_progress

TIERS = ("optimized", "trapped", "breakpoint", "boosted", "emulated")
NEIGHBOURS = ("vfs_read", "vfs_read+5", "vfs_read+7")
EVENT = "ksys_read+0x5"


@pytest.fixture
def counted(linux: Guest) -> Iterator[Guest]:
    with traced_at(linux, EVENT):
        yield linux


def probe(gdb: Console, tier: str, *locations: str) -> None:
    for location in locations or NEIGHBOURS:
        said = without_progress(gdb(f"optprobe add {location}" + (f" -tier {tier}" if tier != "optimized" else "")))
        assert said.startswith("Probe "), said


def counts_agree(gdb: Console, before: int) -> None:
    """The guest's work has ended: every probe has as many hits as the guest's event."""
    gdb.finish_work()
    events = gdb.events()[EVENT] - before
    assert events > 0
    assert [view["hits"] for view in gdb.probes() if view["symbol"].startswith("vfs_read")] == [events] * 3


def waits_or_tier(gdb: Console) -> str:
    """Probe 1's tier, or why it waits to be optimized."""
    view = gdb.probe(1)
    return str(view["reason"]["code"] if view["state"] == "optimizing" else view["tier"])


@pytest.mark.parametrize("tier", TIERS)
def test_stepi_shows_each_original_instruction_and_counts_once(counted: Guest, tier: str) -> None:
    with Console(counted) as gdb:
        probe(gdb, tier)
        before = gdb.events()[EVENT]
        gdb("tbreak ksys_read")
        gdb.work = counted.spawn(reads(3))
        gdb("continue")
        gdb("advance vfs_read")
        pcs = [gdb.offset("vfs_read")]
        for line in ("stepi", "stepi", "nexti", "stepi 2", "nexti"):
            gdb(line)
            pcs.append(gdb.offset("vfs_read"))
        assert pcs == [0, 5, 7, 9, 13, 14]
        counts_agree(gdb, before)


@pytest.mark.parametrize("tier", TIERS)
def test_stepping_onto_a_probe_and_continuing_counts_once(counted: Guest, tier: str) -> None:
    with Console(counted) as gdb:
        probe(gdb, tier)
        before = gdb.events()[EVENT]
        for steps, behind in ((0, "vfs_read+5"), (1, "vfs_read+7"), (2, "vfs_read+9")):
            gdb("tbreak ksys_read")
            gdb.work = counted.spawn(reads(2))
            gdb("continue")
            gdb("advance vfs_read")
            if steps:
                gdb(f"stepi {steps}")
            gdb(f"tbreak *({behind})")
            assert "hit Temporary breakpoint" in gdb("continue")
            counts_agree(gdb, before)


@pytest.mark.parametrize("line", ["next", "step", "finish"])
@pytest.mark.parametrize("tier", TIERS)
def test_out_of_a_function_while_probes_are_hit(counted: Guest, tier: str, line: str) -> None:
    """With `finish`, both vCPUs run probed functions; QEMU does not bear other work while GDB steps in ranges."""
    with Console(counted) as gdb:
        probe(gdb, tier)
        probe(gdb, "emulated", "vfs_write")
        probe(gdb, tier, "rw_verify_area", "ksys_write")
        before = gdb.events()[EVENT]
        for _ in range(4):
            # The shell's reads put the vCPU to sleep.
            gdb("tbreak vfs_read if $rdx == 7")
            gdb.work = counted.spawn(reads(6, 2 if line == "finish" else 1))
            gdb("continue")
            thread, sp = gdb.value("$_thread"), gdb.value("$sp")
            said = gdb(line)
            if "SIGTRAP" not in said:
                break
            # One `next` in twelve ends so under QEMU 7.2, in a GDB that knows nothing of us too.
            gdb.finish_work()
        assert "ksys_read ()" in said, said
        assert (gdb.value("$_thread"), gdb.value("$sp")) == (thread, sp + 8)
        counts_agree(gdb, before)


@pytest.mark.parametrize("tier", TIERS if FULL else ("optimized", "breakpoint"))
def test_until_advance_and_tbreak_arrive(counted: Guest, tier: str) -> None:
    """Behind the probes, at them, and at instructions that a branch has displaced."""
    with Console(counted) as gdb:
        probe(gdb, tier)
        probe(gdb, tier, "rw_verify_area", "vfs_write")
        before = gdb.events()[EVENT]
        for first, then in (
            ("advance *(vfs_read+9)", "until *(vfs_read+0xb)"),
            ("advance *(vfs_read+5)", "until *(vfs_read+7)"),
        ):
            gdb("tbreak ksys_read")
            gdb.work = counted.spawn(reads(3, 2))
            gdb("continue")
            for line in (first, then):
                gdb(line)
                assert gdb.offset("vfs_read") == int(line.partition("+")[2].rstrip(")"), 0)
            counts_agree(gdb, before)
        for offset in (0, 5, 7, 9, 0xB, 0xE):
            gdb(f"tbreak *(vfs_read+{offset})")
            gdb.work = counted.spawn(reads(2, 2))
            assert "hit Temporary breakpoint" in gdb("continue")
            assert gdb.offset("vfs_read") == offset
            counts_agree(gdb, before)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("probed", ["vfs_read+5", "vfs_read+7", "vfs_read"])
def test_a_user_s_breakpoint_hits_and_probes_make_way(counted: Guest, tier: str, probed: str) -> None:
    with Console(counted) as gdb:
        probe(gdb, tier, probed)
        before = gdb.events()[EVENT]
        best = gdb.probe(1)["tier"]
        assert best == tier
        for place in dict.fromkeys((probed, "vfs_read+7", "vfs_read+9")):
            gdb(f"break *({place})")
            displaced = tier == "optimized" and gdb.covers(probed, place)
            view = gdb.probe(1)
            assert (view["tier"] == "optimized") is (tier == "optimized" and not displaced)
            assert view["reason"] is None or not displaced or view["reason"]["code"] == "USER_BREAKPOINT"
            gdb.work = counted.spawn(reads(3))
            for _ in range(3):
                assert "Breakpoint" in gdb("continue")
                assert gdb.value("$pc") == gdb.value(place)
            # Rule 3: while the vCPU stands inside the bytes of the branch, that has to wait.
            inside = displaced and place != probed
            # So it has to, and comes up once the guest is idle, where the stop was in the middle of a thread's switch.
            stopped = {"NOT_QUIESCENT"} if inside else {best, "NOT_QUIESCENT"} if displaced else {best}
            gdb("disable")
            assert waits_or_tier(gdb) in stopped
            gdb("enable")
            assert gdb.probe(1)["tier"] == view["tier"]
            assert "Breakpoint" in gdb("continue")
            gdb("delete")
            assert waits_or_tier(gdb) in stopped
            gdb.finish_work()
            assert gdb.probe(1)["tier"] == best
            assert gdb.hits(1) == gdb.events()[EVENT] - before
