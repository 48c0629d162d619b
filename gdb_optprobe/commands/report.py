from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import REPORT_OPTIONS, Selection, parse_selection
from gdb_optprobe.commands.output import Output
from gdb_optprobe.debugger import attach


class ReportCommand(Subcommand[Selection]):
    """Print what the probes have counted, and what a hit costs.

    optprobe report [N...] [-clear] [-json]

    The last lines say when the slot collector ran, what it freed and how long it stopped the guest.

    -clear sets what was counted and gathered to zero afterwards, but for stops and a function's calls.
    -json prints a line of JSON for each probe.

    Examples:
      optprobe report
      optprobe report 1 2 -clear
    """

    word = "report"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, REPORT_OPTIONS)

    def run(self, args: Selection, out: Output) -> None:
        session = self.session if args.wanted or args.clear or attach.is_connected() else None
        numbers = resolve(session, args) if session else None
        out.report(session.reports(numbers) if session else ())
        if session and numbers is None and (found := session.collector()) is not None:
            out.collector(found)
        if session and args.clear:
            session.clear(numbers)

    def candidates(self, text: str) -> Sequence[str]:
        return [*probe_words(), *REPORT_OPTIONS]
