"""Run the guest for a bounded time and say why it stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

import gdb


def is_stopped() -> bool:
    """Whether there is a guest and it stands still, so that its memory and registers can be used."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and not thread.is_running()


class HandsOver(Protocol):
    """Who may end a run at a hit.

    busy:     a hit is being run: an interrupt now would hit its handlers, and be lost.
    is_late:  asked at the end of each hit.
    was_late: whether that ended the run before.
    """

    busy: bool
    is_late: Callable[[], bool]

    def was_late(self) -> bool: ...


def never() -> bool:
    """A run without a bound."""
    return False


class _Alarm:
    """Interrupts the running guest after `seconds`, as the user's Ctrl-C would.

    Only a signal may be sent from another thread (GDB is not thread-safe before version 15). It is sent under a lock
    and only while the guest is being run, so that none arrives later; not during a hit, whose end sees that it is late.
    """

    def __init__(self, seconds: float, stops: HandsOver | None) -> None:
        self._stops = stops
        self._lock = threading.Lock()
        self._running = True
        self.fired = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def has_fired(self) -> bool:
        return self.fired

    def _fire(self) -> None:
        with self._lock:
            if self._running:
                self.fired = True
                if self._stops is None or not self._stops.busy:
                    os.kill(os.getpid(), signal.SIGINT)

    def cancel(self) -> None:
        with self._lock:
            self._running = False
        self._timer.cancel()


def run_for(seconds: float | None, stops: HandsOver | None = None) -> gdb.StopEvent | None:
    """Continue until something stops the guest or `seconds` pass (None: no bound); the stop, or None at the time's end.

    A Ctrl-C of the user's ends it too and comes back as the SignalEvent that it is. Where hits of ours follow so fast
    that the stub never sees GDB's interrupt, the next hit hands the guest over.
    """
    seen: list[gdb.StopEvent] = []
    gdb.events.stop.connect(seen.append)
    alarm = _Alarm(seconds, stops) if seconds is not None else None
    if stops is not None and alarm is not None:
        stops.is_late = alarm.has_fired
    try:
        # to_string keeps GDB's "[Switching to Thread …]" of every silent stop off the screen.
        gdb.execute("continue", to_string=True)
    except KeyboardInterrupt:
        # The alarm may ring before GDB has let the guest go.
        if alarm is None or not alarm.fired or not is_stopped():
            raise
        return None
    except gdb.error:
        # A hit that hands the guest over ends the commands of its breakpoint with an error.
        if stops is None or not stops.was_late():
            raise
        _swallow_interrupt()
        return None
    finally:
        if stops is not None:
            stops.is_late = never
        if alarm is not None:
            alarm.cancel()
        gdb.events.stop.disconnect(seen.append)
    last = seen[-1] if seen else None
    interrupted = isinstance(last, gdb.SignalEvent) and last.stop_signal == "SIGINT"
    if alarm is None or not alarm.fired:
        return last
    if not interrupted:
        _swallow_interrupt()
    return None if interrupted else last


def _swallow_interrupt() -> None:
    """The alarm rang just as the guest stopped for another reason: its signal must not hit the next command."""
    try:
        time.sleep(0.02)
        gdb.execute("print 0", to_string=True)
    except KeyboardInterrupt:
        return


def describe(stop: gdb.StopEvent) -> str:
    """Why the guest stopped, in words."""
    if isinstance(stop, gdb.BreakpointEvent):
        # A temporary breakpoint is gone by now.
        numbers = [str(breakpoint.number) for breakpoint in stop.breakpoints if breakpoint.is_valid()]
        return f"stopped at breakpoint {', '.join(numbers)}" if numbers else "stopped at a temporary breakpoint"
    if isinstance(stop, gdb.SignalEvent):
        return "interrupted" if stop.stop_signal == "SIGINT" else f"stopped by {stop.stop_signal}"
    return "stopped"
