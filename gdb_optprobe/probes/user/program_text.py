"""Our patches of programs: in every process that runs the file, in no other process's memory, not in the file.

    arm ──► every space that runs it: a page of its own already: written while the guest is stopped
                                      else: the guest copies the page and writes (guest/linux/user/writer.py)
    fork    copies the page, with our bytes
    mmap    exec's and a loader's: code in the guest writes it before any thread can run there (mmap_hook.py)
    disarm  every space again, half-made children too: written back while the guest is stopped

Bytes are armed in the order they are given, each once all before it are in that space: what leads to others comes last.
The file's inode is held, as kernel uprobes do, so that no other file can come to its address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.mm import LATER, AddressSpace, Busy
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user.writer import Write, Writer
from gdb_optprobe.maps.mmap_patches import MmapPatch
from gdb_optprobe.probes.user.mapped_text import MappedText, TextChange

SHOWN = "the guest would have to run for this, and a program is shown where it stopped"
CONTINUE = "continue, interrupt the guest (Ctrl-C), then give the command again"
TIMEOUT = 20.0
ROUNDS = 8
PAUSE = 0.05


class MmapPatcher(Protocol):
    """Writes into new mappings. busy: a thread may be about to. failed: how many mappings did not get all."""

    def set_patches(self, rows: Sequence[MmapPatch]) -> None:
        """Have these written from now on, in this order, and no others. Raises OptprobeError."""

    @property
    def is_busy(self) -> bool: ...

    @property
    def failed(self) -> int: ...


@dataclass(slots=True)
class _Installed:
    program: Program
    changes: dict[int, TextChange] = field(default_factory=dict)

    @property
    def rows(self) -> Sequence[MmapPatch]:
        offset, inode = self.program.offset, self.program.inode
        return [MmapPatch(inode, offset(change.address), change.new, change.old) for change in self.changes.values()]


@dataclass
class ProgramText:
    """What is armed in one guest.

    run: lets the guest run for so many seconds. writer, mmap_patcher: given before anything is installed.
    shows_program: whether a program is stopped for the user: it would continue unseen if the guest ran.
    """

    programs: Programs
    run: Callable[[float], object]
    shows_program: Callable[[], bool] = lambda: False
    writer: Writer | None = None
    mmap_patcher: MmapPatcher | None = None
    _installed: dict[int, _Installed] = field(default_factory=dict)

    def program(self, path: str, host: Path | None) -> Program:
        """See program.find."""
        return self.programs.find(path, host)

    def install(self, program: Program, texts: Mapping[int, bytes], first: bool = False) -> None:
        """Put bytes at addresses of the file wherever it runs now, and will. first: where it will, before all others.

        The guest runs for it where it has to. Raises OptprobeError: then nothing of it is left.
        """
        self.check_install(program, texts)
        changes = [TextChange(at, program.text(at, len(new)), new) for at, new in texts.items()]
        armed = self._installed.get(program.inode)
        if armed is None:
            self.programs.hold(program.file, 1)
            armed = self._installed[program.inode] = _Installed(program)
        new = {change.address: change for change in changes}
        armed.changes = new | armed.changes | new if first else armed.changes | new
        try:
            self._update_mmap_hook()
            self._settle(program, changes)
        except OptprobeError:
            self.remove(program, list(texts))
            raise

    def check_install(self, program: Program, texts: Mapping[int, bytes]) -> None:
        """Raise OptprobeError where the guest would have to run to arm these, but is stopped for the user."""
        if self.shows_program():
            self._check(program, [TextChange(at, program.text(at, len(new)), new) for at, new in texts.items()])

    def check_remove(self, program: Program, addresses: Collection[int]) -> None:
        """Raise OptprobeError where the guest would have to run to restore the file's bytes, but is stopped for the
        user.
        """
        armed = self._installed.get(program.inode)
        if armed is not None and self.shows_program():
            if self._is_mapping:
                raise OptprobeError(SHOWN, CONTINUE)
            gone = [change for at, change in armed.changes.items() if at in addresses]
            self._check(program, [TextChange(change.address, change.new, change.old) for change in gone])

    def _check(self, program: Program, changes: Sequence[TextChange]) -> None:
        spaces = [self._mapped(program, space) for space in self.spaces(program.file)]
        if any(space.needs_guest(change) for space in spaces for change in changes):
            raise OptprobeError(SHOWN, CONTINUE)

    def is_installed(self, program: Program, address: int) -> bool:
        """Return whether bytes are armed there."""
        armed = self._installed.get(program.inode)
        return armed is not None and address in armed.changes

    def exchange(self, program: Program, address: int, data: bytes) -> None:
        """Other bytes, as many, in the place of those that are armed there. Raises OptprobeError."""
        changes = self._installed[program.inode].changes
        before = changes[address]
        changes[address] = TextChange(address, before.old, data)
        self._update_mmap_hook()
        self.revert(program, [TextChange(address, data, before.new)])
        self._settle(program, [changes[address]])

    def remove(self, program: Program, addresses: Collection[int]) -> None:
        """Put the file's bytes back wherever it runs, last first. Raises OptprobeError where some could not be."""
        armed = self._installed.get(program.inode)
        if armed is None:
            return
        gone = [change for at, change in armed.changes.items() if at in addresses]
        armed.changes = {at: change for at, change in armed.changes.items() if at not in addresses}
        try:
            self._update_mmap_hook()
            self.revert(program, gone)
        finally:
            if not armed.changes:
                del self._installed[program.inode]
                self.programs.hold(program.file, -1)
            self._update_mmap_hook()

    def retain(self, program: Program, addresses: Collection[int]) -> None:
        """Write these into no further mapping; mappings that have them keep them."""
        armed = self._installed.get(program.inode)
        if armed is None:
            return
        armed.changes = {at: change for at, change in armed.changes.items() if at not in addresses}
        if not armed.changes:
            del self._installed[program.inode]
            self.programs.hold(program.file, -1)
        self._update_mmap_hook()

    def revert(self, program: Program, changes: Sequence[TextChange]) -> None:
        """Restore `old` wherever a space that maps the program has `new`. Raises OptprobeError."""
        back = [TextChange(change.address, change.new, change.old) for change in reversed(changes)]
        self._recall_writes(program, back)
        for _ in range(ROUNDS):
            left = [write for space in self.spaces(program.file) for write in self._mapped(program, space).revert(back)]
            if not left:
                return
            self._write(left, TIMEOUT)
        raise OptprobeError(f"{len({w.mm for w in left})} processes may keep what was written into {program.path}")

    def _recall_writes(self, program: Program, back: Sequence[TextChange]) -> None:
        """Change pending writes to the file's bytes, and wait for the threads that write. Raises OptprobeError."""
        if self.writer is None:
            return
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            changes = {
                (space.mm, at): (old, new)
                for space in self.spaces(program.file)
                for change in back
                for at, old, new in self._mapped(program, space).pieces(change)
            }
            if not self.writer.recall(changes) and not self._is_mapping:
                return
            self._pause()
        raise OptprobeError(f"a thread has been writing into {program.path} for {TIMEOUT:g} s", LATER)

    @property
    def _is_mapping(self) -> bool:
        """Return whether a thread has mapped a file and may not have written our patches yet."""
        return self.mmap_patcher is not None and self.mmap_patcher.is_busy

    def problems(self) -> Sequence[str]:
        """Return where a process does not have what is armed, in words."""
        if self._is_mapping:
            return ()
        found = []
        if self.mmap_patcher is not None and self.mmap_patcher.failed:
            what = "did not get what belongs there: no memory, or the file has something else by now"
            found.append(f"{self.mmap_patcher.failed} new mappings {what}")
        for armed in self._installed.values():
            program, changes = armed.program, tuple(armed.changes.values())
            for space in self.spaces(program.file):
                lost = next(filter(self._mapped(program, space).is_lost, changes), None)
                if lost is not None:
                    found.append(f"{space} does not have what was written at {program.spell(lost.address)}")
        return found

    def abandon(self) -> None:
        """Forget everything: the guest is gone."""
        self._installed.clear()
        self.mmap_patcher = None
        self._update_mmap_hook()

    # spaces there are ------------------------------------------------------------------------------------------------

    def _settle(self, program: Program, changes: Sequence[TextChange]) -> None:
        """Until no space lacks anything: while the guest runs, others may come. Raises OptprobeError."""
        tried: dict[tuple[int, int], int] = {}
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            spaces = self.spaces(program.file)
            wanted = [write for space in spaces for write in self._mapped(program, space).write(changes)]
            if not wanted:
                return
            for write in wanted:
                key = write.mm, write.address
                tried[key] = tried.get(key, 0) + 1
                if tried[key] > ROUNDS:
                    raise OptprobeError(f"the guest does not let {program.path} be written at {write.address:#x}")
            self._write(wanted, max(deadline - time.monotonic(), 1.0))
        raise OptprobeError(f"processes that run {program.path} come faster than they can be written into")

    def spaces(self, file: File) -> tuple[AddressSpace, ...]:
        """Return the mappings; the guest runs a little where they cannot be read just now. Raises OptprobeError."""
        for _ in range(ROUNDS):
            try:
                return self.programs.mapping(file)
            except Busy:
                self._pause()
        return self.programs.mapping(file)

    def _mapped(self, program: Program, space: AddressSpace) -> MappedText:
        return MappedText(program, space, self.programs.pages.of(space.mm))

    def _pause(self) -> None:
        """Raises OptprobeError."""
        if self.shows_program():
            raise OptprobeError(SHOWN, CONTINUE)
        self.run(PAUSE)

    def _write(self, writes: Sequence[Write], timeout: float) -> None:
        """Have the guest do it. Raises OptprobeError."""
        if self.writer is None:
            raise OptprobeError("the guest does not have our code that writes into programs")
        if self.shows_program():
            raise OptprobeError(SHOWN, CONTINUE)
        self.writer.write(writes, timeout)

    def _update_mmap_hook(self) -> None:
        """Have the guest write what is armed into new mappings. Raises OptprobeError."""
        if self.mmap_patcher is not None:
            self.mmap_patcher.set_patches([row for armed in self._installed.values() for row in armed.rows])
