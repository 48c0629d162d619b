from __future__ import annotations

from collections.abc import Sequence

import gdb

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import LIST_OPTIONS, Selection, parse_selection
from gdb_optprobe.commands.output import Output
from gdb_optprobe.debugger import attach


class ListCommand(Subcommand[Selection]):
    """List the probes: tier, hits, address, and why a probe is not optimized.

    optprobe list [N...] [-json]
    info optprobe [N...] [-json]

    N is a number, a range, a name, or a convenience variable. A guest that runs in the background is read without a
    stop; a line says so.

    Examples:
      optprobe list
      optprobe list 1-3 -json
    """

    word = "list"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, LIST_OPTIONS)

    def run(self, args: Selection, out: Output) -> None:
        if not (args.wanted or attach.is_connected()):
            out.probes(())
            return
        with self.reading() as (session, _):
            views = session.views(resolve(session, args))
            collector = session.collector() if not args.wanted else None
        out.probes(views)
        if collector is not None:
            out.quarantine(collector)

    def candidates(self, text: str) -> Sequence[str]:
        return [*probe_words(), *LIST_OPTIONS]


class InfoCommand(ListCommand):
    __doc__ = ListCommand.__doc__

    def __init__(self) -> None:
        gdb.Command.__init__(self, "info optprobe", gdb.COMMAND_BREAKPOINTS)
