from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from gdb_optprobe import host_files
from gdb_optprobe.commands.base import Subcommand, file_words, probe_words, resolve
from gdb_optprobe.commands.options import REPORT_OPTIONS, SORT_FIELDS, Selection, parse_selection
from gdb_optprobe.commands.output import Output, probes_with_records
from gdb_optprobe.commands.render_text import counted
from gdb_optprobe.commands.report_order import chosen
from gdb_optprobe.commands.report_page import Found, page
from gdb_optprobe.debugger import attach
from gdb_optprobe.debugger.doctor import at_a_glance
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.exports.folded import lines
from gdb_optprobe.exports.from_views import stacks
from gdb_optprobe.pages.page import fitting
from gdb_optprobe.probes.views import CollectorView, GatheredView, GuestTraceView, ProbeView, SessionMapView


class ReportCommand(Subcommand[Selection]):
    """Print what the probes have counted, and what a hit costs.

    optprobe report [N...] [-clear] [-json] [-sort FIELD] [-top N] [-all]
    optprobe report [N...] -timeline | -folded [-clear]
    optprobe report [N...] -html FILE [-sort FIELD] [-top N] [-clear]
    optprobe report -html FILE -last

    Maps of scripts and of blocks in braces follow the probes, as bpftrace prints them.
    A trace that the guest has printed (of an oops, a warning, a panic) up to a probed
    return follows with the callers beyond, where more than 100 returns are probed.
    The last lines say when the slot collector ran, what it freed and how long it stopped the guest.
    A guest that runs in the background is read without a stop; a line says so. -clear and -html need it stopped.

    -clear sets what was counted and gathered to zero afterwards, but for stops and a function's calls:
    of all probes, with the guest's traces, or of N.... Those that -top leaves out are cleared too, so that
    the next -top compares the same time; a line says how many they were.
    -json prints a line of JSON for each probe.
    -sort sorts by hits, missed, dropped, faults or stops, or by the time of all
    calls, as far as latency, sum($elapsed) or avg($elapsed) of all of them tells
    it, most first, or by number or symbol. -top prints the first N probes only:
    without -sort those with the most hits.
    -all prints a line for each probe of a glob; without it those that were
    never hit are one line, unless their numbers are given.
    -timeline prints the records of all probes in the order of time.
    -folded prints the stacks that the action stack kept, for flame graphs:
    functions from the outermost to the probed one, and how often.
    -html writes a page for a browser, which needs nothing else: costs beside
    Linux's own, histograms, calls over time, flame graphs, what was on which
    CPU, what was lost. What a record becomes: help optprobe export. With -last,
    and where there are no probes, the page is of what the last graph, latency,
    profile, offcpu or calls has shown. FILE is replaced; a new one is for you
    alone to read.

    Examples:
      optprobe report
      optprobe report 1 2 -clear
      optprobe report -top 10
      optprobe report -timeline
      optprobe report -html reads.html
      optprobe report -html graph.html -last
    """

    word = "report"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, REPORT_OPTIONS)

    def run(self, args: Selection, out: Output) -> None:
        if not (args.wanted or args.clear or attach.is_connected()):
            self._print(args, out, _Gathered())
            return
        with self.reading() as (session, runs):
            if runs and args.clear:
                raise OptprobeError(f"{attach.RUNNING}, and -clear writes to its memory", attach.INTERRUPT)
            if runs and args.html:
                raise OptprobeError(f"{attach.RUNNING}, and a page has facts that it is asked for", attach.INTERRUPT)
            numbers = resolve(session, args)
            found = _Gathered(session.reports(numbers), last=session.gathered)
            if not (args.timeline or args.folded):
                found = replace(found, maps=session.maps(numbers))
                if numbers is None and not args.html:
                    traces = session.printed_traces() if not runs else ()
                    found = replace(found, traces=traces, collector=session.collector())
        shown = self._print(args, out, found)
        if args.clear:
            session.clear(numbers)
            if (others := len(found.probes) - shown) and not args.json:
                out.lines([f"cleared {counted(others, 'probe')} that -top left out, too"])

    def _print(self, args: Selection, out: Output, found: _Gathered) -> int:
        """Print what was read; return of how many probes."""
        probes = chosen(found.probes, args)
        if args.html:
            if args.last or not (probes or found.maps or args.wanted):
                out.lines([_written(_of_last(found.last, args), args.html)])
            else:
                out.lines([_written(Found.of(probes, found.maps, at_a_glance(), _now(), args.sort), args.html)])
        elif args.timeline:
            out.timeline(probes)
        elif args.folded:
            out.lines(folded(probes) or ["No stacks."])
        else:
            out.report(probes, whole=args.whole or bool(args.wanted))
            out.maps(found.maps)
            out.guest_traces(found.traces)
            if found.collector is not None:
                out.collector(found.collector)
        return len(probes)

    def candidates(self, text: str) -> Sequence[str]:
        *_, before, typed = ["", *text.split(" ")]
        if before == "-html":
            return file_words(typed)
        if before == "-sort":
            return SORT_FIELDS
        return () if before == "-top" else [*probe_words(), *REPORT_OPTIONS]


@dataclass(frozen=True)
class _Gathered:
    """What a report has of the guest."""

    probes: Sequence[ProbeView] = ()
    maps: Sequence[SessionMapView] = ()
    traces: Sequence[GuestTraceView] = ()
    collector: CollectorView | None = None
    last: GatheredView | None = None


def _of_last(last: GatheredView | None, args: Selection) -> Found:
    """Return what the last graph or profile has shown. Raises OptprobeError."""
    if last is not None:
        return Found.of_last(last, at_a_glance(), _now())
    if args.last:
        raise OptprobeError("nothing was gathered yet", "optprobe graph FUNCTION, or optprobe latency, is first")
    raise OptprobeError("there are no probes for a page", "optprobe add LOCATION")


def _written(found: Found, path: str) -> str:
    """Write the page, and return what was written."""
    data = fitting(partial(page, found))
    host_files.write_typed(path, data)
    return f"Wrote a page of {found.summary} to '{path}', {len(data) // 1000} kB."


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def folded(probes: Sequence[ProbeView]) -> list[str]:
    """Return the stacks in the form that flame graphs are drawn from: `outermost;…;innermost count`."""
    return lines(stacks(probes_with_records(probes)))
