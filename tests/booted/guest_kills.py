"""Sourced into GDB by tests: `guest-kills FILE SEED [PROGRAM]` adds, runs and deletes probes until GDB is killed.

They are of every tier, or with PROGRAM, which is one of calls.py, on that.

FILE gets a line of JSON when all is ready to be killed, and then one for each thing that GDB is about to do.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Sequence
from typing import TextIO

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.probes.probe import Probe

# What the workload calls all the time.
STAYS = "optprobe add vfs_read"
LINES = (
    "optprobe add vfs_write -name a -tier breakpoint",
    "optprobe add vfs_write+{0} -name b -tier emulated",
    "optprobe add ksys_read -name c -tier boosted",
    "optprobe add ksys_write+{0} -name d do count by $comm",
    "optprobe add vfs_read+{1} -name e",
    "optprobe break ksys_write -name f",
    "optprobe add rw_verify_area -name g",
    "optprobe add fput -return -name h",
)
# Registers are pushed there, which takes several writes to emulate; and another instruction. By how instructions align.
PLACES = {1: (5, 7), 4: (28, 44)}
OF_PROGRAM = (
    "optprobe add -user {}:test -name a",
    "optprobe add -user {}:test+4 -name b do count by $pid",
    "optprobe add -user {}:inner -name c -return do latency",
    "optprobe add -user {}:test -name d -return",
    "optprobe add -user {}:call_test -name e if $rdi > 5 do hist($rdi)",
    "optprobe add vfs_write -name f -tier trapped",
)
RUN, COMMIT, PROMPT = "optprobe run -for 0.15", "optprobe commit -timeout 0.3", "at the prompt"


class GuestKills(gdb.Command):
    """Never ends."""

    def __init__(self) -> None:
        super().__init__("guest-kills", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        name, seed, *program = argument.split()
        guest = current_session().target.guest
        places = PLACES[guest.isa.alignment]
        lines = [line.format(*(program or places)) for line in (OF_PROGRAM if program else LINES)]
        chance = random.Random(int(seed))
        gdb.execute(STAYS, to_string=True)
        (stays,) = probes()
        assert stays.counter is not None and attachments.guard.process is not None
        linux = attachments.current.linux if attachments.current is not None else None
        assert linux is not None and isinstance(linux.kernel.memory, KernelMemory)
        # A vCPU that runs a program may have no page tables for the kernel.
        counter = linux.kernel.memory.physical(stays.counter.address)
        with open(name, "w", buffering=1) as file:
            tell(file, {"counter": counter, "guardian": attachments.guard.process.pid})
            while True:
                step(lines, chance, file)


def probes() -> list[Probe]:
    return current_session().registry.probes()


def step(lines: Sequence[str], chance: random.Random, file: TextIO) -> None:
    there = {probe.spec.name for probe in probes()}
    missing = [line for line in lines if not there & {*line.split()}]
    deletes = [f"optprobe delete {probe.number}" for probe in probes()[1:]]
    (kind,) = chance.choices((missing, deletes, [RUN], [COMMIT], [PROMPT]), (5, 2, 4, 1, 1))
    line = chance.choice(kind or [RUN])
    tell(file, line)
    if line == PROMPT:
        time.sleep(0.05)
        return
    # To commit may take longer than that.
    with contextlib.suppress(gdb.error):
        gdb.execute(line, to_string=True)


def tell(file: TextIO, what: object) -> None:
    file.write(json.dumps(what) + "\n")


GuestKills()
