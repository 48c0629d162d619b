"""Keep from the terminal what GDB prints of a stop.

GDB prints the reason and the frame of a stop to its standard output, whatever `to_string` and Python's own redirection
say. So the file descriptor is another file meanwhile. A machine interface needs its records at once, and a screen of
the TUI cannot be written later: there nothing is kept.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from types import TracebackType

import gdb

from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.guest_text import lines

STDOUT = 1


class StopReport:
    """What GDB has printed to standard output within the `with` block."""

    def __init__(self) -> None:
        self._text = ""
        self._stdout: int | None = None

    def __enter__(self) -> StopReport:
        if machine_interface() or _has_screen():
            return self
        gdb.flush(gdb.STDOUT)
        self._file = tempfile.TemporaryFile("w+", errors="replace")
        self._stdout = os.dup(STDOUT)
        os.dup2(self._file.fileno(), STDOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stdout is None:
            return
        gdb.flush(gdb.STDOUT)
        ctypes.CDLL(None).fflush(None)
        os.dup2(self._stdout, STDOUT)
        os.close(self._stdout)
        self._file.seek(0)
        self._text = lines(self._file.read())
        self._file.close()

    def print(self) -> None:
        """Print what was kept."""
        gdb.write(self._text)


def _has_screen() -> bool:
    """Return whether the TUI is active."""
    try:
        return "not active" not in (gdb.execute("info win", to_string=True) or "")
    except gdb.error:
        return False
