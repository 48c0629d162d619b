"""Keep from the terminal what GDB prints of a stop.

GDB prints the reason and the frame of a stop to its standard output, whatever `to_string` and Python's own redirection
say. So the file descriptor is another file meanwhile. A machine interface needs its records at once, and a screen of
the TUI cannot be written later: there nothing is kept.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from types import TracebackType

import gdb

from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.guest_text import lines

STDOUT = 1
_OUR_STOP = re.compile(r"\n(?:Thread .*|Program) received signal SIGINT, Interrupt\.$", re.M)
_SWITCH = re.compile(r"^\[Switching to .*\]\n", re.M)


class StopReport:
    """What GDB has printed to standard output within the `with` block."""

    def __init__(self) -> None:
        self._text = ""
        self._stdout: int | None = None

    def __enter__(self) -> StopReport:
        if machine_interface() or is_tui_active():
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

    def print(self, ours: bool = False) -> None:
        """Print what was kept. ours: the stop was; then without its report, which is the last."""
        text = self._text
        if ours:
            starts = [found.start() for found in _OUR_STOP.finditer(text)]
            text = _SWITCH.sub("", text[: starts[-1]] if starts else text)
        gdb.write(text)


def is_tui_active() -> bool:
    """Return whether the TUI is active."""
    try:
        return "not active" not in (gdb.execute("info win", to_string=True) or "")
    except gdb.error:
        return False
