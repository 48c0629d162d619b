"""Sourced into GDB by tests of the micro guest, whose answers are JSON lines.

probe-hazards [TIER]           put a probe on every hazard
probe-neighbours ARCH SEED N [NAME…]   in each function for that, and in those, probe every instruction, take some away;
                                       N times others of any tiers; and count
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator

import gdb

from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from tests.booted.micro_table import ENTRY, LAYOUTS, STATES, TIERS, Layout


def session_of_micro() -> Session:
    """The session, told what no tool can know of a guest without an operating system: where its saved PCs are.

    Stopped at `done` it has one vCPU with nothing on its stack.
    """
    session = current_session()
    saved = [SavedWords("the vCPU", 0, array("Q", [symbol_value("$pc")]))]
    session.target.guest.stacks_missing = ""  # type: ignore[misc]
    session.target.guest.saved = lambda: saved  # type: ignore[method-assign]
    return session


def symbol_value(expression: str) -> int:
    return int(gdb.parse_and_eval(f"(unsigned long){expression}"))


def word(address: int) -> int:
    return int.from_bytes(bytes(gdb.selected_inferior().read_memory(address, 8)), "little")


def symbol(name: str) -> int:
    return symbol_value(f"&{name}")


def hazards() -> Iterator[tuple[str, int]]:
    """Name and entry of each."""
    for entry in range(symbol("hazards"), symbol("hazards_end"), ENTRY.size):
        yield gdb.Value(word(entry)).cast(gdb.lookup_type("char").pointer()).string(), entry


class ProbeHazards(gdb.Command):
    """Probe every hazard: its tier, or why it was refused."""

    def __init__(self) -> None:
        super().__init__("probe-hazards", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session = session_of_micro()
        outcome: dict[str, list[object]] = {}
        for name, entry in hazards():
            if argument == "breakpoint" and name == "interrupted_rep":
                outcome[name] = [0, "each of its millions of turns would be a stop"]
                continue
            try:
                (view,) = session.add(Spec(f"*{word(entry + 16):#x}", tier=argument))
                outcome[name] = [view.number, view.tier]
            except OptprobeError as error:
                outcome[name] = [0, str(error)]
        gdb.write(json.dumps(outcome) + "\n")


class ProbeNeighbours(gdb.Command):
    """For each function: [hits of GDB's own breakpoints, [[hits of ours, tiers, whether results are equal], …]]."""

    _layout: Layout

    def __init__(self) -> None:
        super().__init__("probe-neighbours", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        arch, seed, times, *others = argument.split()
        self._layout, rng = LAYOUTS[arch], random.Random(int(seed))
        session = session_of_micro()
        outcome = {}
        for number, (name, entry) in enumerate(hazards()):
            if name.startswith("neighbours") or name in others:
                gdb.execute(f"set var *(long*)&only = {number}")
                insns = self._instructions(word(entry + 16), word(entry + 24))
                expected, hits = self._counted_by_gdb(insns, number)
                usual = [""] * len(insns)
                rounds = [
                    *(self._without(session, insns, usual, gone, number, expected) for gone in self._gone(insns)),
                    *(
                        self._without(session, insns, rng.choices(TIERS, k=len(insns)), gone, number, expected)
                        for gone in self._some(insns, rng, int(times))
                    ),
                ]
                outcome[name] = [hits, rounds]
        gdb.execute("set var *(long*)&only = -1")
        # Behind all that GDB itself has said meanwhile.
        gdb.write(f"@@neighbours\n{json.dumps(outcome)}\n")

    def _gone(self, insns: list[int]) -> Iterator[list[int]]:
        """Which are deleted again: none, and each alone."""
        yield []
        yield from ([insn] for insn in insns)

    def _some(self, insns: list[int], rng: random.Random, times: int) -> Iterator[list[int]]:
        for _ in range(times):
            yield rng.sample(insns, rng.randrange(len(insns)))

    def _instructions(self, start: int, end: int) -> list[int]:
        lines = gdb.execute(f"disassemble/r {start:#x},{end:#x}", to_string=True).splitlines()
        return [int(line.split()[0], 16) for line in lines if line.strip().startswith("0x")]

    def _counted_by_gdb(self, insns: list[int], number: int) -> tuple[list[bytes], list[int]]:
        """What a run leaves, and how often each instruction runs, by GDB's own breakpoints."""
        points = [gdb.Breakpoint(f"*{insn:#x}", internal=True) for insn in insns]
        for point in points:
            point.ignore_count = 1 << 30
        left = self._run(number)
        hits = [point.hit_count for point in points]
        for point in points:
            point.delete()
        return left, hits

    def _run(self, number: int) -> list[bytes]:
        gdb.execute("set var *(long*)&go = 1")
        gdb.execute("tbreak *&done", to_string=True)
        gdb.execute("continue", to_string=True)
        size = self._layout.record * STATES
        left = gdb.selected_inferior().read_memory(symbol("results") + number * size, size)
        return self._layout.settled(bytes(left))

    def _without(
        self,
        session: Session,
        insns: list[int],
        tiers: list[str],
        gone: list[int],
        number: int,
        expected: list[bytes],
    ) -> list[object]:
        probes = {insn: _added(session, insn, tier) for insn, tier in zip(insns, tiers, strict=True)}
        if gone:
            session.delete([probes.pop(insn) for insn in gone])
        equal = self._run(number) == expected
        views = {view.number: view for view in session.views(list(probes.values()))}
        hits = [views[probes[insn]].hits if insn in probes else None for insn in insns]
        had = [view.tier for view in views.values()]
        session.delete(list(probes.values()))
        return [hits, had, equal]


def _added(session: Session, insn: int, tier: str) -> int:
    """The number of a probe of that tier; of its best one where it cannot have that."""
    try:
        return session.add(Spec(f"*{insn:#x}", tier=tier))[0].number
    except Refused:
        return session.add(Spec(f"*{insn:#x}"))[0].number


ProbeHazards()
ProbeNeighbours()
