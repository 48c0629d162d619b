from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.locations import location_candidates
from gdb_optprobe.commands.parse import EXPLAIN_OPTIONS, Place, parse_explain
from gdb_optprobe.debugger.output import Output


class ExplainCommand(Subcommand[Place]):
    """Say how LOCATION would be probed, and why not better, without touching the guest.

    optprobe explain LOCATION[,LOCATION...] [-tier TIER] [-json]
    optprobe explain -user BINARY:PLACE [-file PATH] [-json]

    Examples:
      optprobe explain vfs_read
      optprobe explain *0xffffffff8134cc55 -json
    """

    word = "explain"

    def parse(self, text: str) -> Place:
        return parse_explain(text)

    def run(self, args: Place, out: Output) -> None:
        explain = self.session.explain
        out.explanation([view for spec in args.specs() for view in explain(spec.location, spec)])

    def candidates(self, text: str) -> int | Sequence[str]:
        return location_candidates(text, EXPLAIN_OPTIONS)
