"""What is typed in a peer's syntax is answered with the line as it is written here, and that line parses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.commands.parse import parse_add, parse_break, parse_dprintf
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ir import Program

ANSWERS = [
    ("kprobe:vfs_read", "bpftrace", "vfs_read"),
    ("kprobe:vfs_read if count > 4096", "bpftrace", "vfs_read if count > 4096"),
    ("kprobe:vfs_read, kprobe:vfs_write", "bpftrace", "vfs_read,vfs_write"),
    ("kprobe:vfs_read{ @ = count(); }", "bpftrace", "vfs_read do count"),
    ("-name n kprobe:vfs_* -json", "bpftrace", "-name n vfs_* -json"),
    ("kretprobe:vfs_read", "bpftrace", "vfs_read -return"),
    ("fentry:ext4:ext4_sync_fs", "bpftrace", "ext4:ext4_sync_fs"),
    ("fexit:vfs_read", "bpftrace", "vfs_read -return"),
    ("k:vfs_read", "bpftrace", "vfs_read"),
    ("uprobe:/bin/bash:readline", "bpftrace", "/bin/bash:readline -user"),
    ("uretprobe:/bin/bash:readline", "bpftrace", "/bin/bash:readline -user -return"),
    ("vfs_read /pid == 1/", "bpftrace", "vfs_read if $tgid == 1"),
    ("kprobe:vfs_read /pid == 1/", "bpftrace", "vfs_read if $tgid == 1"),
    (
        'kprobe:vfs_read /comm == "pid"/ { @[tid, comm] = hist(arg2); @n++; }',
        "bpftrace",
        'vfs_read if $comm == "pid" do hist($arg3) by ($pid, $comm), count',
    ),
    ("kretprobe:vfs_read { @ = avg(retval) }", "bpftrace", "vfs_read -return do avg($retval)"),
    ("fentry:vfs_read /args.count > 1/ { @x[cpu] = count(); }", "bpftrace", "vfs_read if count > 1 do count by $cpu"),
    ('kprobe:f { printf("%d\\n", pid); }', "bpftrace", 'f do print("%d\\n", $tgid)'),
    ("kprobe:f { exit(); }", "bpftrace", "f"),
    ("f do @[comm] = count()", "bpftrace", "f do count by $comm"),
    ("f if x do @[comm] = count()", "bpftrace", "f if x do count by $comm"),
    ("p:vfs_read", "tracefs", "vfs_read"),
    ("r:vfs_read", "tracefs", "vfs_read -return"),
    ("p:group/name vfs_read+4 count=%dx:u64", "tracefs", "vfs_read+4"),
    ("r16:name ext4:ext4_sync_fs $retval", "tracefs", "ext4:ext4_sync_fs -return"),
    ("p vfs_read", "tracefs", "vfs_read"),
    ("t:sched:sched_switch", "bpftrace", "tracepoint:sched:sched_switch"),
    ("rt:sched_switch", "bpftrace", "rawtracepoint:sched_switch"),
    (
        "tracepoint:syscalls:sys_enter_read /args.fd > 2/ { @[comm, args->fd] = sum(args.count); }",
        "bpftrace",
        "tracepoint:syscalls:sys_enter_read if args->fd > 2 do sum(args->count) by ($comm, args->fd)",
    ),
    ("kprobe:", "bpftrace", "FUNCTION"),
    ("kretprobe:", "bpftrace", "FUNCTION -return"),
    ("uretprobe:", "bpftrace", "BINARY:FUNCTION -user -return"),
    ("p:", "tracefs", "FUNCTION"),
    ("r:", "tracefs", "FUNCTION -return"),
    ("vfs_read%return", "perf", "vfs_read -return"),
    ('kernel.function("vfs_read@fs/read_write.c").return { next }', "SystemTap", "vfs_read -return"),
    ('module("ext4").function("ext4_sync_fs").call', "SystemTap", "ext4:ext4_sync_fs"),
]


def refused(text: str) -> OptprobeError:
    with pytest.raises(OptprobeError) as caught:
        parse_add(text).specs()
    return caught.value


@pytest.mark.parametrize(("typed", "peer", "ours"), ANSWERS)
def test_a_peers_line_is_answered_with_ours(typed: str, peer: str, ours: str) -> None:
    error = refused(typed)
    assert error.message.startswith(f"this is the syntax of {peer}\n")
    assert error.hint == f"optprobe add {ours}"
    parse_add(ours).specs()


@pytest.mark.parametrize("typed", ["kprobe:f { @[comm] = count(); }", "f do @[comm] = count()"])
def test_the_answer_is_the_command_that_was_typed(typed: str) -> None:
    for command, parse in (("break", parse_break), ("explain", lambda text: parse_add(text, "explain"))):
        with pytest.raises(OptprobeError) as caught:
            parse(typed).specs()
        assert caught.value.hint == f"optprobe {command} f do count by $comm"


def test_dprintf_is_answered_with_dprintf() -> None:
    with pytest.raises(OptprobeError) as caught:
        parse_dprintf('kprobe:vfs_read,"%lu",count')
    assert caught.value.hint == 'optprobe dprintf vfs_read,"%lu",count'


@pytest.mark.parametrize("typed", ["interval:s:1", "profile:hz:99 { @[kstack] = count(); }"])
def test_what_is_not_here_is_said(typed: str) -> None:
    error = refused(typed)
    assert "the syntax of bpftrace, and there is no such probe here" in error.message and error.hint


def test_an_unknown_statement_is_answered_with_braces() -> None:
    assert refused("f do @start[tid] = nsecs").hint == "optprobe add f do { @start[tid] = nsecs }"


def test_a_block_in_braces_is_an_action_without_a_condition() -> None:
    (spec,) = parse_add("vfs_* do { @[func] = count(), @b = 1; if (x) { do; } } -json").specs()
    assert spec.block == "{ @[func] = count(), @b = 1; if (x) { do; } }" and spec.glob
    error = refused("f if x do { @[comm] = count(); }")
    assert error.message.startswith("a block in braces has no condition before it\n") and error.hint == "count by $comm"
    assert not parse_add("f do count").specs()[0].block and not replace(spec, program=Program(None, ())).block


@pytest.mark.parametrize(
    "typed",
    ["ext4:sync", "r.c:450", "p:450", "fs/read_write.c:450", "a/b.c:7", "p", "r", "r+4", "p, r", "r -return",
     "*(p / 2)", "*$rip / 2 / 3", "vfs_*", "-user kprobe:main", "'kprobe:f'",
     "tracepoint:sched:sched_switch", "tracepoint:sched:sched_w*,rawtracepoint:sched_switch",
     "rawtracepoint:sched_switch do count by $arg1"],
)  # fmt: skip
def test_our_own_locations_are_no_peers(typed: str) -> None:
    parse_add(typed).specs()
