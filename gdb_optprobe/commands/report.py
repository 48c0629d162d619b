from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import REPORT_OPTIONS, SORT_FIELDS, Selection, parse_selection
from gdb_optprobe.commands.output import Output
from gdb_optprobe.debugger import attach
from gdb_optprobe.probes.views import ProbeView


class ReportCommand(Subcommand[Selection]):
    """Print what the probes have counted, and what a hit costs.

    optprobe report [N...] [-clear] [-json] [-sort FIELD] [-top N]

    The last lines say when the slot collector ran, what it freed and how long it stopped the guest.

    -clear sets what was counted and gathered to zero afterwards, but for stops and a function's calls.
    -json prints a line of JSON for each probe.
    -sort sorts by hits, missed, dropped, faults or stops, most first, or by
    number or symbol. -top prints the first N probes only: without -sort those
    with the most hits.

    Examples:
      optprobe report
      optprobe report 1 2 -clear
      optprobe report -top 10
    """

    word = "report"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, REPORT_OPTIONS)

    def run(self, args: Selection, out: Output) -> None:
        session = self.session if args.wanted or args.clear or attach.is_connected() else None
        numbers = resolve(session, args) if session else None
        out.report(chosen(session.reports(numbers), args) if session else ())
        if session and numbers is None and (found := session.collector()) is not None:
            out.collector(found)
        if session and args.clear:
            session.clear(numbers)

    def candidates(self, text: str) -> Sequence[str]:
        *_, before, _ = ["", *text.split(" ")]
        if before == "-sort":
            return SORT_FIELDS
        return () if before == "-top" else [*probe_words(), *REPORT_OPTIONS]


def chosen(probes: Sequence[ProbeView], args: Selection) -> Sequence[ProbeView]:
    """Return the probes of a report in its order, at most as many as it is to have."""
    if args.sort in ("number", "symbol"):
        probes = sorted(probes, key=attrgetter(args.sort))
    elif args.sort:
        probes = sorted(probes, key=attrgetter(args.sort), reverse=True)
    return probes[: args.top]
