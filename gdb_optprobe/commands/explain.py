from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.locations import location_candidates
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.parse import ADD_OPTIONS, Add, hinting_at_options, parse_add


class ExplainCommand(Subcommand[Add]):
    """Say how `add` would probe LOCATION, and why not better, without touching the guest.

    optprobe explain LOCATION[,LOCATION...] [what `add` takes] [-json]

    What `add` would refuse is refused here, with the same reason.

    Examples:
      optprobe explain vfs_read
      optprobe explain *0xffffffff8134cc55 -json
      optprobe explain vfs_read -return do hist($retval) by $comm
      optprobe explain -user /bin/busybox:main
    """

    word = "explain"

    def parse(self, text: str) -> Add:
        return parse_add(text, self.word)

    def run(self, args: Add, out: Output) -> None:
        specs = args.specs()
        with hinting_at_options(args):
            out.explanation(self.session_for(specs).explain(*specs))

    def candidates(self, text: str) -> int | Sequence[str]:
        return location_candidates(text, ADD_OPTIONS)
