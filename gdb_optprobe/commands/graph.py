from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import gdb

from gdb_optprobe.commands.base import Subcommand, stream, symbol_words
from gdb_optprobe.commands.graph_arguments import OPTIONS, GraphArguments, parse_graph
from gdb_optprobe.commands.graph_text import GraphText
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.render_text import many
from gdb_optprobe.debugger import attach
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.probes.graph.callees import MOST
from gdb_optprobe.probes.graph.run import GraphRun
from gdb_optprobe.probes.graph.timed import KeptTrees
from gdb_optprobe.probes.graph.trees import Tree
from gdb_optprobe.probes.views import GatheredView

SECOND = 10**9
_MOST_TOLD = 4


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
        text: GraphText | None = None
        shown = early = 0
        newest: deque[Tree] = deque(maxlen=args.last)
        kept = KeptTrees(args.request.depth)

        def tell(tree: Tree) -> None:
            nonlocal early
            assert text is not None
            early += tree.is_early
            kept.add(tree)
            stream("\n".join(text.lines(tree)) + "\n")

        def show(tree: Tree) -> None:
            nonlocal shown
            assert text is not None
            ticks = tree.root.ticks
            took = text.nanoseconds(ticks) if ticks is not None else None
            if args.last is not None and args.shows(took):
                newest.append(tree)
            elif args.shows(took) and not is_over():
                shown += 1
                tell(tree)

        def is_over() -> bool:
            return args.count is not None and shown >= args.count

        graph = GraphRun(session, args.request, show)
        with gdb.with_parameter("pagination", False):
            graph.prepare()
            try:
                hertz, functions = graph.hertz, graph.functions.by_number
                text = GraphText(
                    lambda number: functions[number].name,
                    lambda ticks: ticks * SECOND // hertz,
                    len(session.target.guest.machine.vcpus()),
                    args.request.depth,
                    (lambda number, words: functions[number].brackets(words)) if args.request.arguments else None,
                    lambda number, word: functions[number].value(word) if functions[number].result else None,
                    args.tails,
                    args.threads,
                )
                left_out = _left_out(graph)
                for line in left_out:
                    warn(line)
                stream("\n".join(text.header()) + "\n")
                stopped = graph.run(args.seconds, args.guest, is_over)
                for tree in newest:
                    tell(tree)
                if stopped is not None and args.last is not None:
                    warn(stopped)
                learned = [line for line in _left_out(graph) if line not in left_out]
                for line in (*learned, *_losses(graph, early)):
                    warn(line)
                session.gathered = _gathered(graph, kept)
            finally:
                graph.take_out()

    def candidates(self, text: str) -> int | Sequence[str]:
        if text.endswith("-") or text.split(" ")[-1].startswith("-"):
            return [*OPTIONS]
        return symbol_words(text.split(" ")[-1])


def _gathered(graph: GraphRun, kept: KeptTrees) -> GatheredView:
    """Return the calls that were shown, for export."""
    # Where the guest's log has no times, those of its clock are there, which runs since its boot.
    clock = graph.session.target.guest.clock() or (lambda ticks: ticks * SECOND // graph.hertz)
    calls, unreturned = kept.timed(graph.functions.by_number, clock)
    notes = []
    if unreturned:
        notes.append(f"{many(unreturned, 'call')} had not returned: in the file they end where their records do.")
    if kept.dropped:
        notes.append(f"The first {many(kept.dropped, 'call')} of the root are not there: too many were shown.")
    if kept.early:
        notes.append(f"{many(kept.early, 'call')} of the root may lack calls through pointers.")
    return GatheredView(f"graph {graph.request.root}", calls, lost=graph.lost, notes=tuple(notes))


def _left_out(graph: GraphRun) -> Sequence[str]:
    """Return why functions are not in the graph, as a few lines."""
    by_reason: dict[str, list[str]] = {}
    for name, error in graph.functions.left_out.items():
        by_reason.setdefault(error.message.replace(name, "it"), []).append(name)
    found = [f"left out: {_some(names)}: {why}" for why, names in by_reason.items()]
    return found if graph.is_whole else [*found, f"the root reaches more than {MOST:,} functions: not all are there"]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


def _losses(graph: GraphRun, early: int) -> Sequence[str]:
    """Return what the graph does not show, of calls that there were. early: how many trees are marked as such."""
    found = []
    if graph.lost:
        found.append(f"{many(graph.lost, 'record')} found no room: trees end where they are lost")
    if graph.trees.unfollowed:
        found.append(f"{many(graph.trees.unfollowed, 'call')} of the root not shown: other threads had their place")
    if graph.learned:
        found.append(f"{many(graph.learned, 'function')} called through pointers, known to the next graph at once")
    if graph.unwatched:
        found.append(f"{many(graph.unwatched, 'call')} through pointers not probed: what they lead to may lack")
    if early:
        found.append(f"{many(early, 'call')} of the root may lack calls through pointers: repeat the command")
    if graph.withheld:
        found.append(f"{many(graph.withheld, 'call')} of the root not shown, from before these were known")
    if graph.trees.senseless:
        found.append(f"{many(graph.trees.senseless, 'record')} not shown: no probe of this graph makes such")
    if missed := graph.missed:
        found.append(f"{many(missed, 'call')} not shown: too many at once")
    return found
