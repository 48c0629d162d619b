"""Sourced into GDB by tests: `guest-gone` takes all probes out, and fails unless memory for detours is as it was."""

from __future__ import annotations

import time

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.debugger.running import run_for
from gdb_optprobe.probes.linux_arena import LinuxArena

SLICE, LONGEST = 0.05, 5.0
"""Seconds: calls of programs may have to return first."""


class GuestGone(gdb.Command):
    """guest-gone"""

    def __init__(self) -> None:
        super().__init__("guest-gone", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session = current_session()
        assert attachments.current is not None and attachments.current.linux is not None
        linux, end = attachments.current.linux, time.monotonic() + LONGEST
        source = session.target.arena_source
        assert isinstance(source, LinuxArena)
        room = source.room or linux.arch.room(linux.machine, linux.kernel)
        session.delete()
        session.commit(10)
        while not session.optimizer.release_arena():
            if time.monotonic() > end:
                raise gdb.GdbError("somebody is inside for ever")
            run_for(SLICE)
            linux.forget()
            session.uprobes.tidy()
        for start, end in (*room.code, room.journal):
            if left := linux.memory.read(start, end - start).strip(bytes([room.fill])):
                raise gdb.GdbError(f"left between {start:#x} and {end:#x}: {len(left)} bytes, {left[:64].hex()}…")


GuestGone()
