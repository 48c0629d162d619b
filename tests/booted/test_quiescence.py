"""A guest is stopped anywhere under load, and every thread is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import batch
from tests.booted.conftest import FULL, Boot

STOPS = 200 if FULL else 20
FAILING = 0.01
# Where threads are preempted, one that ends can hide while a CPU moves threads; under nothing but forks and exits 4 %
# of stops could not rule it out. A patch waits for the next stop then.
FAILING_PREEMPTED = 0.08
EACH_THREAD = 6
"""Reads of the guest's memory that a thread may take."""

GUESTS: list[Mapping[str, str]] = [{}]
GUESTS += [{"append": "preempt=full"}, {"cpu": "Nehalem"}, {"append": "nr_cpus=4 maxcpus=1"}] if FULL else []

SLEEPERS = 30
IDLE = 0
STORM = (
    "(while :; do (exit 0) & /bin/true; wait; done) & (while :; do ping -c 3 127.0.0.1; done) & "
    "while :; do dd if=/dev/zero of=/tmp/x bs=4k count=50; done &"
)
# Two threads of one process, both in pause(): clone(VM | FS | FILES | SIGHAND | THREAD) with a stack of its own.
TWO_THREADS = bytes.fromhex(
    "bf000f0100"  # mov edi, 0x10f00
    "488db42400f0ffff"  # lea rsi, [rsp - 4096]
    "b838000000 0f05"  # clone
    "b822000000 0f05"  # pause
    "ebf7"
)


def program(code: bytes) -> bytes:
    """The smallest static executable that runs `code`."""
    base, headers = 0x400000, 64 + 56
    size = headers + len(code)
    header = pack("<HHIQQQIHHHHHH", 2, 62, 1, base + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return b"\x7fELF\2\1\1" + bytes(9) + header + pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096) + code


def sleepers(guest: Guest) -> dict[str, set[int]]:
    """Start them; the threads that sleep in each function of the kernel."""
    octal = "".join(f"\\{byte:03o}" for byte in program(TWO_THREADS))
    guest.check(f"printf '{octal}' > /bin/two; chmod +x /bin/two; two & sleep 5000 | cat & sleep 1")
    for _ in range(SLEEPERS):
        guest.check("sleep 1000 >/dev/null 2>&1 &")

    pipe = guest.check(r"grep -m 1 -oE '\b(anon_)?pipe_read$' /proc/kallsyms").strip()
    names = {"hrtimer_nanosleep": "sleep", pipe: "cat", "__x64_sys_pause": "two"}
    found = {function: threads(guest, f"$(pidof {name})") for function, name in names.items()}
    assert [len(each) for each in found.values()] == [SLEEPERS + 1, 1, 2]
    return found


def threads(guest: Guest, processes: str = "$(cd /proc; echo [0-9]*)") -> set[int]:
    """What the guest itself knows of; a process may end meanwhile."""
    return set(map(int, guest.check(f"for p in {processes}; do ls /proc/$p/task 2>/dev/null; done; true").split()))


@pytest.mark.parametrize("options", GUESTS, ids=str)
def test_every_thread_at_every_stop(boot: Boot, options: Mapping[str, str]) -> None:
    guest = boot(**options)
    failing = FAILING_PREEMPTED if "preempt=full" in options.values() else FAILING
    every_thread(guest, sleepers(guest), STOPS, failing, "just ending", EACH_THREAD)


def every_thread(
    guest: Guest, asleep: Mapping[str, set[int]], count: int, failing: float, why: str, each_thread: int
) -> None:
    """At `count` stops under a storm of forks, `asleep` (by the function they are in) and all others are found.

    failing:     the share of stops that may fail, with `why` in the words.
    each_thread: reads of the guest's memory that a thread may take.
    """
    before = threads(guest)
    guest.check(f"exec >/dev/null 2>&1; {STORM}")
    result = stops(guest, f"guest-stops {count} {' '.join(asleep)}")
    assert len(result["failures"]) <= failing * count, result["failures"]
    assert all(why in failure for failure in result["failures"]), result["failures"]
    found = set(result["threads"])
    lasting = before & threads(guest)
    assert set.union(*asleep.values()) <= lasting <= found
    assert IDLE in found
    for function, sleeping in asleep.items():
        assert sleeping <= set(result["inside"][function]), function
    median = result["reads"][len(result["reads"]) // 2]
    print(f"{len(found)} threads: {median} reads; {len(result['failures'])} of {count} stops failed")
    assert median <= each_thread * max(100, len(found))
    assert guest.problems() == []


def stops(guest: Guest, command: str) -> dict[str, Any]:
    finished = batch(guest, [f"source {Path(__file__).with_name('guest_stops.py')}", command])
    assert finished.status == 0, finished.output
    (line,) = [line for line in finished.output.splitlines() if line.startswith('{"failures"')]
    return dict(json.loads(line))
