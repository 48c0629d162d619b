"""The trapped tier: an instruction that traps, which is handled in the guest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.gdb import TRACING, Console, release
from tests.booted.test_aarch64 import text_of
from tests.booted.test_exact import HITS as MANY
from tests.booted.test_exact import arm, quiet, two_dd

HITS = MANY // 2
# A static key in the scheduler is switched, on x86-64 by traps of the guest's own; a kprobe of its own stays a trap.
KEY = "/proc/sys/kernel/sched_schedstats"
SWITCH = f"for n in $(seq 40); do echo 1 > {KEY}; echo 0 > {KEY}; done"
UNOPTIMIZED = "/proc/sys/debug/kprobes-optimization"
DD = "dd if=/dev/zero of=/dev/null bs=7 count={} 2>/dev/null"


@dataclass(frozen=True)
class Places:
    """probed, event: in `read_zero`, which runs once for each read of dd's. behind: in ksys_read.

    no_kprobe: functions where Linux allows none, in which every interrupt or trap runs.
    """

    probed: tuple[str, ...]
    event: str
    behind: str
    no_kprobe: tuple[str, ...]


OF_ARCH = {
    "x86_64": Places(
        ("read_zero", "read_zero+0xe", "read_zero+0x13"),
        "read_zero+5",
        "ksys_read+7",
        ("irqentry_enter", "irqentry_exit"),
    ),
    "ppc64le": Places(
        ("read_zero", "read_zero+0x10", "read_zero+0x18"),
        "read_zero+0x20",
        "ksys_read+0x18",
        ("interrupt_enter_prepare", "interrupt_exit_kernel_prepare", "program_check_exception", "do_program_check"),
    ),
    "aarch64": Places(
        ("read_zero", "read_zero+0x1c", "read_zero+0x30"),
        "read_zero+0x24",
        "ksys_read+0x20",
        ("el1_interrupt", "enter_from_kernel_mode", "do_mem_abort", "do_debug_exception", "brk_handler"),
    ),
}

# The table of traps begins with room for 2.
GROWING = (
    "python from gdb_optprobe.debugger.attach import attachments; "
    "attachments.session().optimizer.traps.dispatcher.slots = 4"
)


@pytest.fixture(params=["linux", "ppc_guest", "arm_guest"])
def each(request: pytest.FixtureRequest) -> Guest:
    """The session's guest of each architecture."""
    guest: Guest = request.getfixturevalue(request.param)
    return guest


@pytest.fixture
def traced(each: Guest) -> Iterator[Guest]:
    """The session's guests, with their own kprobes as traps. On aarch64 Linux optimizes none."""
    each.check(f"[ ! -e {UNOPTIMIZED} ] || echo 0 > {UNOPTIMIZED}")
    yield each
    quiet(each)
    each.check(f"[ ! -e {UNOPTIMIZED} ] || echo 1 > {UNOPTIMIZED}")


def event_hits(guest: Guest) -> tuple[int, ...]:
    """Of the only event of the guest's own: hits, and those that it missed."""
    return tuple(map(int, guest.check(f"cat {TRACING}/kprobe_profile").split()[1:]))


