"""A bounded run ends in time, however fast hits that stop the guest follow one another."""

from __future__ import annotations

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
    assert "ran for 0.2 s: 0 hits of 1 probe" in found.output, "the command was given up"
    (probe,) = found.json("list")
    assert probe["hits"] == 1000


def test_what_the_users_own_breakpoints_print_is_printed(linux: Guest) -> None:
    script = ["optprobe add ksys_read", "break vfs_write", 'commands\nsilent\nprintf "written\\n"\ncontinue\nend']
    script += ['dprintf vfs_read,"read %d\\n",77']
    dd = "optprobe run -guest 'dd if=/dev/zero of=/dev/null bs=77 count=3 2>/dev/null'"
    finished = batch(linux, [*script, dd, "delete", "optprobe delete"])
    assert finished.status == 0, finished.output
    assert finished.output.count("written\n") >= 3 and finished.output.count("read 77\n") >= 3, finished.output
    assert "SIGINT" not in finished.output
