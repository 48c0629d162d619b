"""Return probes: every call is seen to return, with its value, beside the guest's own kretprobe events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from qemu.guest import Guest
from tests.guest.batch import Finished, Workload, batch, keep
from tests.guest.conftest import FULL
from tests.guest.test_exact import TRACING, quiet

READS = 12_500 if FULL else 1500
PROCESSES = 8
FUNCTIONS = ("__x64_sys_read", "ksys_read", "vfs_read")
_ROW = re.compile(r"hitcount:\s*(\d+)\s+ret:\s*(\d+)")


@pytest.fixture
def traced(linux: Guest) -> Iterator[Guest]:
    """The session's guest; what a test switched on in its tracer is off afterwards."""
    yield linux
    quiet(linux)


def many_dd(count: int, processes: int = PROCESSES) -> Workload:
    one = f"dd if=/dev/zero of=/dev/null bs=7 count={count} 2>/dev/null"
    return Workload(f"for n in $(seq {processes}); do {one} & done; wait")


def theirs(*functions: str) -> Workload:
    """The guest's own kretprobe events, with what they return summed up, of dd alone."""
    lines = [f"cd {TRACING}"]
    for number, function in enumerate(functions):
        lines += [
            f"echo 'r:r{number} {function} ret=$retval' >> kprobe_events",
            f"echo 'hist:keys=common_pid:vals=ret if comm == \"dd\"' > events/kprobes/r{number}/trigger",
            f"echo 1 > events/kprobes/r{number}/enable",
        ]
    return Workload("; ".join(lines))


def read_theirs(number: int) -> Workload:
    return Workload(f"cat {TRACING}/events/kprobes/r{number}/hist")


def summed(text: str) -> tuple[int, int]:
    """Returns and the sum of their values, from the text of a hist trigger."""
    rows = [(int(hits), int(total)) for hits, total in _ROW.findall(text)]
    return sum(hits for hits, _ in rows), sum(total for _, total in rows) % (1 << 64)


def ours(finished: Finished, number: int) -> tuple[int, int]:
    (probe,) = [each for each in finished.json("list") if each["number"] == number]
    assert (probe["missed"], probe["dropped"]) == (0, 0)
    return probe["hits"], finished.json(f"sum {number}")


def total_of(number: int) -> str:
    """A line that prints what `sum` of probe `number` has, for `Finished.json`."""
    return (
        "python from gdb_optprobe.debugger.attach import current_session; "
        f"print('@@sum {number}'); "
        f"print(current_session().reports([{number}])[0].objects[0].rows[0].words[0])"
    )


def test_eight_processes_and_tail_calls(traced: Guest) -> None:
    """`__x64_sys_read` ends in a jump to `ksys_read`, which calls `vfs_read`: all exact, the guest's own beside."""
    script: list[str | Workload] = [theirs(*FUNCTIONS)]
    script += [f'optprobe add {function} -return if $comm == "dd" do count, sum($retval)' for function in FUNCTIONS]
    script += ["optprobe commit", many_dd(READS)]
    script += [keep("list", "optprobe list"), *(total_of(number) for number in (1, 2, 3))]
    script += [read_theirs(number) for number in range(3)]
    script += ["optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(traced, script)
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output
    probes: list[dict[str, Any]] = finished.json("list")
    assert {probe["tier"] for probe in probes} == {"optimized"}, finished.output
    for number, text in enumerate(finished.workloads[-3:], 1):
        assert ours(finished, number) == summed(text)
        assert ours(finished, number)[0] >= PROCESSES * READS
