from __future__ import annotations

import difflib

import gdb

from gdb_optprobe.commands.base import fail
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import short


class OptprobeCommand(gdb.Command):
    """Probes in a live guest. A hit costs a few instructions instead of a stop of the machine.

    optprobe SUBCOMMAND [ARGUMENTS]

    Examples:
      optprobe add vfs_read
      optprobe run -for 2
      optprobe report

    `set optprobe` has the settings; `info optprobe` lists the probes.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__("optprobe", gdb.COMMAND_BREAKPOINTS, prefix=True)
        self._words = words

    def invoke(self, argument: str, from_tty: bool) -> None:
        self.dont_repeat()
        if not argument:
            gdb.execute("help optprobe")
            return
        word = short(argument.split()[0])
        close = difflib.get_close_matches(word, self._words, 1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        fail(OptprobeError(f"no subcommand '{word}'", f"{hint}there are {', '.join(self._words)}"))
