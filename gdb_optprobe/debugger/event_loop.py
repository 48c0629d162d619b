"""Work for GDB's event loop, and an end without it.

GDB 13 crashes as it exits with an event that was never run: Python has gone by the time the event's destructor wants it
(gdbpy_event in python/python.c, in what run-on-main-thread.c leaves to the end of the process). Where one is
left, the process ends where Python does, with GDB's exit code: by then GDB has let go of its targets.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable

import gdb

_left: list[object] = []
"""One for each that was posted and has not begun."""
_codes: list[int] = []


def post(action: Callable[[], object]) -> None:
    """As gdb.post_event, which any thread may call."""
    mark = object()

    def act() -> None:
        _left.remove(mark)
        action()

    _left.append(mark)
    gdb.post_event(act)


def exit_safely() -> None:
    """Be told when GDB exits."""
    gdb.events.gdb_exiting.connect(lambda event: _codes.append(event.exit_code))
    atexit.register(_end)


def _end() -> None:
    if _left and _codes:
        ctypes.CDLL(None).fflush(None)
        os._exit(_codes[-1])
