"""Run the guest for a bounded time and say why it stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from typing import Literal, Protocol, TypeAlias

import gdb

from gdb_optprobe.debugger.interrupter import interrupting, is_running, is_stopped
from gdb_optprobe.debugger.stop_report import StopReport
from gdb_optprobe.debugger.ticks import Ticker
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.target import Ticks

__all__ = ["HandsOver", "Interrupted", "NotAwaited", "describe", "is_stopped", "never", "run_for"]

Interrupted: TypeAlias = Literal["interrupted"]


class NotAwaited(OptprobeError):
    """GDB has let the guest run and does not wait for it; no stop is seen any more."""

    def __init__(self) -> None:
        super().__init__(
            "GDB ends without waiting for the guest, which must run for this",
            "'optprobe recover -remove' in a new GDB takes out what is left; 'quit' ends GDB in order",
        )


class HandsOver(Protocol):
    """What can end a run at a hit.

    asked:       called at the end of each hit; returns whether the guest must stop.
    """

    asked: Callable[[], bool]

    def handed_over(self) -> bool:
        """Return whether a hit has ended the run, since the last call of this."""


class Ends(Protocol):
    """What a run may wait for."""

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` when it has ended, in any thread; now, where it has. It replaces what was given before."""


def never() -> bool:
    """Return False: a run without a limit is never asked to stop."""
    return False


class _Continue(gdb.Command):
    """A hidden command that continues, and waits for the commands at breakpoints by which hits resume the guest.

    At a prompt, GDB 13 does not wait for these behind a command of Python's (execute_gdb_command in python.c): it would
    return with the guest running. Within another command it does.
    """

    def __init__(self) -> None:
        super().__init__("optprobe-run-on", gdb.COMMAND_OBSCURE)
        self._failure: gdb.error | None = None

    def run(self) -> None:
        """Raises gdb.error."""
        gdb.execute("optprobe-run-on")
        if self._failure is not None:
            raise self._failure

    def invoke(self, argument: str, from_tty: bool) -> None:
        try:
            gdb.execute("continue", to_string=True)
        except gdb.error as failure:
            self._failure = failure


def run_for(
    seconds: float | None,
    stops: HandsOver | None = None,
    heeds: bool = True,
    until: Ends | None = None,
    ticks: Ticks | None = None,
) -> gdb.StopEvent | Interrupted | None:
    """Continue until something stops the guest or `seconds` pass (None: no limit). Return the stop, or None when late.

    Printed at the end: the output of Python handlers and of commands at the user's breakpoints, and what GDB prints of
    a stop that is not ours. Where hits follow each other so fast that the stub never sees GDB's interrupt, the next hit
    stops the guest.

    heeds: whether a Ctrl-C of the user ends the run too. until: when this has ended, the time is up. ticks: what is
    done meanwhile; when that wants to end, the time is up too. What it raises is raised at the end.

    Raises NotAwaited, with the guest running, where GDB is about to end and does not wait.
    """
    seen: list[gdb.StopEvent] = []
    ticker: Ticker | None = None
    said, report = StringIO(), StopReport()
    gdb.events.stop.connect(seen.append)
    handed_over = False
    try:
        with interrupting(seconds, heeds) as interrupter, ExitStack() as within:
            if stops is not None:
                stops.asked = interrupter.asked
            if until is not None:
                until.when_ended(interrupter.hurry)
            if ticks is not None:
                within.callback((ticker := Ticker(ticks, interrupter.hurry)).end)
            # to_string keeps GDB's "[Switching to Thread …]" of silent stops off the screen, but not handlers' words.
            with report, redirect_stdout(said):
                _Continue().run()
        # At its end by Ctrl-D or by a signal GDB shows a prompt, so that no command waits for the guest
        # (all_uis_on_sync_execution_starting in infrun.c).
        if is_running():
            raise NotAwaited
    except gdb.error:
        # A hit that stops the guest for us ends the commands of its breakpoint with an error.
        handed_over = stops is not None and stops.handed_over()
        if not handed_over:
            report.print()
            raise
    else:
        # There is no error where the probe moved up at this stop: its breakpoint is deleted, with the commands.
        handed_over = stops is not None and stops.handed_over()
    finally:
        print(said.getvalue(), end="")
        if stops is not None:
            stops.asked = never
        gdb.events.stop.disconnect(seen.append)
    last = seen[-1] if seen else None
    is_interrupt = handed_over or (isinstance(last, gdb.SignalEvent) and last.stop_signal == "SIGINT")
    is_ours = is_interrupt and interrupter.is_late
    report.print(is_ours)
    if ticker is not None and ticker.failure is not None:
        raise ticker.failure
    if is_ours:
        return None
    return "interrupted" if is_interrupt else last


def describe(stop: gdb.StopEvent | Interrupted) -> str:
    """Return why the guest stopped, as text."""
    if stop == "interrupted":
        return stop
    if isinstance(stop, gdb.BreakpointEvent):
        # A temporary breakpoint is gone by now. Ours have negative numbers.
        theirs = [breakpoint for breakpoint in stop.breakpoints if breakpoint.is_valid() and breakpoint.number > 0]
        numbers = [str(breakpoint.number) for breakpoint in theirs]
        return f"stopped at breakpoint {', '.join(numbers)}" if numbers else "stopped at a temporary breakpoint"
    if isinstance(stop, gdb.SignalEvent):
        return f"stopped by {stop.stop_signal}"
    return "stopped"
