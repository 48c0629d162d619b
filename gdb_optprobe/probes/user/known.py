"""Programs that were probed: another file in the place of one, or other contents, is another program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.program import Program


@dataclass
class ProbedPrograms:
    """By the address of the inode, which another file may get once it is freed."""

    _programs: dict[int, Program] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Program]:
        return iter(self._programs.values())

    def update(self, program: Program, in_use: bool) -> bool:
        """Return whether that inode was known as another program. in_use: that one has our patches.

        Raises OptprobeError where it is, and was.
        """
        known = self._programs.get(program.inode)
        is_other = known is not None and not program.is_as(known)
        if is_other and in_use:
            why = f"{program.path} is another program than when it was probed"
            raise OptprobeError(why, "optprobe delete its probes, and let calls that they saw return")
        self._programs[program.inode] = program
        return is_other

    def clear(self) -> None:
        """The guest is gone."""
        self._programs.clear()
