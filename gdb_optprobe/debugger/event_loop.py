"""Post work to GDB's event loop, and end the process safely where work is left.

GDB 13 crashes when it exits with an event that was never run: Python has ended before the event's destructor needs it
(gdbpy_event in python/python.c, destroyed by run-on-main-thread.c at the end of the process). Where an event is left,
the process ends together with Python, with GDB's exit code: GDB has disconnected from its targets by then.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable

import gdb

_left: list[object] = []
"""A mark for each event that was posted and has not begun."""
_codes: list[int] = []


def post(action: Callable[[], object]) -> None:
    """Post `action` as gdb.post_event does, which any thread may call."""
    mark = object()

    def act() -> None:
        _left.remove(mark)
        action()

    _left.append(mark)
    gdb.post_event(act)


def exit_safely() -> None:
    """Have the process end safely when GDB exits. Call it once."""
    gdb.events.gdb_exiting.connect(lambda event: _codes.append(event.exit_code))
    atexit.register(_end)


def _end() -> None:
    if _left and _codes:
        ctypes.CDLL(None).fflush(None)
        os._exit(_codes[-1])
