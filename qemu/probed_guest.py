"""A guest with GDB attached, for tests that are written in Python.

    with probed_guest() as g:
        g("optprobe add vfs_read if count == 1 do hist(count) by $comm")
        g.run("dd if=/dev/zero of=/dev/null bs=1 count=1000")
        assert g.hits() >= 1000
        (probe, *maps) = g.json("optprobe report -json")
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .debugger import TIMEOUT, Debugger
from .guest import Guest, GuestError, Options

__all__ = ["Options", "ProbedGuest", "probed_guest"]


class ProbedGuest:
    """A guest and the GDB that debugs it. The guest is stopped but while `run` or a command of GDB lets it run."""

    def __init__(self, guest: Guest, gdb: Debugger) -> None:
        self.guest = guest
        self.gdb = gdb

    def __call__(self, line: str, timeout: float = TIMEOUT) -> str:
        """Run one line in GDB and return what it prints. Raises DebuggerError when the line fails."""
        return self.gdb(line, timeout)

    def json(self, line: str) -> list[Any]:
        """Run one line that has -json and return a value for each line that it prints."""
        path = self.guest.directory / "answer.json"
        # Notes and warnings go to standard error, past the pipe. A `|` in an expression is no pipe.
        self.gdb(f"pipe -d @@ {line} @@ cat >{shlex.quote(str(path))}")
        return [json.loads(each) for each in path.read_text().splitlines()]

    def hits(self, number: int | str = "$optprobe") -> int:
        """Return the hits of a probe, of the last one without a number."""
        return int(self.gdb(f"output $optprobe_hits({number})"))

    def run(self, command: str, timeout: float = 60.0) -> str:
        """Let the guest run until a command has ended in it, and return its output.

        Raises GuestError unless it exits with 0, ChannelError after `timeout` seconds.
        """
        return self.gdb.running(lambda: self.guest.check(command, timeout))


@contextmanager
def probed_guest(options: Options | None = None, *, timeout: float = 120.0) -> Iterator[ProbedGuest]:
    """Boot a guest, attach GDB, and end both with the block. An exception in the block gets the kernel log as a note.

    options: those of `optprobe guest start`; None for a stock Debian kernel. timeout: seconds for the boot.
    Raises GuestError where the kernel log reports trouble at the end.
    """
    with Guest.start(options or Options(), timeout=timeout) as guest:
        try:
            with Debugger(guest.gdb_socket) as gdb:
                yield ProbedGuest(guest, gdb)
        except BaseException as error:
            error.add_note(f"the guest's kernel log:\n{guest.log()[-4000:]}")
            raise
        if problems := guest.problems():
            raise GuestError("the guest is ill:\n" + "\n".join(problems))
