"""Run the guest for a bounded time and say why it stopped."""

from __future__ import annotations

import os
import signal
import threading
import time

import gdb


def is_stopped() -> bool:
    """Whether there is a guest and it stands still, so that its memory and registers can be used."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and not thread.is_running()


class _Alarm:
    """Interrupts the running guest after `seconds`, as the user's Ctrl-C would.

    Only a signal may be sent from another thread (GDB is not thread-safe before version 15). It is sent under a lock
    and only while the guest is being run, so that none arrives later.
    """

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._running = True
        self.fired = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _fire(self) -> None:
        with self._lock:
            if self._running:
                self.fired = True
                os.kill(os.getpid(), signal.SIGINT)

    def cancel(self) -> None:
        with self._lock:
            self._running = False
        self._timer.cancel()


def run_for(seconds: float | None) -> gdb.StopEvent | None:
    """Continue until something stops the guest or `seconds` pass (None: no bound); the stop, or None at the time's end.

    A Ctrl-C of the user's ends it too and comes back as the SignalEvent that it is.
    """
    stops: list[gdb.StopEvent] = []
    gdb.events.stop.connect(stops.append)
    alarm = _Alarm(seconds) if seconds is not None else None
    try:
        # to_string keeps GDB's "[Switching to Thread …]" of every silent stop off the screen.
        gdb.execute("continue", to_string=True)
    finally:
        if alarm is not None:
            alarm.cancel()
        gdb.events.stop.disconnect(stops.append)
    last = stops[-1] if stops else None
    interrupted = isinstance(last, gdb.SignalEvent) and last.stop_signal == "SIGINT"
    if alarm is not None and alarm.fired and not interrupted:
        _swallow_interrupt()
    return None if alarm is not None and alarm.fired and interrupted else last


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
