"""The notes at the end of a graph: which calls and functions it does not show, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.commands.render_text import many
from gdb_optprobe.probes.graph.callees import MOST
from gdb_optprobe.probes.graph.run import GraphRun

_MOST_TOLD = 4


@dataclass(frozen=True, slots=True)
class Totals:
    """shown: calls of the root that were printed. early: how many of these are marked as such. left_out: why, by name.

    unfollowed: of which another thread had the place. missed: calls that found no room in the tables of their
    functions. The rest is as in GraphRun.
    """

    root: str
    shown: int = 0
    early: int = 0
    withheld: int = 0
    unfollowed: int = 0
    lost: int = 0
    missed: int = 0
    senseless: int = 0
    learned: int = 0
    unwatched: int = 0
    is_whole: bool = True
    left_out: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, graph: GraphRun, shown: int, early: int) -> Totals:
        return cls(
            graph.request.root,
            shown,
            early,
            graph.withheld,
            graph.trees.unfollowed,
            graph.lost,
            graph.missed,
            graph.trees.senseless,
            graph.learned,
            graph.unwatched,
            graph.is_whole,
            tuple((name, error.message) for name, error in graph.functions.left_out.items()),
        )

    def json(self) -> Mapping[str, object]:
        return {
            "function": self.root,
            "shown": self.shown,
            "early": self.early,
            "withheld": self.withheld,
            "not_followed": self.unfollowed,
            "lost": self.lost,
            "missed": self.missed,
            "senseless": self.senseless,
            "learned": self.learned,
            "not_probed": self.unwatched,
            "whole": self.is_whole,
            "left_out": [{"function": name, "text": why} for name, why in self.left_out],
        }

    def left_out_lines(self) -> Iterator[str]:
        """Yield why functions are not in the graph, as a few lines."""
        by_reason: dict[str, list[str]] = {}
        for name, why in self.left_out:
            by_reason.setdefault(why.replace(name, "it"), []).append(name)
        for why, names in by_reason.items():
            yield f"left out: {_some(names)}: {why}"
        if not self.is_whole:
            yield f"the root reaches more than {MOST:,} functions: not all are there"

    def lines(self) -> Iterator[str]:
        """Yield the notes at the end."""
        if self.lost:
            yield f"{many(self.lost, 'record')} found no room: trees end where they are lost"
        if self.learned:
            yield f"{many(self.learned, 'function')} called through pointers, known to the next graph at once"
        if self.early:
            yield f"{many(self.early, 'call')} of the root may lack calls through pointers: repeat the command"
        yield from self.lacking()

    def lacking(self) -> Iterator[str]:
        """Yield which calls are not shown."""
        if self.unfollowed:
            yield f"{many(self.unfollowed, 'call')} of the root not shown: other threads had their place"
        if self.withheld:
            yield f"{many(self.withheld, 'call')} of the root not shown, from before all pointers were known"
        if self.unwatched:
            yield f"{many(self.unwatched, 'call')} through pointers not probed: what they lead to may lack"
        if self.senseless:
            yield f"{many(self.senseless, 'record')} not shown: no probe of this graph makes such"
        if self.missed:
            yield f"{many(self.missed, 'call')} not shown: too many at once"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")
