"""The guest's own kprobes and tracer patch the text that we patch: conflicts are told, nothing is overwritten."""

from __future__ import annotations

import os
import re

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.test_bad_input import attempt

TRACING = "/sys/kernel/tracing"
READS = 20
WORK = Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null")
ROUNDS = int(os.environ.get("OPTPROBE_ROUNDS", "100" if FULL else "1"))
NEXT_STEP = r"under the guest's own kprobe at 0x\w+ <\w+(\+\d+)?>: remove that kprobe in the guest, then optprobe co"
# See conftest.py on guests that rewrite their own text.
SINGLE = ("-accel", "tcg,thread=single")


def own(line: str) -> Workload:
    """A command of the guest's own; it may be refused."""
    return Workload(f"cd {TRACING}; {line}")


def test_a_kprobe_on_our_branch_is_told_and_left_alone(fresh: Boot) -> None:
    """On x86-64 the guest takes our jump for an instruction; when its kprobe goes, our branch can go too."""
    guest = fresh(extra=SINGLE)
    script: list[str | Workload] = ["set optprobe exit-on-error off", "optprobe add vfs_read+5", "optprobe commit"]
    script += [WORK, own("echo 'p:own/x vfs_read+5' > kprobe_events; echo 1 > events/own/x/enable"), WORK]
    script += [attempt("optprobe check"), keep("list", "optprobe list"), attempt("optprobe delete"), "x/2xb vfs_read+5"]
    script += [attempt("optprobe add vfs_read+5"), WORK]
    script += [own("echo 0 > events/own/x/enable; echo > kprobe_events"), WORK]
    script += ["optprobe commit", "x/2xb vfs_read+5", "optprobe add vfs_read+5", "optprobe commit", WORK]
    finished = batch(guest, [*script, keep("again", "optprobe list"), "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    (probe,), (again,) = finished.json("list"), finished.json("again")
    assert probe["hits"] >= 2 * READS, "the guest's kprobe runs our jump"
    assert "optprobe: the guest's memory is not what we wrote:" in finished.output
    assert "1 of 1 probes are left in the guest" in finished.output
    assert re.search(NEXT_STEP, finished.output)
    held, free = re.findall(r"<vfs_read\+5>:\t(0x\w+)\t", finished.output)
    assert (held, free) == ("0xcc", "0x41"), "an int3 of the guest's, the push that was there"
    assert again["tier"] == "optimized" and again["hits"] >= READS
    assert "still in use" not in finished.output
    assert guest.problems() == []


@pytest.mark.parametrize(("guest_of", "place"), [("ppc_guest", "vfs_write+0x40"), ("arm_guest", "vfs_read")])
def test_what_stands_over_our_branch_is_told_where_branches_have_one_size(
    request: pytest.FixtureRequest, guest_of: str, place: str
) -> None:
    guest: Guest = request.getfixturevalue(guest_of)
    script: list[str | Workload] = ["set optprobe exit-on-error off", f"optprobe add {place}", "optprobe commit"]
    kprobe = f"echo 'p:own/x {place}' > kprobe_events; echo 1 > events/own/x/enable"
    script += [keep("list", "optprobe list"), own(kprobe)]
    script += [attempt("optprobe delete"), attempt("optprobe check")]
    script += [own("echo 0 > events/own/x/enable; echo > kprobe_events"), "optprobe commit", "optprobe check"]
    finished = batch(guest, script)
    (probe,) = finished.json("list")
    assert probe["tier"] == "optimized"
    assert "1 of 1 probes are left in the guest" in finished.output
    assert re.search(NEXT_STEP, finished.output) and "is there still, under the guest's own kprobe" in finished.output
    assert "The guest's memory holds what we wrote." in finished.output


def test_what_is_behind_an_optimized_kprobe_is_probed_where_instructions_begin(fresh: Boot) -> None:
    """On x86-64 its jump covers four instructions and a part of none: what stands behind it is decoded as it was."""
    guest = fresh(extra=SINGLE)
    guest.check(f"cd {TRACING}; echo 'p:own/x vfs_read+13' > kprobe_events; echo 1 > events/own/x/enable")
    wait = "until grep -q 'vfs_read+0xd .*OPTIMIZED' /sys/kernel/debug/kprobes/list; do sleep 0.1; done"
    guest.check(f"{WORK.command}; {wait}", 60)
    script: list[str | Workload] = ["set optprobe exit-on-error off"]
    script += [attempt(f"optprobe add vfs_read+{at}") for at in (15, 18)]
    # The guest lists a kprobe as optimized once that is asked for: its optimizer writes the jump later.
    script += ["set $site = (unsigned char *) &vfs_read + 13"]
    script += ["while *$site == 0xcc", "optprobe run -for 0.2", "end"]
    script += [*(f"optprobe add vfs_read+{at}" for at in (13, 19)), "optprobe commit", WORK]
    script += [keep("list", "optprobe list")]
    script += [own("echo 0 > events/own/x/enable; echo > kprobe_events; sleep 1"), WORK, keep("alone", "optprobe list")]
    finished = batch(guest, [*script, "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    on, behind = finished.json("list")
    assert (on["tier"], on["reason"]["code"], behind["tier"]) == ("breakpoint", "FOREIGN_JUMP", "optimized")
    assert on["hits"] >= READS and behind["hits"] >= READS
    assert {probe["tier"] for probe in finished.json("alone")} == {"optimized"}
    assert "vfs_read+13> leaves for memory that is no known code" in finished.output
    assert re.search(r"vfs_read\+18> is in the middle of the instruction", finished.output)
    assert guest.problems() == []


def test_a_kprobe_in_the_global_entry_leaves_the_local_one_known(fresh: Boot) -> None:
    """On ppc64le it is told by its first two instructions, of which the second is a branch by then."""
    guest = fresh(arch="ppc64le", extra=SINGLE)
    guest.check(f"cd {TRACING}; echo 'p:own/x vfs_read+4' > kprobe_events; echo 1 > events/own/x/enable")
    wait = "until grep -q 'vfs_read+0x4 .*OPTIMIZED' /sys/kernel/debug/kprobes/list; do sleep 0.1; done"
    guest.check(f"{WORK.command}; {wait}", 120)
    script: list[str | Workload] = ["optprobe add vfs_read", "optprobe commit", WORK, keep("list", "optprobe list")]
    finished = batch(guest, [*script, "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    assert probe["symbol"] == "vfs_read+0x8" and probe["tier"] == "optimized" and probe["hits"] >= READS
    assert guest.problems() == []


def test_what_the_kernel_goes_round_is_noted(linux: Guest) -> None:
    """Without a word a probe of a tracepoint's iterator counts nothing for ever."""
    iterator = "__traceiter_sched_switch"
    script = [f"optprobe {verb} {iterator}" for verb in ("explain", "add")]
    finished = batch(linux, [*script, "optprobe explain vfs_read", "optprobe delete"])
    assert finished.status == 0, finished.output
    told = " ".join(finished.output.split())
    note = f"NOTE: the kernel calls {iterator} only while several functions are attached to the tracepoint sched_switch"
    assert told.count(note) == 2 and told.count("NOTE: ") == 2
    assert linux.problems() == []


# Where the guest's own event can stand, and where it cannot, by architecture.
PLACES = {
    "x86_64": ("vfs_read", "vfs_read+5", "vfs_read+7", "vfs_read+0x13"),
    "ppc64le": ("vfs_read", "vfs_read+0x10", "vfs_read+0x18"),
    "aarch64": ("vfs_read", "vfs_read+0x8", "vfs_read+0x10"),
}


@pytest.mark.parametrize("arch", PLACES)
def test_events_and_tracers_come_and_go_in_both_orders(fresh: Boot, arch: str) -> None:
    """Ours first, then theirs first, each with kprobe events and with the function tracer."""
    guest = fresh(arch=arch, extra=SINGLE)
    ours = [f"optprobe add {place}" for place in ("vfs_read", PLACES[arch][-1])]
    events = "; ".join(f"echo 'p:own/e{n} {place}' >> kprobe_events" for n, place in enumerate(PLACES[arch]))
    on = [own(f"{events}; echo 1 > events/own/enable")]
    on += [own("echo vfs_write > set_ftrace_filter; echo function > current_tracer")]
    off = [own("echo nop > current_tracer; echo > set_ftrace_filter")]
    off += [own("echo 0 > events/own/enable; echo > kprobe_events")]
    script: list[str | Workload] = ["set optprobe exit-on-error off", "optprobe explain vfs_read"]
    for number in range(ROUNDS):
        script += [*ours, "optprobe commit", *on, WORK, keep(f"ours {number}", "optprobe list")]
        script += [attempt("optprobe check"), attempt("optprobe delete"), *off, WORK, "optprobe commit"]
        script += [*on, *map(attempt, ours), "optprobe commit", WORK, keep(f"theirs {number}", "optprobe list")]
        script += [*off, WORK, "optprobe commit", keep(f"alone {number}", "optprobe list")]
        script += ["optprobe check", "optprobe delete"]
    finished = batch(guest, script, timeout=3500 if FULL else 250)
    assert finished.status == 0, finished.output[-5000:]
    for number in range(ROUNDS):
        mine, theirs, alone = (finished.json(f"{name} {number}") for name in ("ours", "theirs", "alone"))
        assert all(probe["hits"] >= READS for probe in (*mine, *theirs, *alone)), (mine, theirs, alone)
        assert all(probe["tier"] == "optimized" for probe in (*mine, *alone)), alone
        assert all(probe["tier"] == "optimized" or probe["reason"]["code"] for probe in theirs)
    assert finished.output.count("holds a breakpoint instruction that is not optprobe's") >= ROUNDS
    assert finished.output.count("The guest's memory holds what we wrote.") >= ROUNDS
    assert "still in use" not in finished.output and "internal error" not in finished.output
    assert traced_again(guest)
    assert guest.problems() == []


def traced_again(guest: Guest) -> bool:
    """Whether the function tracer still works on what was probed."""
    seen = guest.check(
        f"cd {TRACING}; echo vfs_read > set_ftrace_filter; echo function > current_tracer; head -c 1 /dev/zero | wc -c;"
        " head -n 20 trace; echo nop > current_tracer; echo > set_ftrace_filter"
    )
    return "vfs_read" in seen
