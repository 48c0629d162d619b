"""Sourced into GDB by tests: `guest-gone` takes all probes out, and fails unless memory for detours is as it was."""

from __future__ import annotations

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session


class GuestGone(gdb.Command):
    """guest-gone"""

    def __init__(self) -> None:
        super().__init__("guest-gone", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session = current_session()
        session.delete()
        session.commit(10)
        if not session.optimizer.give_back_arena():
            raise gdb.GdbError("somebody is inside for ever")
        assert attachments.current is not None and attachments.current.linux is not None
        linux = attachments.current.linux
        for place in linux.port.places(linux.machine, linux.kernel):
            for start, end in (place.code, place.journal):
                if left := linux.memory.read(start, end - start).strip(bytes([place.fill])):
                    raise gdb.GdbError(f"left between {start:#x} and {end:#x}: {len(left)} bytes, {left[:64].hex()}…")


GuestGone()
