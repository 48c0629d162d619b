"""Which frame the user is shown of a vCPU that was stopped in code at a trap: that of the program, two further out.

GDB selects the innermost one whenever it comes back to a thread, or reads its registers anew.
"""

from __future__ import annotations

import gdb

from gdb_optprobe.guest.trap_frames import is_gate


class Shown:
    """Who stands where code at traps stops, by the numbers of threads, since the guest has run last."""

    def __init__(self) -> None:
        self._stopped: dict[int, int] = {}

    def begin(self, pad: int) -> None:
        """The selected thread stands at `pad`."""
        self._stopped[_number()] = pad

    def end(self) -> None:
        """The guest is about to run."""
        self._stopped.clear()

    def any_thread(self) -> bool:
        return bool(self._stopped)

    def is_selected(self) -> bool:
        """Whether the selected thread is one."""
        return _number() in self._stopped

    def select(self) -> bool:
        """Of the selected thread, if it is one; whether its program's frame is seen, and selected now."""
        pad = self._stopped.get(_number())
        frame = gdb.newest_frame() if pad is not None else None
        if frame is None or frame.pc() != pad:
            return False
        gate = frame.older()
        # A frame of a signal's: GDB has the file that says what is beyond it.
        if gate is None or not is_gate(int(gate.pc())) or gate.type() != gdb.SIGTRAMP_FRAME:
            return False
        program = gate.older()
        if program is None:
            return False
        program.select()
        return True


def _number() -> int:
    thread = gdb.selected_thread()
    return thread.num if thread is not None else 0
