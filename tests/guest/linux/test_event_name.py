"""Locations that name an event, and those that name a place in the code."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.event_name import EventName, parse

READ = EventName("syscalls", "sys_enter_read")


@pytest.mark.parametrize(
    ("location", "event"),
    [
        ("tracepoint:syscalls:sys_enter_read", READ),
        ("  tracepoint:syscalls:sys_enter_read ", READ),
        ("tracepoint:sched:sched_*", EventName("sched", "sched_*")),
        ("rawtracepoint:sched_switch", EventName("", "sched_switch", True)),
        ("rawtracepoint:sched:sched_switch", EventName("sched", "sched_switch", True)),
    ],
)
def test_what_names_an_event(location: str, event: EventName) -> None:
    assert parse(location) == event
    assert parse(str(event)) == event


@pytest.mark.parametrize(
    "location",
    ["vfs_read", "ext4:ext4_sync_fs", "tracepoint:sched", "tracepoint:a:b:c", "*tracepoint:a:b", "tracepoint:a:b+4"],
)
def test_what_names_none(location: str) -> None:
    assert parse(location) is None


def test_which_are_of_system_calls_and_of_their_returns() -> None:
    assert (READ.is_syscall, READ.returns, READ.syscall) == (True, False, "read")
    left = EventName("syscalls", "sys_exit_read")
    assert (left.is_syscall, left.returns, left.syscall) == (True, True, "read")
    assert EventName("raw_syscalls", "sys_exit").returns
    assert not EventName("sched", "sys_exit").is_syscall
    assert not EventName("raw_syscalls", "sys_exit", is_raw=True).returns, "that is a tracepoint of the same name"
