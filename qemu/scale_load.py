"""Measure by how much a load is slower with a probe on each function of a glob, and with the guest's function tracer.

In a guest with -icount: what each does to a hit is in the difference, and seconds of the host are
not. The work of one step is files, processes and packets, and no waiting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from .debugger import Debugger
from .guest import Guest
from .scale import LONGEST, SESSION, TRACING

__all__ = ["Load", "LoadLine", "as_json", "report"]

SCRIPT = "/l"
STEP = (
    "dd if=/dev/zero of=/tmp/l bs=4k count=4 2>/dev/null; cat /tmp/l >/dev/null; /bin/busybox true",
    "ping -q -c 1 127.0.0.1 >/dev/null",
)
PROGRAM = (
    'now() { T=$(sed -n "3{s/now at //;s/ nsecs//;p;q}" /proc/timer_list); }',
    "now; A=$T; i=0; while [ $i -lt $1 ]; do",
    *STEP,
    "i=$((i+1)); done; now; echo $((T - A))",
)
STEPS = 30
CLEAR = 0.01
"""Of the load: what two runs without a probe differ by is less."""
PROBES, TRACER = "probes", "tracer"
STATISTICS = f"cat {TRACING}/per_cpu/cpu*/stats"
HITS = "python print(sum(view.hits for view in current_session().views()))"
NOTES = """\
work           of files, processes and packets, that the guest does in as many instructions, of what it does without
hits           of {steps} steps of that work
instructions   of the guest, that a hit adds (-icount shift=0,sleep=off); "-": all add less than 1 % of the work
tracer         the guest's own function tracer on the same functions, but for those without a site"""


@dataclass(frozen=True, slots=True)
class LoadLine:
    """With `what` on the functions of `glob`: instructions that STEPS steps take, and without; hits in these."""

    glob: str
    what: str
    instructions: int
    unprobed: int
    hits: int

    @property
    def work(self) -> float:
        return self.unprobed / self.instructions

    @property
    def each(self) -> float | None:
        """What a hit adds; None where all hits do not add clearly more than the noise."""
        added = self.instructions - self.unprobed
        return added / self.hits if self.hits and added > CLEAR * self.unprobed else None


class Load:
    """The experiment. In turns: a tracer's site holds a probe's branch or the tracer's call."""

    def __init__(self, guest: Guest, debugger: Debugger, say: Callable[[str], object]) -> None:
        self._guest, self._debugger, self._say = guest, debugger, say

    def run(self, globs: Sequence[str]) -> Iterator[LoadLine]:
        lines = " ".join(f"'{line}'" for line in PROGRAM)
        self._in_guest(f"mkdir -p /tmp; printf '%s\\n' {lines} > {SCRIPT}")
        self._debugger(SESSION)
        self._debugger("set optprobe max-probes 65536")
        for glob in globs:
            unprobed, _ = self._measure(f"{glob}: the load alone", lambda: 0)
            self._debugger(f"optprobe add -glob {glob}", LONGEST)
            took, hits = self._measure(f"{glob}: the load with probes", lambda: int(self._debugger(HITS, LONGEST)))
            self._debugger("optprobe delete", LONGEST)
            yield LoadLine(glob, PROBES, took, unprobed, hits)
            self._in_guest(f"cd {TRACING}; echo '{glob}' > set_ftrace_filter && echo function > current_tracer")
            took, hits = self._measure(f"{glob}: the load with the tracer", self._traced)
            self._in_guest(f"cd {TRACING}; echo nop > current_tracer; echo > set_ftrace_filter; echo > trace")
            yield LoadLine(glob, TRACER, took, unprobed, hits)

    def _measure(self, what: str, count: Callable[[], int]) -> tuple[int, int]:
        """Return the instructions of STEPS steps, and the hits in these. The first run translates."""
        self._say(what)
        seen, taken = [count()], []
        for steps in (1, 1, 1 + STEPS):
            taken.append(int(self._in_guest(f"sh {SCRIPT} {steps:<4}")))
            seen.append(count())
        _, _, few, many = seen
        return taken[2] - taken[1], many - few - (few - seen[1])

    def _traced(self) -> int:
        """Return how many records the tracer has written so far."""
        found = re.findall(r"^(?:entries|overrun): (\d+)$", self._in_guest(STATISTICS), re.M)
        return sum(map(int, found))

    def _in_guest(self, command: str) -> str:
        return self._debugger.running(lambda: self._guest.check(command, LONGEST))


def report(lines: Sequence[LoadLine]) -> list[str]:
    """Return the table."""
    rows = [("glob", "", "work", "hits", "instructions a hit")]
    for line in lines:
        each = f"{line.each:,.1f}" if line.each is not None else "-"
        rows.append((line.glob, line.what, f"{100 * line.work:.0f} %", f"{line.hits:,}", each))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<>>>", widths, strict=True))
    return [*(form.format(*row).rstrip() for row in rows), "", NOTES.format(steps=STEPS)]


def as_json(lines: Sequence[LoadLine]) -> list[dict[str, object]]:
    """Return the lines as objects, with what the table makes of them."""
    return [asdict(line) | {"work": line.work, "each": line.each} for line in lines]
