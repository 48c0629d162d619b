from __future__ import annotations

from gdb_optprobe.commands.add import AddCommand
from gdb_optprobe.commands.parse import Add, parse_dprintf


class DprintfCommand(AddCommand):
    """Print at each hit of LOCATION: optprobe add LOCATION do print("format", EXPR...).

    optprobe dprintf LOCATION,"format",EXPR...

    Examples:
      optprobe dprintf vfs_read,"read of %lu bytes",count
    """

    word = "dprintf"

    def parse(self, text: str) -> Add:
        return parse_dprintf(text)
