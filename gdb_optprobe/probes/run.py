"""The guest runs for a time, until a probe has its hits, or until nothing waits any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreadable
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest.machine import Machine, Memory
from gdb_optprobe.probes import deleted_views
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.quiescence_wait import describe_busy_slots, describe_waits
from gdb_optprobe.probes.read_results import read_results
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.target import Command, Target, Ticks
from gdb_optprobe.probes.user.uprobes import Uprobes

SLICE = 0.1
LONGEST_SLICE = 1.0
"""Seconds between two looks at what a run waits for: at first, and at most."""
STILL_RUNS = "the command still runs in the guest; another waits until it ends"
NOT_BEGUN = "the guest has not begun the command yet: it may still run it"
NOT_SENT = "the guest has not booted so far that it takes a command: it was not sent"


@dataclass
class _Looks:
    """What is done again and again while the guest runs, or at stops: see Runs.run."""

    machine: Machine
    every: float
    then: Callable[[bool], float | None]
    live: LiveMemory | None

    def __post_init__(self) -> None:
        self._due = time.monotonic() + self.every

    @property
    def left(self) -> float:
        """Return the seconds until it is done next."""
        return self._due - time.monotonic()

    def look(self, runs: bool) -> float:
        """Do it. Return the seconds until the next time."""
        pause = self.then(runs) or self.every
        self._due = time.monotonic() + pause
        return pause

    def ticks(self) -> Ticks | None:
        """Return how it is done while the guest runs; None where only stops can."""
        return Ticks(max(self.left, 0), self._tick) if self.live is not None else None

    def _tick(self) -> float | None:
        assert self.live is not None
        try:
            with self.machine.reading(self.live):
                return self.look(runs=True)
        except NeedsStop:
            pass
        except Unreadable:
            self.live = None
        self._due = time.monotonic()
        return None


@dataclass(frozen=True)
class Runs:
    """Lets the guest run for a session.

    hits: returns those of the probe with a number. is_same_guest: whether the guest is still the one of before."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    uprobes: Uprobes
    hits: Callable[[int], int]
    is_same_guest: Callable[[], bool]
    check_alive: Callable[[], None]

    def run(
        self,
        seconds: float | None = None,
        until_hits: tuple[int, int] | None = None,
        timeout: float | None = None,
        guest: str = "",
        every: float | None = None,
        then: Callable[[bool], float | None] = bool,
        live: LiveMemory | None = None,
    ) -> str:
        """Let the guest run. Return why it stopped, how long it ran, and the hits.

        then: what is done after `every` seconds. It gets whether the guest runs then, and returns after how many
        seconds it is done again; None: as before. live: reads the memory meanwhile. Without it, and where `then`
        raises NeedsStop, it is done at a stop.
        guest: a command in the guest; the run ends with it.
        Raises OptprobeError when `timeout` seconds pass first.
        """
        if until_hits is not None:
            self.hits(until_hits[0])  # there must be one of this number
        command = self.target.debugger.begin(guest) if guest else None
        try:
            looks = _Looks(self.target.guest.machine, every, then, live) if every is not None else None
            said = self._run(seconds, until_hits, timeout, command, looks)
            if command is None or command.outcome() or not self.is_same_guest():
                return said
            without = NOT_BEGUN if command.is_sent else NOT_SENT
            return f"{said}\n{STILL_RUNS if command.has_begun else without}"
        finally:
            if command is not None:
                command.close()

    def _run(
        self,
        seconds: float | None,
        until_hits: tuple[int, int] | None,
        timeout: float | None,
        command: Command | None,
        looks: _Looks | None,
    ) -> str:
        before, counted, start = self._hits_by_number(), 0, time.monotonic()
        bound = min((limit for limit in (seconds, timeout) if limit is not None), default=None)
        pause = SLICE
        while True:
            elapsed = time.monotonic() - start
            if until_hits is not None and (hits := self.hits(until_hits[0])) >= until_hits[1]:
                return f"probe {until_hits[0]} has {hits} hits\n{self._ran(elapsed, before, counted)}"
            if command is not None and (outcome := command.outcome()):
                return f"{outcome}\n{self._ran(elapsed, before, counted)}"
            if looks is not None and looks.left <= 0:
                counted += self._hits_since(before)
                looks.look(runs=False)
                before = self._hits_by_number()
                elapsed = time.monotonic() - start
            left = None if bound is None else bound - elapsed
            if left is not None and left <= 0:
                break
            ticks = looks.ticks() if looks is not None else None
            due = looks.left if looks is not None and ticks is None else None
            limits = (left, pause if until_hits is not None else None, due)
            longest = min((limit for limit in limits if limit is not None), default=None)
            reason = self.target.debugger.run(longest, command, ticks)
            if reason is not None:
                return f"{reason}\n{self._ran(time.monotonic() - start, before, counted)}"
            pause = min(pause * 2, LONGEST_SLICE)
        if timeout is not None and (seconds is None or timeout < seconds):
            raise OptprobeError(f"nothing stopped the guest within {timeout:g} s{self._hits(before, counted)}")
        return self._ran(seconds or 0, before, counted)

    def watch(
        self,
        look: Callable[[Memory, bool], bool],
        live: LiveMemory | None,
        every: float,
        seconds: float | None = None,
        keys: int | None = None,
    ) -> str:
        """Let the guest run and look at it again and again. Return why it stopped, how long it ran, and the hits.

        look: gets the memory, and whether the guest runs; it returns whether the run continues. live: reads the
        memory while the guest runs; without it the guest is stopped for each look. keys: see Ticks.
        """

        def act(memory: Memory) -> float | None:
            return every if look(memory, True) else None

        before, start = self._hits_by_number(), time.monotonic()
        reason: str | None = None
        while reason is None:
            left = None if seconds is None else start + seconds - time.monotonic()
            if left is not None and left <= 0:
                break
            if live is not None:
                try:
                    reason = self.target.debugger.run(left, ticks=Ticks(every, partial(act, live), keys))
                    break
                except (NeedsStop, Unreadable):
                    live = None
                    continue
            reason = self.target.debugger.run(every if left is None else min(every, left))
            if reason is None and not look(self.target.guest.machine, False):
                break
        ran = self._ran(time.monotonic() - start, before, 0)
        return ran if reason is None else f"{reason}\n{ran}"

    def _ran(self, seconds: float, before: Mapping[int, int], counted: int) -> str:
        return f"ran for {seconds:.3g} s{self._hits(before, counted)}"

    def _hits(self, before: Mapping[int, int], counted: int) -> str:
        """Return the hits of all probes as text: `counted`, and those since `before`; "" where no probe is left."""
        probes = len(self.registry)
        if not probes or not self.is_same_guest():
            return ""
        hits = counted + self._hits_since(before)
        return f": {hits:,} {'hit' if hits == 1 else 'hits'} of {probes} {'probe' if probes == 1 else 'probes'}"

    def _hits_since(self, before: Mapping[int, int]) -> int:
        # A handler may have cleared a probe's count.
        return sum(max(0, count - before.get(number, 0)) for number, count in self._hits_by_number().items())

    def _hits_by_number(self) -> dict[int, int]:
        found = read_results(self.registry.single_probes(), self.target.guest)
        counted = {number: results.hits for number, results in found.items()}
        for block in self.registry.blocks:
            hits = block.hits(self.target.guest.machine.read(block.data.address, block.data.size))
            counted |= zip([block.first + index for index in block.members], hits, strict=True)
        return counted

    def commit(self, timeout: float = 10.0, tell: Callable[[str], object] = str) -> tuple[str, ...]:
        """Run the guest in slices until nothing waits to be optimized or reclaimed. tell: gets what still waits."""
        self.check_alive()
        deadline, before = time.monotonic() + timeout, (0, 0)
        while True:
            self.uprobes.tidy()
            self.optimizer.retry()
            waiting = [site for site in self.registry.sites() if site.blocked_by]
            dirty = self.optimizer.reclaim()
            if not waiting and not dirty:
                deleted = deleted_views.deleted_views(self.optimizer, self.uprobes)
                return "everything is settled", *deleted_views.describe(deleted)
            why = "; ".join(describe_waits(waiting, self.target.guest))
            late, changed = time.monotonic() >= deadline, before != (before := (len(waiting), dirty))
            if late or changed:
                why = why or self.optimizer.collector.blocked_by or self._in_slots()
            if late:
                raise OptprobeError(
                    f"after {timeout:g} s {_unsettled(len(waiting), dirty)}: {why}",
                    "this continues at later stops: continue, or commit with a longer -timeout",
                )
            if changed:
                tell(f"{_unsettled(len(waiting), dirty)}: {why}")
            if (reason := self.target.debugger.run(SLICE)) is not None:
                raise OptprobeError(f"the guest was stopped before all was settled: {reason}")

    def _in_slots(self) -> str:
        """Return which threads are in freed slots, in words."""
        inside = ""
        if (arena := self.optimizer.arena) is not None:
            inside = describe_busy_slots(self.optimizer.collector.unsettled(arena), self.target.guest)
        return inside or "code that is left may come to them"


def _unsettled(waiting: int, dirty: int) -> str:
    parts = [
        "1 address waits" if waiting == 1 else f"{waiting} addresses wait" if waiting else "",
        "1 freed slot is in use" if dirty == 1 else f"{dirty} freed slots are in use" if dirty else "",
    ]
    return ", ".join(filter(None, parts))
