"""Traces of the guest's own: which are kept, how many, and when the guest stops for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes import guest_traces
from gdb_optprobe.probes.guest_traces import MOST, MOST_STOPS, GuestTraces
from gdb_optprobe.probes.kernel_rethooks import KernelRethooks
from gdb_optprobe.probes.stops import Caller, Hit
from tests.fake_guest import FakeDebugger, FakeGuest, program

PRINTER = 0x1000_0040
SP = 0x2000_3000


@dataclass(frozen=True)
class Debugger(FakeDebugger):
    """One whose guest is stopped with these callers."""

    stack: list[Caller] = field(default_factory=list)

    def callers(self, hit: Hit) -> Sequence[Caller]:
        return tuple(self.stack)


@dataclass
class Printing:
    """A guest that prints traces. values: of expressions at the hit. calls: stack addresses of calls under way."""

    guest: FakeGuest
    stack: list[Caller]
    values: dict[str, str]
    calls: list[int]
    traces: GuestTraces

    def print(self, times: int = 1) -> None:
        for _ in range(times):
            for point in [*self.guest.stops.points.get(PRINTER, [])]:
                hit = Hit(PRINTER, 0, {}, self.guest.machine.read, lambda values: None)
                assert point.on_hit(hit) is None

    @property
    def stops(self) -> int:
        return len(self.guest.stops.points.get(PRINTER, []))


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch) -> Printing:
    guest, calls = program(), list[int]()
    stack = [Caller(0x1000_0010, SP, exact=False, hidden=False), Caller(0x1000_0020, SP + 64, exact=True, hidden=True)]
    values = {guest_traces.OWN: "1", "$pid": "97", "$comm": '"sh"', "$cpu": "1"}

    def value_lines(text: str, hit: Hit, of: object) -> list[str]:
        if text not in values:
            raise OptprobeError("not known")
        return [values[text]]

    monkeypatch.setattr(guest_traces, "value_lines", value_lines)
    monkeypatch.setattr(FakeGuest, "trace_printer", PRINTER)
    monkeypatch.setattr(KernelRethooks, "shared_calls", lambda *_: iter(calls))
    traces = GuestTraces(replace(guest.target, debugger=Debugger(guest, stack)), KernelRethooks())
    traces.watch(True)
    return Printing(guest, stack, values, calls, traces)


def test_a_trace_has_its_thread_and_what_was_interrupted(printing: Printing) -> None:
    printing.print()
    (found,) = printing.traces.views()
    assert (found.pid, found.name, found.cpu, found.is_cut, found.left_out) == (97, "sh", 1, False, 0)
    (caller, interrupted) = found.frames
    assert (caller.address, caller.is_interrupted) == (0x1000_0010, False)
    assert (interrupted.address, interrupted.is_interrupted) == (0x1000_0020, True)


def test_what_the_guest_has_whole_is_not_kept(printing: Printing) -> None:
    printing.stack[1] = replace(printing.stack[1], hidden=False)
    printing.print()
    assert printing.traces.views() == ()


@pytest.mark.parametrize("own", [{guest_traces.OWN: "0"}, {}])
def test_a_trace_of_another_thread_is_not_kept(printing: Printing, own: Mapping[str, str]) -> None:
    del printing.values[guest_traces.OWN]
    printing.values.update(own)
    printing.print()
    assert printing.traces.views() == ()


def test_a_thread_that_is_not_known(printing: Printing) -> None:
    for name in ("$pid", "$comm", "$cpu"):
        del printing.values[name]
    printing.print()
    (found,) = printing.traces.views()
    assert (found.pid, found.name, found.cpu) == (None, "", None)


def test_a_call_beyond_the_last_frame_cuts_the_trace(printing: Printing) -> None:
    """A call on another stack, or of a frame that is there, does not."""
    printing.calls[:] = [SP + 64, SP + 0x4000]
    printing.print()
    printing.calls.append(SP + 128)
    printing.print()
    assert [found.is_cut for found in printing.traces.views()] == [False, True]


def test_few_are_kept_and_few_stop_the_guest(printing: Printing) -> None:
    printing.print(MOST + 3)
    *_, last = found = printing.traces.views()
    assert (len(found), last.left_out, printing.stops) == (MOST, 3, 1)
    printing.print(MOST_STOPS)
    assert printing.stops == 0
    printing.traces.watch(True)
    assert printing.stops == 0
    printing.traces.clear()
    printing.traces.watch(True)
    printing.print()
    assert printing.stops == len(printing.traces.views()) == 1


def test_the_guest_stops_only_while_that_is_wanted(printing: Printing) -> None:
    printing.traces.watch(True)
    assert printing.stops == 1
    printing.print()
    printing.traces.watch(False)
    assert printing.stops == 0 and len(printing.traces.views()) == 1
