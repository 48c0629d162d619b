"""Counts of a glob that are put in together, on stock kernels: the planner would have made each of them the same."""

from __future__ import annotations

import re

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import PARALLEL, Boot

WRITES = 20_000
TRACING = "/sys/kernel/tracing"
MOUNT = f"mount -t tracefs none {TRACING} 2>/dev/null"
TRACED = f"{MOUNT}; cd {TRACING} && echo function > current_tracer && echo nop > current_tracer"
START = """python
from dataclasses import replace
from gdb_optprobe.debugger.attach import attachments, current_session
session, linux = current_session(), attachments.current.linux
def states():
    ftrace, machine = linux.text.core.ftrace, session.target.guest.machine
    sites = ftrace.flags(ftrace.within(*linux.kernel.range("_stext", "_etext")))
    some = [at for at in sites if "vfs" in linux.symbol(at)]
    return sites, {at: machine.read(at - 4, 9) for at in some}
before = states()
def hits(symbol):
    return {view.symbol.partition("+")[0]: view.hits for view in session.views()}[symbol]
end"""
SAME = """python
def as_planned(site):
    plan = session.optimizer.plan(site.address, site.specs)
    dead = site.plan.dead.registers <= plan.dead.registers and site.plan.dead.flags <= plan.dead.flags
    return dead and replace(plan, dead=site.plan.dead, base=None) == site.plan
within = linux.text.core.ftrace.within
assert session.registry.blocks and session.registry.probes() and not session.registry.blocks  # each by itself now
found = [site for site in session.registry.sites() if within(site.address, site.address + 8)]
print("planned", len(found) >= 64 and len({site.detour.size for site in found}) == 1, all(map(as_planned, found)))
print("checked", session.check())
end"""
SAME_AS_BEFORE = 'python print("same", states() == before)'


def load(prepare: str = "true", after: str = "true") -> Workload:
    return Workload(f"{prepare}; dd if=/dev/zero of=/dev/null bs=1 count={WRITES} 2>/dev/null; {after}")


def counted(printed: str, name: str) -> bool:
    """Return whether all of the load was counted, and little else."""
    hits = int(printed.partition(f"\n{name} ")[2].split()[0])
    return WRITES <= hits < WRITES + 300


def test_a_glob_counts_exactly_and_leaves_nothing(each_linux: Guest) -> None:
    script = [
        START, "optprobe add -glob vfs_*", SAME, load(),
        'python print("reads", hits("vfs_read")); print("writes", hits("vfs_write"))',
        "optprobe delete", SAME_AS_BEFORE, "detach",
    ]  # fmt: skip
    printed = batch(each_linux, script).output
    assert "planned True True\nchecked ()\n" in printed and "same True\n" in printed, printed
    assert counted(printed, "writes") and counted(printed, "reads"), printed
    status, said = each_linux.run(TRACED, 60)
    assert status == 0, said


def test_a_glob_counts_where_a_tracer_runs(ppc_guest: Guest) -> None:
    """The tracer is called behind the instruction that each branch displaces: it comes and goes with all of them in."""
    on, off = f"{MOUNT}; echo function > {TRACING}/current_tracer", f"echo nop > {TRACING}/current_tracer"
    script = [
        START, "optprobe add -glob vfs_*", load(on, off),
        'python print("reads", hits("vfs_read"))', "optprobe delete", Workload(on), "optprobe add -glob vfs_*", SAME,
        load(), 'python print("writes", hits("vfs_write"))', "optprobe delete", Workload(off), SAME_AS_BEFORE, "detach",
    ]  # fmt: skip
    printed = batch(ppc_guest, script).output
    assert "planned True True\nchecked ()\n" in printed and "same True\n" in printed, printed
    assert counted(printed, "writes") and counted(printed, "reads"), printed
    assert "ftrace bug" not in ppc_guest.check("dmesg")


def test_with_hash_page_tables_as_many_are_counted_as_doctor_says(boot: Boot) -> None:
    guest = boot(arch="ppc64le", append="disable_radix", extra=PARALLEL)
    script = [
        START, keep("doctor", "optprobe doctor"), "optprobe add -glob b*", Workload("true"), "optprobe delete",
        "optprobe commit", keep("after", "optprobe doctor"), "optprobe add -glob vfs_*", load(),
        'python print("writes", hits("vfs_write"))', "optprobe delete", SAME_AS_BEFORE, "detach",
    ]  # fmt: skip
    finished = batch(guest, script)
    room = [
        int(re.findall(r"room for ([\d,]+) counts", one["detail"])[0].replace(",", ""))
        for name in ("doctor", "after")
        for one in finished.json(name)["facilities"]
        if one["name"] == "code_memory"
    ]
    printed = finished.output
    assert room[0] == room[1] > 500 and f"addresses, {room[0]} optimized" in printed, printed
    assert "same True\n" in printed and counted(printed, "writes"), printed
