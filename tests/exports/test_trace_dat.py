"""trace.dat as trace-cmd reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gdb_optprobe.exports import trace_dat
from gdb_optprobe.exports.recording import Call, Event, Recording, Thread
from tests.exports.recordings import NASTY, OPEN, READ, SECOND, VERIFY, WHOLE, hostile
from tests.exports.viewers import viewer

DD = Thread(412, "dd")


Report = Callable[..., list[str]]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    def read(recording: Recording, *options: str) -> list[str]:
        file = tmp_path / "trace.dat"
        file.write_bytes(trace_dat.encode(recording))
        first, *lines = viewer("trace-cmd", "report", "-t", *options, "-i", str(file)).splitlines()
        assert first.startswith("cpus=")
        return lines

    return read


def test_calls_are_as_function_graph_has_them(report: Report) -> None:
    found = [line for line in report(WHOLE) if " dd-412 " in line]
    shown = [re.sub(r"^ +dd-412 +\[(\d+)\] +(\S+): (\S+): +", r"\1 \2 \3 ", line) for line in found]
    assert shown == [
        '000 1.000000200 print do_sys_openat2+0x5: name=a, "b";c',
        "000 1.000000500 funcgraph_entry |  vfs_read() {",
        "000 1.000001000 funcgraph_entry 0.300 us   |    rw_verify_area();",
        "000 1.000003000 funcgraph_exit 2.500 us   |  }",
        "001 1.000003000 funcgraph_entry 0.100 us   |  vfs_read();",
    ]


def test_events_and_stacks_are_prints_of_their_cpus(report: Report) -> None:
    found = report(WHOLE)
    (stack,) = (line for line in found if "CPU 0-4194304" in line and "[000]" in line)
    assert stack.endswith("vfs_read: vfs_read < ksys_read < entry_SYSCALL_64")
    assert len([line for line in found if " print: " in line]) == 3


def test_many_pages_and_long_silences(report: Report) -> None:
    """Texts of any length up to beyond a page, and times further apart than an event's own 27 bits."""
    ends = [*range(1, 400), 4000]
    times = [SECOND * (at // 7) ** 2 + at for at, _ in enumerate(ends)]
    events = (Event(OPEN, times[at], at % 2, DD, (), "x" * size) for at, size in enumerate(ends))
    lines = report(Recording(tuple(events)))
    found = [re.search(r"\[(\d+)\] +(\d+)\.(\d+): print: +\S+: (x+)$", line) for line in lines]
    assert [int(one[2]) * SECOND + int(one[3]) for one in found] == times
    assert [int(one[1]) for one in found] == [at % 2 for at, _ in enumerate(ends)]
    assert [len(one[4]) for one in found] == [min(size, trace_dat.LONGEST_TEXT) for size in ends]


def test_times_of_any_distance(report: Report) -> None:
    times = [0, 1, 1 << 40, (1 << 59) + (1 << 40), (1 << 62) + 5, (1 << 63) - 1]
    found = report(Recording(tuple(Event(OPEN, time, 0, DD, (), "x") for time in times)))
    shown = [re.search(r" (\d+)\.(\d{9}): print", line) for line in found]
    assert [int(one[1]) * SECOND + int(one[2]) for one in shown] == times


def test_calls_at_the_same_instant_nest(report: Report) -> None:
    calls = [Call(source, 5, 9, 0, DD) for source in (READ, VERIFY, OPEN)]
    assert [line.rpartition("|")[2] for line in report(Recording(calls=tuple(calls)))] == [
        "  vfs_read() {", "    rw_verify_area() {", "      do_sys_openat2+0x5();", "    }", "  }",
    ]  # fmt: skip


def test_hostile_names_make_no_line_and_no_symbol(report: Report) -> None:
    found = report(hostile())
    assert len(found) == 3 * len(NASTY)
    entries = [line.partition("|  ")[2] for line in found if "funcgraph_entry" in line]
    assert entries == [f"{name.replace(' ', '_')}() {{" for name in NASTY]


def test_a_cpu_that_no_kernel_has_takes_no_room(report: Report) -> None:
    (line,) = report(Recording((Event(OPEN, 5, (1 << 32) - 1, DD, (), "x"),)))
    assert f"[{trace_dat.LAST_CPU}]" in line


def test_nothing_is_a_file_too(report: Report) -> None:
    assert report(Recording()) == []
