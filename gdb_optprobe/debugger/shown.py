"""Which frame the user is shown of a vCPU that was stopped in code at a trap: that of the program, two further out.

GDB selects the innermost one whenever it comes back to a thread, or reads its registers anew.
"""

from __future__ import annotations

import gdb

FURTHER_OUT = 2
_stopped: dict[int, int] = {}


def begin(pad: int) -> None:
    """The selected thread stands at `pad`."""
    _stopped[_number()] = pad


def end() -> None:
    """The guest is about to run."""
    _stopped.clear()


def any_thread() -> bool:
    return bool(_stopped)


def select() -> None:
    """Of the selected thread, if it is one."""
    pad = _stopped.get(_number())
    frame: gdb.Frame | None = gdb.newest_frame() if pad is not None else None
    if frame is None or frame.pc() != pad:
        return
    for _ in range(FURTHER_OUT):
        frame = frame.older() if frame is not None else None
    if frame is not None:
        frame.select()


def _number() -> int:
    thread = gdb.selected_thread()
    return thread.num if thread is not None else 0
