"""Sourced into GDB by tests: `dies-at METHOD N` has GDB killed before the N-th write of METHOD, which calls the guest.

With `dies-at METHOD N during` it is killed in the middle of the N-th run of the guest there. `writes-so-far` prints how
many writes and runs there were.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import gdb

from gdb_optprobe.debugger.machine import GdbMachine
from gdb_optprobe.probes.lent_pages import LentPages
from gdb_optprobe.probes.tracepoint_handlers import TracepointHandlers

WRITES = ("write", "write_virtual", "write_physical", "write_registers")
counted = {"writes": 0, "runs": 0, "inside": 0}
dies = {"writes": 0, "runs": 0}
AT = "0.03"


def is_counted(kind: str) -> bool:
    if not counted["inside"]:
        return False
    counted[kind] += 1
    return counted[kind] == dies[kind]


def wrap(name: str) -> None:
    original: Callable[..., Any] = getattr(GdbMachine, name)

    def write(self: GdbMachine, *args: Any) -> Any:
        # One of these methods may call another.
        inside, counted["inside"] = counted["inside"], counted["inside"]
        if is_counted("writes"):
            os.kill(os.getpid(), signal.SIGKILL)
        counted["inside"] = 0
        try:
            return original(self, *args)
        finally:
            counted["inside"] = inside

    setattr(GdbMachine, name, write)


def run_until(self: GdbMachine, *args: Any) -> Any:
    if is_counted("runs"):
        subprocess.Popen(["/bin/sh", "-c", f"sleep {AT}; kill -9 {os.getpid()}"], start_new_session=True)
        while True:
            RUN(self, *args)
    return RUN(self, *args)


def within(owner: type, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def method(self: object, *args: Any) -> Any:
        counted["inside"] = watched == [name]
        try:
            return original(self, *args)
        finally:
            counted["inside"] = 0

    setattr(owner, name, method)


class DiesAt(gdb.Command):
    def __init__(self) -> None:
        super().__init__("dies-at", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        name, number, *during = argument.split()
        watched[:] = [name]
        dies["runs" if during else "writes"] = int(number)


class WritesSoFar(gdb.Command):
    def __init__(self) -> None:
        super().__init__("writes-so-far", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        print(f"{counted['writes']} writes, {counted['runs']} runs")


watched: list[str] = []
RUN = GdbMachine.run_until
GdbMachine.run_until = run_until  # type: ignore[method-assign]
for each in WRITES:
    wrap(each)
for each in ("lend", "give_back"):
    within(LentPages, each)
for each in ("register", "release_unused"):
    within(TracepointHandlers, each)
DiesAt()
WritesSoFar()
