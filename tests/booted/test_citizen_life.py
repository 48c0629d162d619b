"""Leaving, coming back, being killed: the guest's text is as it was or counts on, and the guest runs on healthy."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time

import pytest

from qemu.debugger import gdb_program
from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.booted.conftest import Boot
from tests.booted.gdb import ROOT, Console, Mi, release

PLACES = ("vfs_read", "vfs_read+7", "vfs_write")
WINDOW = "x/16xb vfs_read"


def probe(gdb: Console) -> None:
    for place in PLACES:
        assert "optimized" in gdb(f"optprobe add {place}")


def text(guest: Guest) -> bytes:
    """The first bytes of vfs_read, as a GDB without us finds them."""
    address = address_of(guest, "vfs_read")
    done = subprocess.run(
        [gdb_program(), "-nx", "-batch", "-ex", f"target remote {guest.gdb_socket}", "-ex", f"x/16xb {address:#x}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    rows = [line.partition(":")[2].split() for line in done.stdout.splitlines() if line.startswith("0xffff")]
    rows = [row for row in rows if row]
    assert len(rows) == 2, done.stdout
    return bytes(int(byte, 16) for row in rows for byte in row)


@pytest.mark.parametrize("line", ["detach", "disconnect", "quit"])
def test_leaving_removes(linux: Guest, line: str) -> None:
    before = text(linux)
    with Console(linux) as gdb:
        gdb("set optprobe on-exit remove")
        probe(gdb)
        if line == "quit":
            gdb.send(line)
            gdb.rest()
        else:
            gdb(line)
            gdb.send("quit")
            gdb.rest()
    assert text(linux) == before
    linux.check("dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null")


@pytest.mark.parametrize(("answers", "left"), [(["what", "No"], True), (["y"], False), (["\x03"], True)])
def test_quit_asks(linux: Guest, answers: list[str], left: bool) -> None:
    before = text(linux)
    with Console(linux) as gdb:
        assert "optprobe on-exit is ask" in gdb("show optprobe on-exit")
        assert "optimized" in gdb("optprobe add vfs_read+7")
        gdb.send("quit")
        for answer in answers:
            gdb.until(r"Remove the 1 probe of optprobe from the guest\? \(y or n\) $")
            gdb.send(answer)
        said = gdb.rest()
        assert ("stays in the guest" in said) is left and "Python" not in said, said
    assert (text(linux) != before) is left
    linux.check("dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null")
    if left:
        with Console(linux) as gdb:
            assert "Probes of an earlier GDB are in this guest" in gdb("optprobe list")
            assert gdb("optprobe recover -remove") == "1 probe of an earlier GDB removed\n"
            assert "0x" in gdb("optprobe explain *vfs_read"), "an address as GDB's own commands take it"
        assert text(linux) == before


def test_reconnecting_finds_the_probes_and_what_they_counted_meanwhile(fresh: Boot) -> None:
    linux = fresh()
    with Console(linux) as gdb:
        gdb("set optprobe on-exit keep")
        probe(gdb)
        gdb("disconnect")
        release(linux)
        linux.check("dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null")
        for line in gdb.lines():
            gdb(line)
        assert [view["hits"] >= 1000 for view in gdb.probes()] == [True] * 3
        assert [view["tier"] for view in gdb.probes()] == ["optimized"] * 3
        gdb("set optprobe on-exit remove")


def test_rebooted_meanwhile(fresh: Boot) -> None:
    guest = fresh()
    with Console(guest) as gdb:
        probe(gdb)
        booted = len(guest.log())
        gdb.send("continue")
        time.sleep(0.3)
        with guest.qmp() as control:
            control.execute("system_reset")
        time.sleep(0.5)
        guest.wait_ready(after=booted)
        gdb.interrupt()
        said = gdb("optprobe add vfs_read")
        assert "rebooted" in said and len(said.splitlines()) <= 2, said
        assert "optimized" in gdb("optprobe add vfs_read")
        assert len(gdb.probes()) == 1
        assert gdb("info symbol vfs_read").startswith("vfs_read in section .text")
    guest.check("true")
    assert guest.problems() == []


def test_killed_with_optimized_probes_while_the_guest_runs(fresh: Boot) -> None:
    guest = fresh()
    with Console(guest) as gdb:
        probe(gdb)
        gdb.send("continue")
        work = guest.spawn("dd if=/dev/zero of=/dev/null bs=1 count=20000 2>/dev/null")
        time.sleep(0.2)
        gdb.kill()
        assert work.wait(30)[0] == 0
    guest.check("dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null")
    assert guest.problems() == []


def test_kill_ends_the_guest_and_is_forgotten(boot: Boot) -> None:
    guest = boot()
    with Console(guest) as gdb:
        probe(gdb)
        said = gdb("kill")
        assert "optprobe" not in said and "Error" not in said and "Traceback" not in said, said
        assert gdb("optprobe list").startswith(("No probes", "optprobe: no guest is connected"))
        gdb.send("quit")
        assert "optprobe" not in gdb.rest()
    deadline = time.monotonic() + 5
    while guest.running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not guest.running


def test_a_breakpoint_that_was_there_first_keeps_a_probe_down_until_it_goes(linux: Guest) -> None:
    address = address_of(linux, "vfs_read")
    with Console(linux) as gdb:
        gdb(f"break *{address:#x}")
        assert "your breakpoint" in gdb("optprobe add vfs_read")
        gdb("delete")
        assert gdb.probe(1)["tier"] == "optimized"


def test_sourced_twice(linux: Guest) -> None:
    with Console(linux) as gdb:
        probe(gdb)
        assert gdb(f"source {ROOT}/scripts/optprobe.py") == ""
        assert len(gdb.probes()) == 3
        assert gdb("stepi").count("\n") <= 2


def test_what_disassembly_and_memory_show(linux: Guest) -> None:
    with Console(linux) as gdb:
        gdb("optprobe explain vfs_read")
        before = gdb("x/8i vfs_read")
        probe(gdb)
        shown = gdb("x/8i vfs_read")
        assert [line.split("\t#")[0] for line in shown.splitlines()] == before.splitlines()
        assert [line.partition("# optprobe ")[2] for line in shown.splitlines()] == ["1", "", "2", "2", "2", "", "", ""]
        assert "# optprobe 1" in gdb("disassemble vfs_read,+16")
        assert gdb(WINDOW).split("\t")[1] == "0xe9"
        both = gdb("optprobe show 2")
        assert "original:" in both and "patched:" in both and "e9 " in both and "41 56" in both


def test_ctrl_c_and_no_noise_from_silent_hits(linux: Guest) -> None:
    with Console(linux) as gdb:
        gdb("set pagination on")
        for place, tier in (("vfs_read", "emulated"), ("vfs_write", "breakpoint"), ("ksys_read", "boosted")):
            gdb(f"optprobe add {place} -tier {tier}")
        gdb.send("continue")
        linux.run("for i in 1 2; do dd if=/dev/zero of=/dev/null bs=1 count=30 2>/dev/null & done; wait")
        said = gdb.interrupt()
        assert "received signal SIGINT" in said
        assert said.count("Switching to Thread") <= 1 and "--Type <RET>" not in said, said
        assert gdb.hits(1) >= 60 and gdb.hits(2) >= 60


def test_backtraces(linux: Guest) -> None:
    callers = ["ksys_read", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"]
    with Console(linux) as gdb:
        probe(gdb)
        for thread in (1, 2):
            gdb(f"thread {thread}")
            idle = names(gdb("bt"))
            assert idle[-1] == "secondary_startup_64_no_verify" and "do_idle" in idle
        for place in ("vfs_read", "*(vfs_read+0xb)"):
            gdb(f"break {place}")
            gdb.work = linux.spawn("cat /proc/uptime")
            gdb("continue")
            assert names(gdb("bt")) == ["vfs_read", *callers]
            assert "ksys_read" in gdb("up") and "ksys_read ()" in gdb("finish")
            gdb("delete")
            # The channel serves one command at a time: this one ends before the next is sent.
            gdb.finish_work()
        detour = int(gdb.probe(2)["detour"]["address"], 16)
        gdb(f"tbreak *{detour + 12:#x}")
        gdb.work = linux.spawn("cat /proc/uptime")
        gdb("continue")
        assert names(gdb("bt"))[-4:] == ["vfs_read", *callers]
        gdb.finish_work()


def names(backtrace: str) -> list[str]:
    return [line.split(" in ")[-1].split(" (")[0] for line in backtrace.splitlines() if line.startswith("#")]


def test_python_handlers(linux: Guest) -> None:
    with Console(linux) as gdb:
        gdb("python from gdb_optprobe import kprobe")
        gdb("python seen = []")
        gdb("python after = []")
        gdb("python pre = lambda hit: seen.append((hit.regs['rip'] == hit.address, hit.regs['rsp'], hit.vcpu))")
        gdb("python post = lambda hit: after.append((hit.regs['rip'] - hit.address, hit.regs['rsp']))")
        gdb("python p = kprobe('vfs_read+5', pre_handler=pre, post_handler=post)")
        gdb("python q = kprobe('vfs_read+5', post_handler=post, tier='breakpoint')")
        for tier in ("emulated", "breakpoint"):
            gdb(f"python h = kprobe('vfs_read+5', pre_handler=pre, post_handler=post, tier='{tier}')")
            gdb("python p.delete(); q.delete()") if tier == "emulated" else None
            assert gdb("python print(h.tier)").strip() == tier
            gdb("python seen.clear(); after.clear()")
            gdb.send("continue")
            linux.run("cat /proc/uptime")
            time.sleep(0.3)
            gdb.interrupt()
            assert gdb("python print(h.hits == len(seen) == len(after) > 2)").strip() == "True"
            assert gdb("python print(all(good for good, _, _ in seen))").strip() == "True"
            effect = "all(a == (2, s - 8) for a, (_, s, _) in zip(after, seen))"
            assert gdb(f"python print({effect})").strip() == "True", gdb("python print(after[:5], seen[:5])")
            gdb("python h.delete()")


def test_a_handler_that_fails_or_stops(linux: Guest) -> None:
    with Console(linux) as gdb:
        gdb("python from gdb_optprobe import kprobe")
        gdb("python p = kprobe('vfs_read', pre_handler=lambda hit: 1 / 0)")
        work = linux.spawn("echo x > /dev/null")
        said = gdb("continue")
        assert said.count("optprobe:") == 1 and "ZeroDivisionError" in said and "Traceback" not in said, said
        assert "vfs_read" in gdb("bt 1")
        gdb("python p.delete()")
        gdb("python p = kprobe('vfs_write', pre_handler=lambda hit: hit.stop())")
        said = gdb("continue")
        assert "vfs_write" in said and "vfs_write" in gdb("bt 1"), said
        assert gdb("python print(p.hits)").strip() == "1"
        gdb("stepi")
        assert gdb("python print(p.hits)").strip() == "1"
        gdb("python p.delete()")
        gdb.send("continue")
        work.wait(20)
        gdb.interrupt()


def test_mi(linux: Guest) -> None:
    gdb = Mi(linux)
    try:
        assert "optimized" in gdb.console("optprobe add vfs_read")
        assert "emulated" in gdb.console("optprobe add vfs_write -tier emulated")
        assert 'bkpt={number="1"' in gdb("-break-insert vfs_read")
        assert "USER_BREAKPOINT" in gdb.console("optprobe list 1")
        work = linux.spawn("cat /proc/uptime")
        gdb("-exec-continue")
        gdb.until(r'\*stopped,reason="breakpoint-hit".*func="vfs_read"')
        gdb("-exec-next-instruction")
        gdb.until(r'\*stopped,reason="end-stepping-range"')
        gdb("-break-delete")
        gdb("-exec-continue")
        work.wait(20)
        gdb("-exec-interrupt")
        gdb.until(r'\*stopped,.*signal-name="SIGINT"')
        assert "optimized" in gdb.console("optprobe list 1")
        ran = gdb('-interpreter-exec console "optprobe run -for 0.2"')
        ran += gdb.until(r'~"ran for .* s: \d+ hits? of 2 probes')
        records = re.findall(r"(?m)^\*(running|stopped)", ran)
        assert records == ["running", "stopped"], "a front end must know that the guest runs"
        gdb.console("optprobe delete")
        gdb.send("-gdb-exit")
    finally:
        with contextlib.suppress(Exception):
            gdb.rest(5)
        gdb.close()
        release(linux)


def test_who_stands_in_a_detour_is_stepped_out_of_it(linux: Guest) -> None:
    """So that all memory is the guest's again when GDB leaves, wherever it has stopped the vCPUs."""
    with Console(linux) as gdb:
        gdb("python from gdb_optprobe.debugger.attach import attachments")
        for place in ("registry.site_of(probe).detour", "probe_reads[0]"):
            gdb("optprobe add vfs_read do count by *(int *)$sp")
            gdb("python session = attachments.current.session")
            gdb("python from gdb_optprobe.recovery.teardown import teardown")
            gdb("python (probe,) = session.registry.probes()")
            gdb(f"python gdb.execute(f'break *{{session.{place}.address:#x}}')")
            gdb.work = linux.spawn("dd if=/dev/zero of=/dev/null count=3 2>/dev/null")
            assert "Breakpoint" in gdb("continue")
            gdb("delete")
            assert gdb("python teardown(session)") == ""
            assert "None" in gdb("python print(session.optimizer.arena)")
            assert gdb.offset("vfs_read") == 5, "behind what the branch had displaced"
            gdb.finish_work()
