"""A bounded run ends in time, however fast hits that stop the guest follow one another."""

from __future__ import annotations

import json

from qemu.guest import Guest
from tests.booted.batch import batch, keep, timed

ROUNDS = 6
SLICE = 0.2
SLOWEST = 5.0


def test_run_ends_in_time_where_the_guest_is_hardly_ever_running(linux: Guest) -> None:
    stops = [f"optprobe add {place} -tier breakpoint" for place in ("hrtimer_interrupt", "__schedule", "*schedule+5")]
    rounds = [timed(f"run{number}", f"optprobe run -for {SLICE}") for number in range(ROUNDS)]
    found = batch(linux, [*stops, *rounds, keep("list", "optprobe list"), "optprobe delete"])
    assert found.status == 0, found.output
    assert found.output.count(f"ran for {SLICE:g} s: ") == ROUNDS, found.output
    assert "received signal" not in found.output, "the stops are ours"
    for number in range(ROUNDS):
        assert SLICE <= found.json(f"run{number}") < SLOWEST
    assert sum(probe["hits"] for probe in found.json("list")) > ROUNDS


def test_run_ends_with_a_command_in_the_guest(linux: Guest) -> None:
    reads = "dd if=/dev/zero of=/dev/null bs=1 count=1000"
    commands = [
        'optprobe add vfs_read if $comm == "dd" && count == 1',
        f"optprobe run -guest '{reads} 2>/dev/null; echo done; (exit 3)'",
        keep("list", "optprobe list"),
        f"optprobe run -for 0.2 -guest 'sleep 5; {reads}'",
        "optprobe delete",
    ]
    found = batch(linux, commands)
    assert found.status == 0 and "done\nthe command has ended with status 3\nran for " in found.output, found.output
    assert "ran for 0.2 s: 0 hits of 1 probe\nthe command still runs in the guest" in found.output
    (probe,) = found.json("list")
    assert probe["hits"] == 1000
    linux.check("true")  # the command still runs, and that of another test would wait for it


def test_what_the_users_own_breakpoints_print_is_printed(linux: Guest) -> None:
    script = ["optprobe add ksys_read", "break vfs_write", 'commands\nsilent\nprintf "written\\n"\ncontinue\nend']
    script += ['dprintf vfs_read,"read %d\\n",77']
    dd = "optprobe run -guest 'dd if=/dev/zero of=/dev/null bs=77 count=3 2>/dev/null'"
    finished = batch(linux, [*script, dd, "delete", "optprobe delete"])
    assert finished.status == 0, finished.output
    assert finished.output.count("written\n") >= 3 and finished.output.count("read 77\n") >= 3, finished.output
    assert "SIGINT" not in finished.output


def test_records_are_followed_while_the_guest_runs(each_linux: Guest) -> None:
    """Of calls, returns and stacks, in more hits than the rings have places: each was printed, or counted as lost."""
    mine = 'if $comm == "dd" && $arg3 == 1'
    reads = "dd if=/dev/zero of=/dev/null bs=1 count=40 2>/dev/null"
    bursts = "; sleep 0.3; ".join([reads] * 8)
    script = [
        "set optprobe ring-records 64",
        f"optprobe add vfs_read {mine} do record($arg3)",
        'optprobe add vfs_read -return if $comm == "dd" && $retval == 1 do print("%ld", $retval)',
        f"optprobe add ksys_write {mine} do stack",
        f"optprobe run -follow -json -guest '{bursts}'",
        f"optprobe run -follow -json -guest '{reads.replace('40', '1000')}'",
        "optprobe report -json",
        "optprobe delete",
    ]
    found = batch(each_linux, script)
    assert found.status == 0, found.output
    lines = [json.loads(line) for line in found.output.splitlines() if line.startswith('{"type"')]
    slow, fast = [line for line in lines if line["type"] == "run"]
    assert slow["records"] > 3 * 64 and slow["records"] + slow["lost"] == 3 * 8 * 40, "more than the rings hold"
    records = lines[: slow["records"]]
    assert {record["type"] for record in records} == {"record"} and lines[len(records)] == slow
    times = [record["time"] for record in records]
    assert times == sorted(times)
    assert fast["lost"] and fast["records"] + fast["lost"] == 3 * 1000
    assert 0 < sum(line.get("lost_after", 0) for line in lines) <= slow["lost"] + fast["lost"]
    assert sum(line["dropped"] for line in lines if line["type"] == "probe") == slow["lost"] + fast["lost"]


def test_ctrl_c_ends_what_is_followed_and_loses_no_record(linux: Guest) -> None:
    """The Ctrl-C comes at any moment: while the guest runs, or while records are read or printed."""
    # It ends by itself: an interrupted run leaves its command to the guest, and another waits for it.
    reads = "for i in $(seq 300); do dd if=/dev/zero of=/dev/null bs=64 count=50 2>/dev/null; sleep 0.05; done"
    # GDB drops a signal that comes just as it hands over the terminal, so it is sent again.
    interrupts = "(sleep 3; kill -INT {0}; sleep 10; kill -INT {0}) >/dev/null 2>&1 &"
    script = [
        "optprobe add vfs_read,vfs_write if $arg3 == 64 do record($arg3)",
        f"python import os; os.system('{interrupts}'.format(os.getpid()))",
        f"optprobe run -follow -json -guest '{reads}'",
        "optprobe delete",
    ]
    found = batch(linux, script)
    assert found.status == 0, found.output
    *records, last = [json.loads(line) for line in found.output.splitlines() if line.startswith('{"type"')]
    assert last["type"] == "run" and last["text"].startswith("interrupted\nran for "), last
    assert last["records"] == len(records) > 0
    assert f": {last['records'] + last['lost']:,} hits of 2 probes\n" in last["text"]
    assert last["text"].endswith("the command still runs in the guest; another waits until it ends")
    assert linux.check("echo alive") == "alive\n"
