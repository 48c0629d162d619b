"""Measure whether a guest is slower while `optprobe top` shows many probes and maps, ten times a second.

    guest   … ─ work ─┤mkdir├─ work ─┤mkdir├─ work ─┤mkdir├─ …      the guest times its own work, by its own clock
    GDB      optprobe run    optprobe top   optprobe top   …        a probe on mkdir ends each

The work is the same each time, under the same probes. Pairs take turns in their order, so that a host that becomes
slower or faster meanwhile makes no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from .debugger import Debugger, DebuggerError
from .guest import Guest
from .processes import cpu_seconds
from .scale import TRACING, glob_of

__all__ = ["EVERY", "LEAST", "LiveView", "Pair", "as_json", "report"]

PROBES, MAPS = 1_000, 20
EVERY = 0.1
"""Seconds between two looks."""
LEAST = 0.98
"""The throughput that the guest has at least while it is looked at, of that without."""
SECONDS = 2.5
"""Of the work, about."""
TRIAL = 50_000
END = "do_mkdirat"
"""The function at which a round of the work ends: fs/namei.c."""
SCRIPT, TOOK = "/v", "/v.took"
PROGRAM = (
    'now() { T=$(sed -n "3{s/now at //;s/ nsecs//;p;q}" /proc/timer_list); }',
    "while :; do now; A=$T",
    "dd if=/dev/zero of=/dev/null bs=1 count=$1 2>/dev/null",
    f"now; echo $((T - A)) >> {TOOK}",
    "[ $2 ] && exit; mkdir /v.end; rmdir /v.end; done",
)
LONGEST = 120.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of the guest that the work took, without the view and with it. looks: of the view.

    spent: seconds of a processor that GDB took for each look.
    """

    without: float
    viewed: float
    looks: int
    spent: float

    @property
    def ratio(self) -> float:
        """Return the throughput with the view, as a part of that without."""
        return self.without / self.viewed


class LiveView:
    """The experiment in a guest. probes: how many there are. way: how the guest is read. work: reads of a round."""

    def __init__(self, guest: Guest, debugger: Debugger, say: Callable[[str], object]) -> None:
        self._guest, self._debugger, self._say = guest, debugger, say
        self.probes = self.work = 0
        self.way = ""

    def run(self, pairs: int) -> list[Pair]:
        """Return what each pair took."""
        self._prepare()
        spent: list[tuple[int, float]] = []
        for number in range(pairs):
            self._say(f"pair {number + 1} of {pairs}")
            for viewed in _order(number):
                found = self._round(viewed)
                spent += [found] if viewed else []
        self._debugger("optprobe delete")
        took = [int(line) / 1e9 for line in self._in_guest(f"cat {TOOK}").split()]
        return [*_paired(took[1:], spent)]

    def _prepare(self) -> None:
        """Put the probes and the maps in, and let the work begin. Its first round is not counted."""
        gdb = self._debugger
        gdb("set optprobe max-probes 65536")
        listed = self._in_guest(f"cat {TRACING}/available_filter_functions").splitlines()
        names = sorted(name for name in listed if " " not in name)
        self._say("the probes")
        gdb(f"optprobe add -glob {glob_of(names, PROBES)}", LONGEST)
        mapped = [name for name in names if name.startswith("vfs_")]
        mapped = sorted(mapped, key=lambda name: name not in ("vfs_read", "vfs_write"))[:MAPS]
        gdb(f"optprobe script -keep -q -e '{' '.join(_counted(*one) for one in enumerate(mapped))}'", LONGEST)
        gdb("optprobe commit")
        self.probes = len(json.loads(gdb("optprobe list -json")))
        self.way = next(
            each["detail"] for each in json.loads(gdb("optprobe doctor -json"))["facilities"] if each["name"] == "live"
        )
        lines = " ".join(f"'{line}'" for line in PROGRAM)
        self._in_guest(f"printf '%s\\n' {lines} > {SCRIPT}; sh {SCRIPT} {TRIAL} once")
        self.work = round(TRIAL * SECONDS * 1e9 / int(self._in_guest(f"cat {TOOK}; rm {TOOK}")))
        self._in_guest(f"sh {SCRIPT} {self.work} >/dev/null 2>&1 </dev/null &")
        gdb(f"optprobe break {END}")
        self._round(viewed=False)

    def _round(self, viewed: bool) -> tuple[int, float]:
        """Let the guest do the work once. Return the looks of the view, and the processor's seconds that GDB took."""
        before = cpu_seconds((self._debugger.pid,))
        printed = self._debugger(f"optprobe top -every {EVERY}" if viewed else "optprobe run", LONGEST)
        if END not in printed:
            raise DebuggerError(f"the guest did not come to the end of its work:\n{printed[-2000:]}")
        looks = len(re.findall(r"^\d+\.\d s: ", printed, re.M))
        return looks, cpu_seconds((self._debugger.pid,)) - before

    def _in_guest(self, command: str) -> str:
        return self._debugger.running(lambda: self._guest.check(command, LONGEST))


def _counted(number: int, function: str) -> str:
    return f"kprobe:{function} {{ @m{number}[comm] = count(); }}"


def _order(pair: int) -> tuple[bool, bool]:
    """Return whether the first round of a pair, and the second, is with the view."""
    return (False, True) if pair % 2 == 0 else (True, False)


def _paired(took: Sequence[float], spent: Sequence[tuple[int, float]]) -> Iterator[Pair]:
    """Yield the pairs. took: seconds of each round, in their order. spent: of each round with the view."""
    for number, (looks, seconds) in enumerate(spent):
        first, second = took[2 * number : 2 * number + 2]
        without, viewed = (second, first) if _order(number)[0] else (first, second)
        yield Pair(without, viewed, looks, seconds / max(looks, 1))


def report(pairs: Sequence[Pair], view: LiveView) -> list[str]:
    """Return the table."""
    ratios = [pair.ratio for pair in pairs]
    middle = median(ratios)
    lines = [f"{view.probes:,} probes, {MAPS} maps among them, every {EVERY} s, {view.way}; {view.work:,} reads"]
    lines.append(f"{'pair':>4} {'without':>9} {'with':>9} {'looks':>6} {'ms of GDB a look':>17} {'ratio':>6}")
    for number, pair in enumerate(pairs, 1):
        times = f"{pair.without:7.3f} s {pair.viewed:7.3f} s"
        lines.append(f"{number:>4} {times} {pair.looks:>6} {1e3 * pair.spent:>17.1f} {pair.ratio:>6.3f}")
    lines.append("")
    lines.append(f"Throughput with the view: median {middle:.3f}, least {min(ratios):.3f}, most {max(ratios):.3f}.")
    lines.append(f"Target, a median of at least {LEAST}: {'met' if middle >= LEAST else 'MISSED'}.")
    return lines


def as_json(pairs: Sequence[Pair]) -> list[dict[str, object]]:
    """Return the pairs as objects."""
    return [
        {
            "without_seconds": pair.without,
            "with_seconds": pair.viewed,
            "looks": pair.looks,
            "gdb_seconds_a_look": pair.spent,
            "ratio": pair.ratio,
        }
        for pair in pairs
    ]
