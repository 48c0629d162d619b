"""Trees of calls as JSON: a line for each call of the root, with those within it, and one for all in the end.

The keys are documented by json_schema.py, as those of render_json.py are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gdb_optprobe.commands.graph_totals import Totals
from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.probes.graph.functions import Traced
from gdb_optprobe.probes.graph.trees import Call, Ending, Tree

_ENDINGS = {Ending.RETURNED: "returned", Ending.DIED: "died", Ending.OPEN: "open", Ending.LOST: "lost"}


@dataclass(frozen=True, slots=True)
class GraphJson:
    """functions: by their numbers. nanoseconds: of ticks. clock: see Guest.clock. depth: of what is shown."""

    functions: Mapping[int, Traced]
    nanoseconds: Callable[[int], int]
    clock: Callable[[int], int]
    depth: int

    def header(self) -> Iterator[str]:
        """Yield nothing: each line tells what it is."""
        return iter(())

    def lines(self, tree: Tree) -> Iterator[str]:
        """Yield the line of a tree."""
        thread = {"pid": tree.pid, "comm": until_zero(tree.comm)}
        ended = {"ending": _ENDINGS[tree.ending], "early": tree.is_early}
        yield json.dumps({"type": "graph", **thread, **ended, **self._call(tree.root, 0)})

    def ended(self, totals: Totals) -> Iterator[str]:
        """Yield the last line."""
        yield json.dumps({"type": "graph_total", **totals.json()})

    def _call(self, call: Call, level: int) -> dict[str, object]:
        function, end, ticks = self.functions[call.function], call.end, call.ticks
        result = function.returned(end[2]) if end is not None else None
        return {
            "function": function.name,
            "cpu": call.cpu,
            **({"end_cpu": end[0]} if end is not None and end[0] != call.cpu else {}),
            "begin": self.clock(call.time),
            "nanoseconds": self.nanoseconds(ticks) if ticks is not None else None,
            **({"arguments": dict(function.passed(call.arguments))} if function.parameters else {}),
            **({"result": result} if result is not None else {}),
            **({"interrupt": True} if call.is_interrupt else {}),
            "calls": [self._call(inner, level + 1) for inner in call.calls] if level < self.depth else [],
        }
