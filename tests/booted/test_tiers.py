"""A probe moves down when something demands it, and up again when that leaves; meanwhile no hit is lost."""

from __future__ import annotations

from typing import Any

from qemu.bench_target import BENCH_TARGETS
from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.booted.batch import Finished, Workload, batch, keep
from tests.booted.conftest import on_every_isa

TRACING = "/sys/kernel/tracing"
READS = 20
WORK = Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null")
LOWER = {"trapped", "emulated", "boosted", "breakpoint"}
WITHIN = {"x86_64": "vfs_read+7"}
"""In the bytes that a branch covers, where it is more than one instruction."""
SITE = {"x86_64": 0, "ppc64le": 12, "aarch64": 4}
"""Of the tracer, in a function."""
POST = "python from gdb_optprobe import kprobe; seen = []"


def tiers(finished: Finished, name: str) -> list[tuple[str, str]]:
    """Of each probe, its tier and the code of why it has no better one."""
    probes: list[dict[str, Any]] = finished.json(name)
    return [(probe["tier"], (probe["reason"] or {"code": ""})["code"]) for probe in probes]


def test_optimization_off_moves_every_probe_down_and_on_moves_it_up(each_linux: Guest) -> None:
    """Also one with a program, one that shares its detour, and one that is switched off meanwhile."""
    behind = BENCH_TARGETS[each_linux.options.arch].behind
    script: list[str | Workload] = [f"optprobe add {behind}", f"optprobe add {behind} do count by $comm"]
    script += ["optprobe add read_zero", "optprobe add ksys_read", "optprobe commit"]
    for setting in ("on", "off", "on "):
        script += [f"set optprobe optimization {setting}", f"optprobe {'dis' if setting == 'off' else 'en'}able 4"]
        script += ["optprobe commit", WORK, keep(setting, "optprobe list"), "optprobe check"]
    finished = batch(each_linux, [*script, "optprobe delete", "optprobe check"])
    assert finished.status == 0, finished.output
    assert tiers(finished, "on") == tiers(finished, "on ") == [("optimized", "")] * 4, finished.output
    assert {code for _, code in tiers(finished, "off")} == {"OPTIMIZATION_OFF"}
    assert {tier for tier, _ in tiers(finished, "off")} <= LOWER
    for times, setting in enumerate(("on", "off", "on "), start=1):
        first, second, zero, switched = finished.json(setting)
        assert first["hits"] == second["hits"] >= times * READS
        assert zero["hits"] == times * READS
        assert switched["tags"][0] == ("DISABLED" if setting == "off" else "OPTIMIZED")
    assert finished.output.count("holds what we wrote") == 4
    assert each_linux.problems() == []


def test_a_post_handler_and_a_neighbour_that_stops_hold_others_down(each_linux: Guest) -> None:
    """Whether it stands at the same address, or within the bytes that a branch covers."""
    subject = BENCH_TARGETS[each_linux.options.arch]
    first, within = subject.behind, WITHIN.get(each_linux.options.arch, "")
    script: list[str | Workload] = [POST, f"optprobe add {first}", "optprobe commit", keep("before", "optprobe list")]
    blockers = [f"kprobe('{first}', post_handler=lambda hit: seen.append(hit.address))"]
    blockers += [f"kprobe('{within}', pre_handler=lambda hit: seen.append(hit.address))"] if within else []
    for number, blocker in enumerate(blockers):
        script += [f"python q = {blocker}", WORK, keep(f"held {number}", "optprobe list 1")]
        script += ["python q.delete()", "optprobe commit", WORK, keep(f"free {number}", "optprobe list 1")]
    finished = batch(each_linux, [*script, "python print(f'seen: {len(seen)}')", "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    assert tiers(finished, "before") == [("optimized", "")]
    why = ["PYTHON_HANDLER", "OVERLAPS_PROBE"]
    for number in range(len(blockers)):
        ((tier, code),) = tiers(finished, f"held {number}")
        assert (tier != "optimized", code) == (True, why[number]), finished.output
        assert tiers(finished, f"free {number}") == [("optimized", "")], finished.output
        (held,), (free,) = finished.json(f"held {number}"), finished.json(f"free {number}")
        assert free["hits"] >= held["hits"] + READS >= 2 * READS
    assert int(finished.output.split("seen: ")[1].split()[0]) >= READS * len(blockers)
    assert each_linux.problems() == []


@on_every_isa
def test_what_the_guest_does_to_its_text_holds_a_probe_down_until_it_is_undone(each_linux: Guest) -> None:
    """Its own kprobe beside ours, then its function tracer: at the next stop the probe moves up by itself."""
    subject = BENCH_TARGETS[each_linux.options.arch]
    start = address_of(each_linux, "vfs_write")
    arch = each_linux.options.arch
    site, inside = SITE[arch], WITHIN.get(arch, "")
    on = [f"echo 'p:own {inside}' > kprobe_events; echo 1 > events/kprobes/own/enable"]
    on += ["echo vfs_write > set_ftrace_filter; echo function > current_tracer"]
    off = ["echo 0 > events/kprobes/own/enable; echo > kprobe_events"]
    off += ["echo nop > current_tracer; echo > set_ftrace_filter"]
    if not inside:  # a branch there covers one instruction, which is either's
        on, off = on[1:], off[1:]
    script: list[str | Workload] = [*(Workload(f"cd {TRACING}; {line}") for line in on)]
    script += [f"optprobe add *{start:#x}+{site}", "optprobe commit"]
    script += [f"optprobe add {subject.behind}"] if inside else []
    script += [WORK, keep("held", "optprobe list"), *(Workload(f"cd {TRACING}; {line}") for line in off)]
    script += [WORK, keep("free", "optprobe list"), "optprobe check", "optprobe delete"]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    held, free = tiers(finished, "held"), tiers(finished, "free")
    # Linux optimizes its own a moment after it is switched on.
    assert len(held) == 1 + bool(inside) and {code for _, code in held[1:]} <= {"FOREIGN_JUMP", "FOREIGN_BREAKPOINT"}
    assert held[0][1] == "FTRACE_IN_USE" and {tier for tier, _ in held} <= LOWER
    assert {tier for tier, _ in free} == {"optimized"}, finished.output
    assert each_linux.problems() == []


def test_who_is_in_the_way_is_named(linux: Guest) -> None:
    """A vCPU stands in the middle of the bytes; it is let go, and the probe moves up at the next stop."""
    linux.check("dd if=/dev/zero of=/dev/null bs=1 count=100000000 >/dev/null 2>&1 & echo $! > /tmp/dd")
    script: list[str | Workload] = ["optprobe explain vfs_read", "tbreak *(long)&vfs_read+7", "continue"]
    script += ["optprobe add *(long)&vfs_read+5"]
    script += [keep("waits", "optprobe list"), "optprobe list", "optprobe commit", keep("moved", "optprobe list")]
    script += ["optprobe check", "optprobe delete"]
    finished = batch(linux, script)
    linux.check("kill $(cat /tmp/dd)")
    assert finished.status == 0, finished.output
    (waits,), (moved,) = finished.json("waits"), finished.json("moved")
    assert waits["state"] == "optimizing" and waits["tags"] == ["OPTIMIZING"]
    assert waits["reason"]["code"] == "NOT_QUIESCENT"
    assert "vCPU" in waits["reason"]["text"] and "vfs_read+7>" in waits["reason"]["text"], waits
    assert "1 address waits: " in finished.output
    assert (moved["tier"], moved["tags"]) == ("optimized", ["OPTIMIZED"])
