"""On a kernel without types every thread is found, at whatever instruction the guest is stopped, or it says why not."""

from __future__ import annotations

import json
import subprocess

import pytest

from qemu.guest import Guest
from qemu.kernels import stock_kernel
from qemu.machines import MACHINES
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.test_ppc64le import two_dd
from tests.booted.test_quiescence import every_thread, threads

STOPS = 200 if FULL else 40
# QEMU 7.2 tells SRR0 of the first vCPU alone, and likes to stop a vCPU at the first instruction of an interrupt.
UNTOLD = 0.01
SLEEPERS = 30
EACH_THREAD = 6
"""Reads of the guest's memory that a thread may take."""

VARIABLES = {
    "init_task": "init_task",
    "pacas": "paca_ptrs",
    "per_cpu_offset": "__per_cpu_offset",
    "runqueues": "runqueues",
    "online": "__cpu_online_mask",
    "online_count": "__num_online_cpus",
}
LAYOUT = """\
python
import dataclasses, json
from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.guest.linux.arch.ppc64le.derive import derive
current_session()
print("LAYOUT" + json.dumps(dataclasses.asdict(derive(attachments.current.linux.kernel))))
end""".splitlines()


@pytest.fixture(scope="module")
def names() -> dict[str, int]:
    """Data symbols of the packaged vmlinux, which the running kernel does not have."""
    machine = MACHINES["ppc64le"]
    image = stock_kernel(machine.package, machine.debian).image
    command = [f"{machine.binutils}nm", str(image)]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {fields[2]: int(fields[0], 16) for row in rows if len(fields := row.split()) == 3}


def test_the_code_tells_what_the_symbols_say(ppc_guest: Guest, names: dict[str, int]) -> None:
    finished = batch(ppc_guest, LAYOUT)
    assert finished.status == 0, finished.output
    (line,) = [line for line in finished.output.splitlines() if line.startswith("LAYOUT")]
    layout = json.loads(line.removeprefix("LAYOUT"))
    assert {name: layout[name] for name in VARIABLES} == {name: names[symbol] for name, symbol in VARIABLES.items()}
    assert set(layout["interrupt_stacks"]) == {names["hardirq_ctx"], names["softirq_ctx"]}
    assert layout["thread_size"] == names["__end_init_task"] - names["__start_init_task"]
    assert len(layout["emergency"]) == 3


def test_every_thread_at_every_stop(boot: Boot) -> None:
    guest = boot(arch="ppc64le")
    guest.check("sleep 5000 | cat & sleep 1")
    for _ in range(SLEEPERS):
        guest.check("sleep 1000 >/dev/null 2>&1 &")
    asleep = {"hrtimer_nanosleep": threads(guest, "$(pidof sleep)"), "pipe_read": threads(guest, "$(pidof cat)")}
    assert [len(each) for each in asleep.values()] == [SLEEPERS + 1, 1]
    every_thread(guest, asleep, STOPS, UNTOLD, "registers of vCPU", EACH_THREAD)


NEIGHBOURS = [f"*vfs_read+{offset}" for offset in range(8, 32, 4)]
ROUNDS = 4


def test_neighbours_count_alike_and_their_memory_is_used_again(ppc_guest: Guest) -> None:
    """Probes side by side come and go; whose detour is empty gives its memory to the next."""
    script: list[str | Workload] = []
    for number in range(ROUNDS):
        script += [f"optprobe add {place}" for place in NEIGHBOURS] + ["optprobe commit -timeout 60"]
        script += [two_dd(500), keep(f"list{number}", "optprobe list"), "optprobe check"]
        script += ["optprobe delete", "optprobe commit -timeout 60"]
    finished = batch(ppc_guest, script, timeout=400)
    assert finished.status == 0, finished.output
    for number in range(ROUNDS):
        probes = finished.json(f"list{number}")
        assert {probe["tier"] for probe in probes} == {"optimized"}, finished.output
        (hits,) = {probe["hits"] for probe in probes}
        assert hits >= 2 * 500
    lists = [finished.json(f"list{number}") for number in range(ROUNDS)]
    # What an earlier GDB had to leave is gone behind the first commit.
    detours = {tuple(probe["detour"]["address"] for probe in probes) for probes in lists[1:]}
    assert len(detours) == 1, "what was left is used again"
