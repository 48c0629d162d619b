"""Counts of a glob that are put in together, on a stock kernel: the planner would have made each of them the same."""

from __future__ import annotations

from qemu.guest import Guest
from tests.booted.batch import Workload, batch

WRITES = 20_000
START = """python
from gdb_optprobe.debugger.attach import attachments, current_session
session, linux = current_session(), attachments.current.linux
def states():
    ftrace, machine = linux.text.core.ftrace, session.target.guest.machine
    sites = ftrace.all_records(ftrace.within(*linux.kernel.range("_stext", "_etext")))
    some = [at for at in sites if "vfs" in linux.symbol(at)]
    return {at: record.flags for at, record in sites.items()}, {at: machine.read(at, 5) for at in some}
before = states()
end"""
SAME = """python
found = [site for site in session.registry.sites() if site.plan.ftrace is not None]
planned = [session.optimizer.plan(site.address, site.specs) == site.plan for site in found]
print("planned", len(found) >= 64 and len({site.detour.size for site in found}) == 1, all(planned))
print("checked", session.check())
end"""


def test_a_glob_counts_exactly_and_leaves_nothing(linux: Guest) -> None:
    load = Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={WRITES} 2>/dev/null")
    script = [
        START, "optprobe add -glob vfs_*", SAME, load,
        'python hits = {view.symbol: view.hits for view in session.views()}["vfs_write"]; print("writes", hits)',
        "optprobe delete", 'python print("same", states() == before)', "detach",
    ]  # fmt: skip
    printed = batch(linux, script).output
    assert "planned True True\nchecked ()\n" in printed and "same True\n" in printed, printed
    hits = int(printed.partition("\nwrites ")[2].split()[0])
    assert WRITES <= hits < WRITES + 100, printed
    traced = "cd /sys/kernel/tracing && echo function > current_tracer && echo nop > current_tracer"
    status, said = linux.run(f"mount -t tracefs none /sys/kernel/tracing 2>/dev/null; {traced}", 60)
    assert status == 0, said
