"""`optprobe doctor`: what works on a real guest, told without a write and without letting it run."""

from __future__ import annotations

import json
import re

import pytest

from qemu import micro
from qemu.debugger import Debugger
from qemu.guest import Guest
from qemu.rsp_proxy import RspProxy
from tests.booted.batch import batch, keep
from tests.booted.conftest import Boot
from tests.booted.test_micro_probes import ARENA

# Packets that ask, and that tell the stub what is asked for: registers, memory, threads, the mode of memory.
ASKS = re.compile(rb"\?|[gpm][0-9a-f]*(,.*)?|[HT]\S*|q(?!Rcmd)\S.*|Qqemu\.PhyMemMode:[01]|vCont\?")
# `pmemsave` reads guest memory into a file of GDB's process.
FILE = r'"/\S*/optprobe-memory-\d+-\w+/memory"'
WHERE = "gpa2hva 0x[0-9a-f]+|gva2gpa 0x[0-9a-f]+"
MONITOR = re.compile(
    rf"info (version|kvm|registers -a)|cpu \d+|p \$pid|pmemsave 0x[0-9a-f]+ 0x[0-9a-f]+ {FILE}|{WHERE}"
)
WARM = 1200
"""Packets both ways, at most, where nothing about the kernel is new: some ten for each thread, whose stack is read."""


def is_question(packet: bytes) -> bool:
    """Whether a packet changes nothing in the guest, and does not let it run."""
    if packet.startswith(b"qRcmd,"):
        return MONITOR.fullmatch(bytes.fromhex(packet[6:].decode()).decode()) is not None
    return ASKS.fullmatch(packet) is not None


CHANGES = (b"M10,1:00", b"X10,1:a", b"P0=00", b"G00", b"c", b"s", b"vCont;c", b"Z0,10,1", b"D;1")


@pytest.mark.parametrize("packet", CHANGES)
def test_what_changes_the_guest_is_no_question(packet: bytes) -> None:
    assert not is_question(packet)
    assert not is_question(b"qRcmd," + b"system_reset".hex().encode())


