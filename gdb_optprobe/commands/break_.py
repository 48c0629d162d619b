from __future__ import annotations

from gdb_optprobe.commands.add import AddCommand
from gdb_optprobe.commands.parse import Add, parse_break


class BreakCommand(AddCommand):
    """Stop at LOCATION, only when EXPR is true: optprobe add LOCATION if EXPR do stop.

    optprobe break LOCATION[,LOCATION...] [OPTIONS] [if EXPR] [do ACTION, ...]
    optprobe break LOCATION[,LOCATION...] -return [entry ...] [if EXPR] [do ACTION, ...]

    EXPR is computed in the guest: a hit for which it is false does not stop it.
    With -return the guest stops where the function has returned to.

    Examples:
      optprobe break kfree if object == $obj
      optprobe break vfs_read if count > 4096
      optprobe break vfs_read -return if $retval < 0
    """

    word = "break"

    def parse(self, text: str) -> Add:
        return parse_break(text)
