"""Sourced into GDB by tests of the micro guest, whose answers are JSON lines.

probe-returns ARCH N    the return of every Nth function of the table, some at once: what runs leave with them
"""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from tests.booted.micro_table import LAYOUTS, STATES, Layout
from tests.booted.probe_hazards import hazards, session_of_micro, symbol, word

COMPUTES = "call_back_to_site"
"""Returns to an address that it computes, within the bytes of a branch at its entry."""
AT_ONCE = 40
"""Their code fills half of the arena."""


def run() -> None:
    gdb.execute("set var *(long*)&go = 1")
    gdb.execute("tbreak *&done", to_string=True)
    gdb.execute("continue", to_string=True)


def results(layout: Layout, number: int) -> list[bytes]:
    size = layout.record * STATES
    left = gdb.selected_inferior().read_memory(symbol("results") + number * size, size)
    return layout.settled(bytes(left))


class ProbeReturns(gdb.Command):
    """By name: why a function was refused, or "", its calls by ours, which words of its results differ, and whether it
    is run: not what the CPU lacks.

    A function sees the address that it returns to: where that is a trampoline of ours it stands for the caller's.
    """

    def __init__(self) -> None:
        super().__init__("probe-returns", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        arch, every = argument.split()
        session, layout = session_of_micro(), LAYOUTS[arch]
        functions = [(number, hazard) for number, hazard in enumerate(hazards()) if hazard[0] != COMPUTES][
            :: int(every)
        ]
        caller = int(gdb.parse_and_eval("(unsigned long)&returned"))
        run()
        before = {number: results(layout, number) for number, _ in functions}
        outcome = {}
        for first in range(0, len(functions), AT_ONCE):
            some = functions[first : first + AT_ONCE]
            added = {number: self._added(session, word(entry + 8)) for number, (_, entry) in some}
            run()
            ours = {point.trampoline.detour.address for point in session.optimizer.rethooks.known if point.trampoline}
            for number, (name, _) in some:
                probe = added[number]
                left = [_seen_by_caller(record, ours, caller) for record in results(layout, number)]
                calls = session.views([probe])[0].calls if isinstance(probe, int) else None
                outcome[name] = [
                    probe if isinstance(probe, str) else "",
                    [calls.returns, calls.missed, calls.dropped, calls.active] if calls is not None else [],
                    _differing(before[number], left),
                    any(map(any, before[number])),
                ]
            session.delete([probe for probe in added.values() if isinstance(probe, int)])
        gdb.write(f"@@returns\n{json.dumps(outcome)}\n")

    def _added(self, session: Session, function: int) -> int | str:
        try:
            return session.add(Spec(f"*{function:#x}", Kind.KRETPROBE, maxactive=2))[0].number
        except OptprobeError as error:
            return str(error)


def _differing(before: list[bytes], left: list[bytes]) -> list[int]:
    """The numbers of the words that any of the records has otherwise."""
    pairs = [
        zip(memoryview(old).cast("Q"), memoryview(new).cast("Q"), strict=True)
        for old, new in zip(before, left, strict=True)
    ]
    return sorted({at for pair in pairs for at, (old, new) in enumerate(pair) if old != new})


def _seen_by_caller(record: bytes, ours: set[int], caller: int) -> bytes:
    words = memoryview(record).cast("Q")
    return b"".join((caller if each in ours else each).to_bytes(8, "little") for each in words)


ProbeReturns()