def test_traps_count_what_the_guest_counts(traced: Guest) -> None:
    """Beside traps of the guest's own, which go on and off meanwhile."""
    places = OF_ARCH[traced.options.arch]
    one, other, last = places.probed
    script: list[str | Workload] = [GROWING]
    script += [f"optprobe add {place} -tier trapped" for place in (one, other, places.behind)]
    script += [f'optprobe add {last} -tier trapped if $comm == "dd" do count by $comm']
    script += ["optprobe add ksys_read -tier trapped -return do count, latency", arm(places.event)]
    script += [Workload(f"({SWITCH}) & {two_dd(HITS).command}", 120), keep("list", "optprobe list")]
    script += ["optprobe report 4", "optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(traced, script)
    assert finished.status == 0, finished.output
    assert finished.output.count("holds what we wrote") == 2
    assert f"[dd]: {2 * HITS}" in finished.output
    found = finished.json("list")
    assert {(probe["tier"], probe["stops"]) for probe in found} == {("trapped", 0)}
    zeros, behind, returns = found[:2] + found[3:4], found[2], found[4]
    assert [probe["hits"] for probe in zeros] == [2 * HITS] * 3
    assert event_hits(traced) == (2 * HITS, 0)
    assert (returns["missed"], returns["dropped"]) == (0, 0)
    assert returns["hits"] + returns["active"] == behind["hits"] >= 2 * HITS
    assert traced.problems() == []


def test_where_linux_allows_no_kprobe(traced: Guest) -> None:
    """In what every interrupt runs, or every trap of the guest's own, while all of it traps."""
    places = OF_ARCH[traced.options.arch]
    script: list[str | Workload] = [f"optprobe add {name} -tier trapped" for name in places.no_kprobe]
    script += [arm(places.event), two_dd(HITS // 10), keep("list", "optprobe list")]
    script += ["optprobe check", "optprobe delete"]
    finished = batch(traced, script)
    assert finished.status == 0, finished.output
    probes = finished.json("list")
    assert {probe["tier"] for probe in probes} == {"trapped"}
    assert min(probe["hits"] for probe in probes) > 100
    assert traced.problems() == []


def test_switched_off_and_on_again(each: Guest) -> None:
    with Console(each) as gdb:
        gdb("optprobe add vfs_read -tier trapped")
        gdb("set optprobe trap off")
        assert gdb.probe(1)["tier"] in ("emulated", "boosted")
        gdb("set optprobe trap on")
        assert gdb.probe(1)["tier"] == "trapped"
        gdb.send("continue")
        each.check(DD.format(300))
        gdb.interrupt()
        assert gdb.hits(1) >= 300 and gdb.probe(1)["stops"] == 0


def test_a_kprobe_of_the_guests_where_a_trap_of_ours_was(traced: Guest) -> None:
    """What looks at traps is still ours then."""
    place = OF_ARCH[traced.options.arch].probed[1]
    with Console(traced) as gdb:
        gdb(f"optprobe add {place} -tier trapped")
        gdb("optprobe delete")
        gdb.send("continue")
        traced.check(f"cd {TRACING}; echo 'p {place}' > kprobe_events; echo 1 > events/kprobes/enable")
        traced.check(DD.format(300))
        gdb.interrupt()
    assert event_hits(traced) == (300, 0)


def test_another_gdb_takes_traps_over(traced: Guest) -> None:
    take_over(traced, OF_ARCH[traced.options.arch].event)


def take_over(traced: Guest, event: str) -> None:
    """event: in `read_zero`, where the guest counts besides."""
    traced.check(f"cd {TRACING}; echo 'p {event}' > kprobe_events")
    traced.check(f"echo 1 > {TRACING}/events/kprobes/enable")
    with Console(traced) as gdb:
        assert "trapped" in gdb("optprobe add read_zero -tier trapped")
        gdb.send("continue")
        traced.check(DD.format(500))
        gdb.kill()
    traced.check(DD.format(500))
    with Console(traced) as gdb:
        assert "trapped" in gdb("optprobe recover")
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
        gdb.send("continue")
        traced.check(DD.format(500))
        gdb.interrupt()
        assert gdb.hits(1) == 1500
        # Nothing else gets the memory in which the trap is looked up.
        gdb("set optprobe table-keys 8")
        gdb("optprobe add vfs_read do count by $comm, hist($arg3)")
        gdb.send("continue")
        traced.check(DD.format(500))
        gdb.kill()
    assert event_hits(traced) == (2000, 0)
    with Console(traced) as gdb:
        assert "2 probes" in gdb("optprobe recover -remove")
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
    release(traced)
    assert traced.problems() == []


def test_a_kprobe_of_the_guests_on_a_trap_of_ours_is_refused(each: Guest) -> None:
    """It would execute the trap elsewhere."""
    place = OF_ARCH[each.options.arch].probed[1]
    with Console(each) as gdb:
        gdb(f"optprobe add {place} -tier trapped")
        gdb.send("continue")
        status, _ = each.run(f"echo 'p {place}' > {TRACING}/kprobe_events")
        gdb.interrupt()
    assert status != 0


@pytest.mark.skipif(not FULL, reason="boots guests of its own: OPTPROBE_FULL=1")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
@pytest.mark.parametrize(("cpu", "smp"), [("cortex-a57", 2), ("neoverse-n1", 4), ("max", 4)])
def test_on_other_kernels_and_processors(boot: Boot, tmp_path: Path, suite: str, cpu: str, smp: int) -> None:
    """With page-table isolation and without, with signed return addresses, PAN and tables of five levels."""
    guest = boot(arch="aarch64", cpu=cpu, smp=smp, suite=suite)
    before = text_of(guest, tmp_path)
    places = ("read_zero", "ksys_read", "do_mem_abort", "el1_interrupt")
    script: list[str | Workload] = [GROWING]
    script += [f"optprobe add {place} -tier trapped" for place in places]
    script += ['optprobe add vfs_read -tier trapped if $comm == "dd" do count by $comm', arm("read_zero+8")]
    script += [Workload(two_dd(HITS).command, 300), keep("list", "optprobe list"), "optprobe report 5"]
    script += ["optprobe check", "optprobe delete", "optprobe commit", "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    zero, read, *others = finished.json("list")
    assert {(probe["tier"], probe["stops"]) for probe in (zero, read, *others)} == {("trapped", 0)}
    assert zero["hits"] == 2 * HITS and event_hits(guest) == (2 * HITS, 0)
    assert read["hits"] >= 2 * HITS and min(probe["hits"] for probe in others) > 100
    assert finished.output.count("holds what we wrote") == 2
    quiet(guest)
    assert text_of(guest, tmp_path) == before
    take_over(guest, "read_zero+8")
    quiet(guest)
    assert text_of(guest, tmp_path) == before
