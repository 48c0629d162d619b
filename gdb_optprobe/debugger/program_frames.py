"""Frames of a user program at a hit that stopped the guest in trap code, in the kernel.

    frame 0   our code   ─►   frame 1   a gate   ─►   frame 2   the program, which is selected for the user

GDB needs call frame information to unwind from our code to the program: an object file with nothing else (`load`).
GDB selects frame 0 whenever it switches to a thread or reads its registers again; `select` selects frame 2 then.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import gdb

from gdb_optprobe.guest.cache import default_cache
from gdb_optprobe.guest.symbolfile import quoted
from gdb_optprobe.guest.trap_frames import SavedRegisters, trap_frames
from gdb_optprobe.host_files import until_exit


class StoppedPrograms:
    """The threads that are stopped in trap code since the guest has last run, by GDB's number of the thread."""

    def __init__(self) -> None:
        self._pads: dict[int, int] = {}

    def add(self, pad: int) -> None:
        """Add the selected thread, which is stopped at `pad`."""
        self._pads[_number()] = pad

    def clear(self) -> None:
        """Forget all threads: the guest is about to run."""
        self._pads.clear()

    def is_any(self) -> bool:
        """Return whether there is such a thread."""
        return bool(self._pads)

    def is_selected(self) -> bool:
        """Return whether the selected thread is one of them."""
        return _number() in self._pads

    def select(self) -> bool:
        """Select the program's frame, if the selected thread is one of these. Return whether GDB found the frame."""
        pad = self._pads.get(_number())
        frame = gdb.newest_frame() if pad is not None else None
        if frame is None or frame.pc() != pad:
            return False
        gate = frame.older()
        # GDB shows a gate as a signal frame only while the file with our call frame information is loaded.
        if gate is None or gate.type() != gdb.SIGTRAMP_FRAME:
            return False
        program = gate.older()
        if program is None:
            return False
        program.select()
        return True


class ProgramFrames:
    """The object files that let GDB unwind through gates. A `symbol-file` of the user's unloads them."""

    def __init__(self) -> None:
        self._files: dict[bytes, tuple[str, int]] = {}

    def load(self, saved: SavedRegisters, gates: int) -> None:
        """Load the file for code that saves registers as `saved` says. gates: where its gates are."""
        content = trap_frames(saved)
        path, start = self._files.get(content) or (str(_written(content).resolve()), gates)
        if start != gates and path in _loaded():
            # The guest has booted anew.
            gdb.execute(f"remove-symbol-file -a {start:#x}", to_string=True)
        self._files[content] = path, gates
        self.reload()

    def reload(self) -> bool:
        """Load the files that are not loaded now. Return whether there were any."""
        loaded = _loaded()
        missing = [(path, start) for path, start in self._files.values() if path not in loaded]
        for path, start in missing:
            gdb.execute(f"add-symbol-file {quoted(path)} -s .text {start:#x}", to_string=True)
        return bool(missing)


def _loaded() -> Collection[str | None]:
    return {each.filename for each in gdb.objfiles()}


def _written(content: bytes) -> Path:
    return default_cache().store_file(content) or until_exit(content, ".elf")


def _number() -> int:
    thread = gdb.selected_thread()
    return thread.num if thread is not None else 0
