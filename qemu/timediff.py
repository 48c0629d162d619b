"""The time-difference experiment of the powerpc optprobes series: the timebase before a probe and behind it.

    kernel_clone+0x4c   b ──► the instruction moved here; mftb r0; b back
    kernel_clone+0x50   the probe
    kernel_clone+0x54   b ──► mftb r12; (GDB looks at r0 and r12 here) the instruction moved here; b back

That series had two mftb compiled into its kernel. Here they are written into a stock one, for the length of a run: a
stop of GDB between the two would move the guest's clock, and one behind both does not. The moved code is in a function
that none of our guests calls; r0 and r12 are dead in kernel_clone there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .cache import say
from .costs.table import aligned, number
from .debugger import Debugger, DebuggerError
from .linux_event import LIST, linux_event
from .reads import Reads

__all__ = ["FORKS", "FUNCTION", "LINEAR", "UNUSED", "Pair", "Report", "TimeDifference", "as_json", "branch", "report"]

FORKS = 20
FUNCTION, OFFSET = "kernel_clone", 0x50
"""Their `_do_fork`, renamed since."""
EASY = 0x44
"""The nearest instruction before it that Linux optimizes, `li r8,0`; it leaves every load and store alone."""
UNUSED = "kernel_halt"
# busybox's shell forks for a list in parentheses.
WORKLOAD = "i=0; while [ $i -lt {forks} ]; do (:); i=$((i + 1)); done"
LINEAR = 0xC << 60
"""Where the kernel maps physical memory, itself at its start."""
WORD = 4
MFTB_R0, MFTB_R12 = 0x7C0C42A6, 0x7D8C42A6
BRANCH, REACH = 0x48000000, 0x03FFFFFC
NOTES = """\
A tick is {tick:.2f} ns, and as many instructions: the guest's clock counts them. Without a probe it is {unprobed:g}.
Both mftb are the guest's own, next to the probe; GDB looks at what they read when both are done.
Linux's is a kprobe event, which writes a record too. It optimizes no load and no store, as +0x50 is; the nearest
instruction before it that it does is +{easy:#x}.
*  GDB stops the guest, and the timebase with it: so the times are the host's, in such ticks, between stops of GDB's
   before and behind. Without a probe that is {host:,.0f}. The ratios are of medians."""
HERE = Path(__file__).parent

Probed = Callable[[], AbstractContextManager[object]]
Seen = dict[str, list[Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Pair:
    """One kind of probe: ticks of the timebase at each fork, from before the probed instruction to behind it.

    optimized: None where the kind of probe is not optimized there.
    host:      if not optimized, the guest and its timebase were stopped: those are ticks of the host's clock.
    """

    name: str
    offset: int
    unoptimized: tuple[float, ...]
    optimized: tuple[float, ...] | None
    host: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The results.

    frequency: of the timebase, in Hz.
    unprobed:  ticks without a probe, the median.
    host:      the same, by the host's clock.
    """

    frequency: int
    unprobed: float
    host: float
    pairs: tuple[Pair, ...]


class TimeDifference:
    """The experiment in a ppc64le guest with a clock that counts instructions."""

    def __init__(self, reads: Reads, debugger: Debugger, forks: int = FORKS) -> None:
        self._reads = reads
        self._debugger = debugger
        self._forks = forks
        self._symbols = self._addresses((FUNCTION, UNUSED))
        debugger(f"source {HERE}/sampler.py")

    def run(self) -> Report:
        """Return all columns."""
        frequency = int(re.findall(r"timebase\s*: (\d+)", self._reads.guest("cat /proc/cpuinfo"))[0])
        unprobed = median(self._ticks("no probe", OFFSET, _nothing))
        host = median(self._stopped("no probe, by the host's clock", frequency, _nothing))
        stopped = self._stopped("optprobe, unoptimized", frequency, self._ours("breakpoint"))
        ours = self._ticks("optprobe, optimized", OFFSET, self._ours("optimized"))
        pairs = (Pair("optprobe", OFFSET, stopped, ours, host=True), self._linux(OFFSET), self._linux(EASY))
        return Report(frequency, unprobed, host, pairs)

    def _linux(self, offset: int) -> Pair:
        place = f"{FUNCTION}+{offset:#x}"
        name = f"Linux's event at +{offset:#x}"
        trapped = self._ticks(f"{name}, unoptimized", offset, lambda: self._event(place, False, ""))
        optimized = None
        if offset == EASY or self._optimizes(place):
            optimized = self._ticks(f"{name}, optimized", offset, lambda: self._event(place, True, "OPTIMIZED"))
        return Pair("Linux's", offset, trapped, optimized)

    def _event(self, place: str, optimization: bool, tag: str) -> AbstractContextManager[None]:
        return linux_event(self._reads.guest, place, optimization, tag)

    def _optimizes(self, place: str) -> bool:
        """Return whether Linux optimizes a kprobe there, after many jiffies."""
        with self._event(place, True, ""):
            return any(
                place in line and "OPTIMIZED" in line for line in self._reads.guest(f"sleep 1; {LIST}").splitlines()
            )

    def _ours(self, tier: str) -> Probed:
        @contextmanager
        def probed() -> Iterator[None]:
            self._debugger(f"optprobe add {FUNCTION}+{OFFSET:#x} -tier {tier}")
            self._debugger("optprobe commit")
            yield
            (probe,) = json.loads(self._debugger("optprobe list -json"))
            if probe["tier"] != tier or probe["hits"] < self._forks:
                raise DebuggerError(f"the probe is {probe['tier']} and counted {probe['hits']} of {self._forks} forks")
            self._debugger("optprobe delete")

        return probed

    def _ticks(self, name: str, offset: int, probe: Probed) -> tuple[float, ...]:
        say(f"{name}: {self._forks} forks")
        with probe():
            seen = self._fork(offset, ("r0", "r12"), ("behind",))
        return tuple(row["r12"] - row["r0"] for row in seen["behind"])

    def _stopped(self, name: str, frequency: int, probe: Probed) -> tuple[float, ...]:
        """Return ticks of the host's clock between GDB's stops before and behind the probe."""
        say(f"{name}: {self._forks} forks")
        with probe():
            seen = self._fork(OFFSET, (), ("before", "behind"))
        pairs = zip(seen["before"], seen["behind"], strict=True)
        return tuple((behind["arrived"] - before["left"]) * frequency for before, behind in pairs)

    def _fork(self, offset: int, registers: Sequence[str], places: Sequence[str]) -> Seen:
        """Return the registers that were seen at each place at the last forks."""
        moved = self._symbols[UNUSED]
        address = {"before": moved, "behind": moved + 4 * WORD}
        with self._instrumented(self._symbols[FUNCTION] + offset, moved):
            for place in places:
                self._debugger(f"python {place} = Sampler({address[place]:#x}, {list(registers)})")
            self._reads.guest(WORKLOAD.format(forks=self._forks))
            seen = {place: json.loads(self._debugger(f"python print({place}.report())")) for place in places}
            for place in places:
                self._debugger(f"python {place}.delete()")
        if any(len(rows) < self._forks for rows in seen.values()):
            raise DebuggerError(f"the guest forked {min(map(len, seen.values()))} times, not {self._forks}")
        return {place: rows[-self._forks :] for place, rows in seen.items()}

    @contextmanager
    def _instrumented(self, probed: int, moved: int) -> Iterator[None]:
        """Write mftb before and behind the instruction at `probed`; `moved` holds the two words that make room."""
        first, last = probed - WORD, probed + WORD
        with self._physical():
            code = [self._read(first), MFTB_R0, branch(moved + 2 * WORD, probed)]
            code += [MFTB_R12, self._read(last), branch(moved + 5 * WORD, last + WORD)]
            new = {first: branch(first, moved), last: branch(last, moved + 3 * WORD)}
            new |= {moved + WORD * index: word for index, word in enumerate(code)}
            old = {address: self._read(address) for address in new}
            # The guest is stopped: the order does not matter.
            for address, word in new.items():
                self._write(address, word)
        yield
        with self._physical():
            for address, word in old.items():
                self._write(address, word)

    @contextmanager
    def _physical(self) -> Iterator[None]:
        """Switch GDB to physical addresses: an interrupted program does not map the kernel at its virtual ones."""
        self._debugger("maintenance packet Qqemu.PhyMemMode:1")
        yield
        self._debugger("maintenance packet Qqemu.PhyMemMode:0")

    def _read(self, address: int) -> int:
        return int(self._debugger(f"output *(unsigned int *) {address - LINEAR:#x}"))

    def _write(self, address: int, word: int) -> None:
        self._debugger(f"set var *(unsigned int *) {address - LINEAR:#x} = {word:#x}")

    def _addresses(self, names: Sequence[str]) -> dict[str, int]:
        rows = self._reads.guest(f"grep -E ' [Tt] ({'|'.join(names)})$' /proc/kallsyms").split()
        return {name: int(address, 16) for address, _, name in zip(*[iter(rows)] * 3, strict=True)}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def branch(start: int, target: int) -> int:
    """Return the word of `b target` at `start`."""
    return BRANCH | target - start & REACH


def report(found: Report) -> list[str]:
    """Two columns and their ratio for each kind of probe."""
    forks = len(found.pairs[0].unoptimized)
    rows = [["", *(cell for pair in found.pairs for cell in (pair.name, f"+{pair.offset:#x}"))]]
    rows += [["fork", *("unoptimized", "optimized") * len(found.pairs)]]
    rows += [[str(fork + 1), *(cell for pair in found.pairs for cell in _cells(pair, fork))] for fork in range(forks)]
    rows += [["ratio", *(cell for pair in found.pairs for cell in ("", _ratio(pair)))]]
    return [
        f"Ticks of the timebase from before {FUNCTION}+{OFFSET:#x} to behind it.",
        "",
        *aligned(rows),
        "",
        NOTES.format(tick=1e9 / found.frequency, unprobed=found.unprobed, host=found.host, easy=EASY),
    ]


def _cells(pair: Pair, fork: int) -> tuple[str, str]:
    star = "*" if pair.host else ""
    return f"{pair.unoptimized[fork]:,.0f}{star}", "-" if pair.optimized is None else f"{pair.optimized[fork]:,.0f}"


def _ratio(pair: Pair) -> str:
    return "-" if pair.optimized is None else number(median(pair.unoptimized) / median(pair.optimized))


def as_json(found: Report) -> list[Mapping[str, object]]:
    """Return the results as JSON values."""
    return [
        {
            "type": "time_difference",
            "name": pair.name,
            "location": f"{FUNCTION}+{pair.offset:#x}",
            "unoptimized": [round(each) for each in pair.unoptimized],
            "unoptimized_by": "host" if pair.host else "timebase",
            "optimized": None if pair.optimized is None else [round(each) for each in pair.optimized],
            "unprobed": found.host if pair.host else found.unprobed,
            "frequency": found.frequency,
        }
        for pair in found.pairs
    ]
