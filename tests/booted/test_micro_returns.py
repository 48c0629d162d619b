"""Return probes in the bare-metal guests: no register, flag or byte differs that a caller could rely on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from qemu import micro
from tests.booted.batch import MARK, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.micro_table import LAYOUTS, STATES
from tests.booted.test_micro_probes import GUESTS, ONE_ROUND, READY
from tests.booted.test_returns import total_of

COMMANDS = f"source {Path(__file__).with_name('probe_returns.py')}"
REFUSED = {
    "x86_64": {"ret_imm16": "returns on another stack than its caller's"},
    "ppc64le": {"beyond_any_branch": "no free memory for detours is within reach"},
    "aarch64": {"beyond_any_branch": "no free memory for detours is within reach"},
}
SHOW = {"literal_code": [3], "retaa": [30], "retab": [30], "signed_with_moved_sp": [3], "blraa_lr": [6]}
"""Functions that leave the code of their own entry, or their return address signed, and in which word."""
EVERY = 1 if FULL else 5
DEPTH = 1000
ARENA_SIZE = 1 << 16
NUMBER = {"x86_64": ("$rdi", "$rdx"), "ppc64le": ("$r3", "$r4"), "aarch64": ("$x0", "$x1")}
"""Of the factorial: where it has it when it is entered, and when it has returned."""


@pytest.mark.parametrize(("arch", "cpu"), GUESTS)
def test_every_function_leaves_the_same(boot: Boot, arch: str, cpu: str) -> None:
    """The runner relies on all registers, flags and the stack across each call, whatever an ABI says."""
    script = [*READY, COMMANDS, f"probe-returns {arch} {EVERY}", "optprobe check"]
    finished = batch(boot(arch=arch, micro=True, cpu=cpu), script, symbols=micro.build(arch))
    assert finished.status == 0, finished.output
    functions = finished.json("returns")
    assert all(why in functions[name][0] for name, why in REFUSED[arch].items() if name in functions)
    assert not {name: why for name, (why, *_) in functions.items() if why and name not in REFUSED[arch]}
    different = {name: words for name, (_, _, words, _) in functions.items() if words}
    assert different.items() <= SHOW.items()
    calls = {name: (counts, runs) for name, (why, counts, _, runs) in functions.items() if not why}
    assert not {name: one for name, one in calls.items() if one[0] != [STATES * one[1], 0, 0, 0]}
    assert sum(runs for _, runs in calls.values()) > 0.85 * len(calls) > 25, "some the CPU lacks"


@pytest.mark.parametrize("arch", NUMBER)
def test_calls_within_calls(boot: Boot, tmp_path: Path, arch: str) -> None:
    """A factorial of depth 1000 and a tail recursion: each level has its own data. A callee that leaves all alone."""
    layout, (now, then) = LAYOUTS[arch], NUMBER[arch]

    def dump(name: str) -> str:
        return f"dump binary memory {tmp_path}/{name} &results ((char*)&results)+{layout.size}"

    script = [
        *READY,
        f"set var *(long*)&depth = {DEPTH}",
        *ONE_ROUND,
        dump("before"),
        "python from tests.booted.probe_hazards import session_of_micro; session_of_micro()",
        f"optprobe add factorial -return -maxactive {DEPTH} entry do save n = {now} if $saved.n == {then} "
        "do sum($saved.n)",
        f"optprobe add countdown -return -maxactive {DEPTH} entry do save n = {now} do sum($saved.n)",
        "optprobe add quiet -return -maxactive 1",
        *ONE_ROUND,
        dump("after"),
        keep("list", "optprobe list"),
        f'python print("{MARK}arena"); print(t)',
        total_of(1),
        total_of(2),
        "optprobe check",
    ]
    finished = batch(boot(arch=arch, micro=True), script, symbols=micro.build(arch))
    assert finished.status == 0, finished.output
    before, after = (b"".join(layout.settled((tmp_path / name).read_bytes())) for name in ("before", "after"))
    start = finished.json("arena")
    differ = [new for old, new in zip(*map(_words, (before, after)), strict=True) if old != new]
    assert all(start <= word < start + ARENA_SIZE for word in differ), "but for return addresses on the stack"
    assert bool(differ) is (arch == "ppc64le"), "which the guest shows where functions keep them in their frames"
    probes = finished.json("list")
    assert {probe["tier"] for probe in probes} == {"optimized"}
    calls = STATES * DEPTH
    assert [probe["hits"] for probe in probes[:2]] == [calls, calls]
    assert [probe["calls"] for probe in probes[:2]] == 2 * [
        {"entries": calls, "returns": calls, "active": 0, "missed": 0, "dropped": 0, "out": []}
    ]
    assert [finished.json(f"sum {number}") for number in (1, 2)] == 2 * [STATES * DEPTH * (DEPTH + 1) // 2]
    assert probes[2]["hits"] == probes[2]["calls"]["entries"] >= STATES


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 8}Q", data)
