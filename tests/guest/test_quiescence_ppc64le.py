"""Where a kernel without types keeps its threads and stacks is what its own vmlinux says."""

from __future__ import annotations

import json
import subprocess

import pytest

from qemu.guest import Guest
from qemu.kernels import stock_kernel
from qemu.machines import MACHINES
from tests.guest.batch import batch

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
from gdb_optprobe.guest.linux.ppc64le.derive import derive
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