def states(found: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {one["name"]: one["code"] or one["state"] for one in found["facilities"]}


def test_nothing_is_written_and_the_guest_does_not_run(each_linux: Guest) -> None:
    with RspProxy(each_linux.gdb_socket) as proxy, Debugger(proxy.path) as gdb:
        before = len(proxy.sent())
        first = json.loads(gdb("optprobe doctor -json").splitlines()[-1])
        asked = proxy.sent()[before:]
        assert [packet for packet in asked if not is_question(packet)] == []
        start = proxy.count()
        again = json.loads(gdb("optprobe doctor -json").splitlines()[-1])
        spent = proxy.count() - start
        assert [packet for packet in proxy.sent()[before:] if not is_question(packet)] == []
        assert again == first
        assert (spent.packets <= WARM, spent.stops) == (True, 0), spent
        gdb("optprobe add vfs_read")
        assert states(json.loads(gdb("optprobe doctor -json").splitlines()[-1])) == states(first)
        assert gdb("optprobe list").count("vfs_read") == 1


def test_all_of_it_works_on_a_stock_kernel(linux: Guest) -> None:
    finished = batch(linux, [keep("doctor", "optprobe doctor"), "optprobe doctor"])
    assert finished.status == 0, finished.output
    found = finished.json("doctor")
    assert set(states(found).values()) == {"works"}, found
    assert found["guest"]["banner"].startswith("Linux version ") and found["guest"]["vcpus"] == 2
    headline = next(line for line in finished.output.splitlines() if line.startswith("optprobe 0"))
    assert all(word in headline for word in ("GDB", "Python", "QEMU", "Linux version", "2 vCPUs"))


def test_what_an_earlier_gdb_left_is_not_touched_by_asking(fresh: Boot) -> None:
    """An arena without probes is given back by the next GDB that needs one, not by one that asks."""
    guest = fresh()
    with Debugger(guest.gdb_socket) as gdb:
        gdb("set optprobe on-exit keep")
        gdb("optprobe add vfs_read")
        gdb("optprobe delete")
    with RspProxy(guest.gdb_socket) as proxy, Debugger(proxy.path) as gdb:
        before = len(proxy.sent())
        gdb("optprobe explain vfs_read")
        found = json.loads(gdb("optprobe doctor -json").splitlines()[-1])
        assert [packet for packet in proxy.sent()[before:] if not is_question(packet)] == []
        assert states(found)["code_memory"] == "works"
        gdb("set optprobe on-exit keep")
        assert "optimized" in gdb("optprobe add vfs_read")
    with Debugger(guest.gdb_socket) as gdb:
        assert "of an earlier GDB are in this guest: optprobe recover" in " ".join(gdb("optprobe doctor").split())


def test_a_guest_that_has_not_booted(boot: Boot) -> None:
    paused = boot(paused=True)
    finished = batch(paused, [keep("doctor", "optprobe doctor")])
    assert finished.status == 0, finished.output
    found = finished.json("doctor")
    assert states(found)["symbols"] == "GUEST_MISSING" and states(found)["qemu"] == "works"
    assert "64-bit mode" in found["facilities"][0]["reason"]


def test_a_vcpu_in_user_mode_maps_next_to_nothing_of_the_kernel(boot: Boot) -> None:
    """Page-table isolation: all is read by the kernel's own tables, and no vCPU is there to be unwound."""
    guest = boot(cpu="Nehalem", smp=1)
    guest.run("(while :; do :; done) </dev/null >/dev/null 2>&1 &")
    with Debugger(guest.gdb_socket) as gdb:
        for _ in range(50):
            if gdb("output $cs & 3").strip() == "3":
                break
            gdb("optprobe run -for 0.05")
        found = json.loads(gdb("optprobe doctor -json").splitlines()[-1])
    assert set(states(found).values()) == {"works"}, found
    (unwinding,) = (one["detail"] for one in found["facilities"] if one["name"] == "unwinding")
    assert unwinding == "ORC tables; no vCPU is in the kernel to try them on"


def test_a_guest_without_an_operating_system(boot: Boot) -> None:
    """GDB's symbols and memory of the user's own serve; what only Linux has is refused with one reason."""
    guest = boot(micro=True)
    script = [f"symbol-file {micro.build('x86_64')}", keep("found", "optprobe doctor"), ARENA]
    finished = batch(guest, [*script, keep("given", "optprobe doctor")])
    assert finished.status == 0, finished.output
    found, given = states(finished.json("found")), states(finished.json("given"))
    assert (found["code_memory"], found["data_memory"]) == ("ARENA_MISSING", "ARENA_MISSING")
    assert (given["code_memory"], given["data_memory"]) == ("works", "works")
    assert {name for name, state in given.items() if state == "NOT_LINUX"} == {
        *("unwinding", "current_thread", "task_list", "entries", "ftrace_records", "probe_read", "modules"),
        "tracepoints",
    }
    assert (given["symbols"], given["types"], given["quiescence"]) == ("works", "works", "STACKS_UNKNOWN")


EXPLAINED = (
    "vfs_read",
    "vfs_read -return do latency, hist($retval)",
    "vfs_read,vfs_write if $arg3 > 3 do count by $comm",
    "vfs_read+8 -tier trapped",
    "vfs_r* do record($arg1)",
    "vfs_read do stop",
)


def test_explain_writes_nothing_and_does_not_run_the_guest(each_linux: Guest) -> None:
    with RspProxy(each_linux.gdb_socket) as proxy, Debugger(proxy.path) as gdb:
        gdb("optprobe doctor")
        before, start = len(proxy.sent()), proxy.count()
        entry = gdb(
            "python from gdb_optprobe.debugger.attach import attachments; "
            "program = attachments.current.session.uprobes.user.texts.program('/bin/busybox', None); "
            "print(hex(program.offset(program.elf.entry)))"
        ).strip()
        for line in (*EXPLAINED, f"-user /bin/busybox:{entry}", f"-user /bin/busybox:{entry} do count by $comm"):
            assert "would be" in gdb(f"optprobe explain {line}") or "cannot be" in gdb(f"optprobe explain {line}")
        assert [packet for packet in proxy.sent()[before:] if not is_question(packet)] == []
        assert (proxy.count() - start).stops == 0


def test_a_tracer_of_the_guests_own_is_told_where_it_is_in_the_way(fresh: Boot) -> None:
    """Entries alone: traps are taken where they were, though functions on the way there call the tracer now."""
    guest = fresh()
    tracer = "/sys/kernel/tracing/current_tracer"
    guest.check(f"echo function > {tracer}")
    with Debugger(guest.gdb_socket) as gdb:
        found = states(json.loads(gdb("optprobe doctor -json").splitlines()[-1]))
        assert {name for name, state in found.items() if state != "works"} == {"entries"}, found
        assert found["entries"] == "FTRACE_IN_USE"
        assert "trapped" in gdb("optprobe explain vfs_read+5 -tier trapped")
        gdb.running(lambda: guest.check(f"echo nop > {tracer}"))
        found = states(json.loads(gdb("optprobe doctor -json").splitlines()[-1]))
        assert set(found.values()) == {"works"}, found
