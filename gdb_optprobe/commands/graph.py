from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import gdb

from gdb_optprobe.commands.base import Subcommand, stream, symbol_words
from gdb_optprobe.commands.graph_arguments import OPTIONS, GraphArguments, parse_graph
from gdb_optprobe.commands.graph_json import GraphJson
from gdb_optprobe.commands.graph_text import GraphText
from gdb_optprobe.commands.graph_totals import Totals
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.render_text import many
from gdb_optprobe.debugger import attach
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.probes.graph.run import GraphRun
from gdb_optprobe.probes.graph.timed import KeptTrees
from gdb_optprobe.probes.graph.trees import Tree
from gdb_optprobe.probes.views import GatheredView

SECOND = 10**9


class GraphCommand(Subcommand[GraphArguments]):
    """Show what a function calls, with times, as Linux's function_graph does.

    optprobe graph ROOT [OPTIONS] [if EXPR]

    Each call of ROOT is printed with the calls within it, when it has returned. The functions are those that the
    code of ROOT calls, down to a depth, and that Linux's tracer could trace. Where calls through pointers lead is
    learned while the guest runs: calls of ROOT from before that may lack some. They are withheld for a second at
    most, or marked. The next graph knows it from the start. EXPR is of ROOT's entry, as a condition of add. The graph
    ends at Ctrl-C, or as the options say; then all its probes are removed. What it has shown can be written for other
    tools: optprobe export FORMAT FILE -last.

      -depth N       levels of calls below ROOT: 3 if not given
      -also GLOB     other functions, where they are called within ROOT; several with commas
      -not GLOB      functions that are left out, with what they call
      -min-time T    show only calls of ROOT that took so long: 100us, 2ms
      -max-time T    show only calls of ROOT that took no longer
      -count N       end when so many calls of ROOT are shown
      -last N        show nothing until the guest stops, at a breakpoint, say; then the last calls of ROOT before that
      -for SECONDS   end after so long
      -guest COMMAND run a command in the guest's shell, and end with it; the guest must be one of scripts/guest
      -args          show arguments, by the kernel's types
      -retval        show what functions return
      -tail          show the function's name behind each closing brace
      -proc          show the thread in each line
      -json          print a line of JSON for each call of ROOT, with the calls within it, and one in the end

    Examples:
      optprobe graph vfs_read -count 3
      optprobe graph do_sys_openat2 -depth 5 -min-time 1ms -for 10
      optprobe graph vfs_read -also read_zero -args -retval if count > 4096
      optprobe graph vfs_read -last 3
    """

    word = "graph"

    def parse(self, text: str) -> GraphArguments:
        return parse_graph(text)

    def run(self, args: GraphArguments, out: Output) -> None:
        session = attach.current_session()
        form: GraphText | GraphJson | None = None
        shown = early = 0
        newest: deque[Tree] = deque(maxlen=args.last)
        kept = KeptTrees(args.request.depth)

        def tell(tree: Tree) -> None:
            nonlocal shown, early
            assert form is not None
            shown += 1
            early += tree.is_early
            kept.add(tree)
            _print(form.lines(tree))

        def show(tree: Tree) -> None:
            assert form is not None
            ticks = tree.root.ticks
            took = form.nanoseconds(ticks) if ticks is not None else None
            if args.last is not None and args.shows(took):
                newest.append(tree)
            elif args.shows(took) and not is_over():
                tell(tree)

        def is_over() -> bool:
            return args.count is not None and shown >= args.count

        graph = GraphRun(session, args.request, show)
        with gdb.with_parameter("pagination", False):
            graph.prepare()
            try:
                form = _form(graph, args)
                told = [*Totals.of(graph, 0, 0).left_out_lines()]
                for line in told:
                    warn(line)
                _print(form.header())
                stopped = graph.run(args.seconds, args.guest, is_over)
                for tree in newest:
                    tell(tree)
                if stopped is not None and args.last is not None:
                    warn(stopped)
                totals = Totals.of(graph, shown, early)
                for line in (*(line for line in totals.left_out_lines() if line not in told), *totals.lines()):
                    warn(line)
                if isinstance(form, GraphJson):
                    _print(form.ended(totals))
                session.gathered = _gathered(graph, kept, totals)
            finally:
                graph.take_out()

    def candidates(self, text: str) -> int | Sequence[str]:
        if text.endswith("-") or text.split(" ")[-1].startswith("-"):
            return [*OPTIONS]
        return symbol_words(text.split(" ")[-1])


def _form(graph: GraphRun, args: GraphArguments) -> GraphText | GraphJson:
    """Return what makes lines of trees. Raises OptprobeError."""
    hertz, functions, depth = graph.hertz, graph.functions.by_number, args.request.depth

    def nanoseconds(ticks: int) -> int:
        return ticks * SECOND // hertz

    if args.json:
        return GraphJson(functions, nanoseconds, _clock(graph), depth)
    return GraphText(
        lambda number: functions[number].name,
        nanoseconds,
        len(graph.session.target.guest.machine.vcpus()),
        depth,
        (lambda number, words: functions[number].brackets(words)) if args.request.arguments else None,
        lambda number, word: functions[number].value(word) if functions[number].result else None,
        args.tails,
        args.threads,
    )


def _clock(graph: GraphRun) -> Callable[[int], int]:
    """Return the nanoseconds of a time, as the guest's log has them; where it has none, those of its clock, which runs
    since its boot.
    """
    return graph.session.target.guest.clock() or (lambda ticks: ticks * SECOND // graph.hertz)


def _print(lines: Iterable[str]) -> None:
    if text := "".join(f"{line}\n" for line in lines):
        stream(text)


def _gathered(graph: GraphRun, kept: KeptTrees, totals: Totals) -> GatheredView:
    """Return the calls that were shown, for export and pages."""
    calls, unreturned = kept.timed(graph.functions.by_number, _clock(graph))
    notes = []
    if unreturned:
        notes.append(f"{many(unreturned, 'call')} had not returned: in the file they end where their records do.")
    if kept.dropped:
        notes.append(f"The first {many(kept.dropped, 'call')} of the root are not there: too many were shown.")
    if kept.early:
        notes.append(f"{many(kept.early, 'call')} of the root may lack calls through pointers.")
    notes += [f"{line}." for line in totals.lacking()]
    return GatheredView(f"graph {graph.request.root}", calls, lost=graph.lost, notes=tuple(notes))
