"""Run the guest for a bounded time and say why it stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Literal, Protocol, TypeAlias

import gdb

from gdb_optprobe.debugger.interrupter import interrupting, is_stopped

__all__ = ["HandsOver", "Interrupted", "describe", "is_stopped", "never", "run_for"]

Interrupted: TypeAlias = Literal["interrupted"]


class HandsOver(Protocol):
    """Who may end a run at a hit.

    asked:       asked at the end of each hit, whether the guest is to stop.
    handed_over: whether that ended the run before.
    """

    asked: Callable[[], bool]

    def handed_over(self) -> bool: ...


def never() -> bool:
    """A run without a bound."""
    return False


def run_for(
    seconds: float | None, stops: HandsOver | None = None, heeds: bool = True
) -> gdb.StopEvent | Interrupted | None:
    """Continue until something stops the guest or `seconds` pass (None: no bound); the stop, or None at the time's end.

    What Python handlers print is shown at its end. A Ctrl-C of the user's ends it too, if that is heeded. Where hits of
    ours follow so fast that the stub never sees GDB's interrupt, the next hit hands the guest over.
    """
    seen: list[gdb.StopEvent] = []
    said = StringIO()
    gdb.events.stop.connect(seen.append)
    handed_over = False
    try:
        with interrupting(seconds, heeds) as interrupter:
            if stops is not None:
                stops.asked = interrupter.asked
            # to_string keeps GDB's "[Switching to Thread …]" of silent stops off the screen, but not handlers' words.
            with redirect_stdout(said):
                gdb.execute("continue", to_string=True)
    except gdb.error:
        # A hit that hands the guest over ends the commands of its breakpoint with an error.
        handed_over = stops is not None and stops.handed_over()
        if not handed_over:
            raise
    else:
        # But for one whose probe moved up at this stop: the breakpoint has gone, with its commands.
        handed_over = stops is not None and stops.handed_over()
    finally:
        print(said.getvalue(), end="")
        if stops is not None:
            stops.asked = never
        gdb.events.stop.disconnect(seen.append)
    last = seen[-1] if seen else None
    if handed_over or (isinstance(last, gdb.SignalEvent) and last.stop_signal == "SIGINT"):
        return None if interrupter.is_late else "interrupted"
    return last


def describe(stop: gdb.StopEvent | Interrupted) -> str:
    """Why the guest stopped, in words."""
    if stop == "interrupted":
        return stop
    if isinstance(stop, gdb.BreakpointEvent):
        # A temporary breakpoint is gone by now.
        numbers = [str(breakpoint.number) for breakpoint in stop.breakpoints if breakpoint.is_valid()]
        return f"stopped at breakpoint {', '.join(numbers)}" if numbers else "stopped at a temporary breakpoint"
    if isinstance(stop, gdb.SignalEvent):
        return f"stopped by {stop.stop_signal}"
    return "stopped"
