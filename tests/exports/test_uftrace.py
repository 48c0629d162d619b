"""uftrace's data as uftrace reads it; its own dump of a flame graph is compared with our folded stacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gdb_optprobe.exports import uftrace
from gdb_optprobe.exports.own_time import own_times
from gdb_optprobe.exports.recording import Call, Recording, Thread
from gdb_optprobe.exports.tracks import tracks
from tests.exports.recordings import NASTY, READ, SECOND, VERIFY, WHOLE, hostile
from tests.exports.viewers import viewer

DD, CAT = Thread(412, "dd"), Thread(413, "cat")
Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def read(recording: Recording, command: str, *options: str) -> list[str]:
        for name, data in uftrace.encode(recording).items():
            (tmp_path / name).write_bytes(data)
        return viewer("uftrace", command, "--no-pager", "--color=no", "-d", str(tmp_path), *options).splitlines()

    return read


def test_it_replays_calls_of_all_threads(run: Run) -> None:
    found = [line.partition("|") for line in run(WHOLE, "replay", "-f", "task,duration")]
    assert [(" ".join(left.split()), right) for left, _, right in found[1:]] == [
        ("CPU_1", " vfs_read() {"),
        ("CPU_1_(2)", " vfs_read() {"),
        ("0.100 us CPU_1", " } /* vfs_read */"),
        ("0.150 us CPU_1_(2)", " } /* vfs_read */"),
        ("dd", " vfs_read() {"),
        ("cat", " vfs_read() {"),
        ("0.300 us dd", "   rw_verify_area();"),
        ("2.500 us dd", " } /* vfs_read */"),
        ("0.100 us dd", " vfs_read();"),
        ("5.000 us cat", " } /* vfs_read */"),
    ]


def test_its_flame_graph_is_ours(run: Run) -> None:
    """By calls, and by time. Names of threads are not in uftrace's."""
    calls = tuple(
        Call(source, SECOND + begin, SECOND + end, 0, thread)
        for thread, start in ((DD, 0), (CAT, 1000))
        for source, begin, end in (
            (READ, start, start + 900),
            (VERIFY, start + 100, start + 300),
            (READ, start + 150, start + 200),
        )
    )
    recording = Recording(calls=calls)
    by_calls, by_time = Counter[str](), Counter[str]()
    for (_, *path), own in own_times(recording).items():
        by_calls[";".join(path)] += own.calls
        by_time[";".join(path)] += own.time
    for options, ours in (((), by_calls), (("--sample-time=1ns",), by_time)):
        lines = (line.rpartition(" ") for line in run(recording, "dump", "--flame-graph", *options))
        assert {path: int(number) for path, _, number in lines} == ours


def test_a_report_adds_up(run: Run) -> None:
    found = run(WHOLE, "report", "-f", "call", "-s", "call")[2:]
    assert [line.split() for line in found] == [["5", "vfs_read"], ["1", "rw_verify_area"]]


def test_hostile_names_make_no_task_and_no_function(run: Run) -> None:
    found = run(hostile(), "report", "-f", "call", "-s", "call")[2:]
    assert sorted(line.split(maxsplit=1)[1] for line in found) == sorted(name.replace(" ", "_") for name in NASTY)
    assert len(run(hostile(), "report", "--task")[2:]) == len(NASTY)


@pytest.mark.parametrize("recording", [WHOLE, hostile(), Recording()])
def test_files_have_names_of_ours_alone(recording: Recording) -> None:
    names = uftrace.encode(recording).keys()
    assert all(re.fullmatch(r"info|task\.txt|kernel\.sym|sid-[0-9a-f]{16}\.map|\d+\.dat", name) for name in names)
    assert len(names) == 3 + 2 * len([track for track in tracks(recording) if track.calls])
