"""Who has come to where code at traps of programs stops is stopped there, in the kernel, and goes on from there.

    frame 0   in our code   ─►   frame 1   a gate   ─►   frame 2   the program, which is selected
Nothing of the vCPU is changed: whatever becomes of GDB, the hit goes on as one that does not stop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gdb

from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.debugger.stop_breakpoints import StopBreakpoints, StopPad
from gdb_optprobe.guest.cache import default_cache
from gdb_optprobe.guest.symbolfile import quoted
from gdb_optprobe.guest.trap_frames import GATES, SavedRegisters, trap_frames
from gdb_optprobe.host_files import until_exit
from gdb_optprobe.interrupts import held, unbroken
from gdb_optprobe.probes.stops import ProgramArrival, ProgramLanding


class ProgramPad(StopPad):
    """The breakpoint there. arrived: called when the selected thread is to be shown there."""

    def __init__(
        self, landing: ProgramLanding, breakpoints: StopBreakpoints, arrived: Callable[[ProgramArrival], None]
    ) -> None:
        super().__init__(f"*{landing.pad:#x}", internal=True)
        self.enabled = False
        self.silent = not machine_interface()
        self.stepped = 0
        self.moved = 0
        self._landing = landing
        self._breakpoints = breakpoints
        self._arrived = arrived
        self._seen: dict[int, int] = {}

    def stop(self) -> bool:
        return unbroken(self._arrive)()

    @held()
    def _arrive(self) -> bool:
        thread = gdb.selected_thread()
        assert thread is not None
        # QEMU may report it again before it has moved.
        ticket = self._landing.ticket()
        if self._seen.get(thread.num) == ticket:
            return False
        self._seen[thread.num] = ticket
        self._breakpoints.count_arrival()
        arrival = self._landing.comes()
        if arrival is None:
            return False
        self.moved += 1
        self._arrived(arrival)
        return True

    def is_shown(self) -> bool:
        return self._breakpoints.machine.shown.any_thread()

    def remove(self) -> None:
        self._breakpoints.drop(self, [])


class ProgramFrames:
    """Has GDB know what is beyond gates. A `symbol-file` of the user's drops what was loaded."""

    def __init__(self) -> None:
        self._files: dict[bytes, str] = {}

    def provide(self, saved: SavedRegisters) -> None:
        content = trap_frames(saved)
        if content not in self._files:
            self._files[content] = str(_written(content).resolve())
        self.again()

    def again(self) -> bool:
        """Load what is not loaded now; whether anything was."""
        loaded = {each.filename for each in gdb.objfiles()}
        missing = [path for path in self._files.values() if path not in loaded]
        for path in missing:
            gdb.execute(f"add-symbol-file {quoted(str(path))} -s .text {GATES:#x}", to_string=True)
        return bool(missing)


def _written(content: bytes) -> Path:
    return default_cache().store_file(content) or until_exit(content, ".elf")
