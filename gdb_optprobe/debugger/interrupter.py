"""Stop the guest at a Ctrl-C, or when the time of a run is up, whatever GDB does at that moment.

GDB passes a Ctrl-C on as a byte, which QEMU obeys only while the guest runs: a byte sent while GDB handles a hit is
lost. A Ctrl-C while our Python runs would interrupt it, and after a second Ctrl-C GDB may give up the connection.
So, while the guest runs, SIGINT is blocked in GDB's thread, and another thread takes it:

    SIGINT, or the time is up ──► post a command `interrupt` to GDB's event loop
                                  repeat it until the run has ended, because a hit may have made QEMU miss it
No command may be left in the loop at the end of a run (event_loop.py). So none is posted while GDB reports a stop,
however long that takes, nor while one is on its way to QEMU.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import gdb

from gdb_optprobe.debugger.event_loop import post
from gdb_optprobe.interrupts import CTRL_C, send_again

AGAIN = 0.05
"""Seconds after which the command is repeated where a hit has come between."""
ANYWAY = 1.0
"""Seconds after which it is repeated where no hit has come between."""
PATIENCE = 5.0
"""Seconds after which another Ctrl-C goes to GDB, which offers to give up a guest that does not respond."""


def is_stopped() -> bool:
    """Return whether there is a guest and it is stopped, so that its memory and registers can be used."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and not thread.is_running()


def is_running() -> bool:
    """Return whether there is a guest and it runs."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and thread.is_running()


_active: list[Interrupter] = []


def mark_stopped(_: object = None) -> None:
    """Mark the guest stopped: GDB is about to report a stop. Connect this before any other listener."""
    for interrupter in _active:
        interrupter.is_stopped = True


def mark_running(_: object = None) -> None:
    """Mark the guest running, after a stop or a hit. A command on its way to QEMU may be lost."""
    for interrupter in _active:
        interrupter.is_stopped, interrupter.missed = False, True


class Interrupter:
    """Stops the guest at a Ctrl-C or after `seconds` (None: no limit), from its creation until `end`, in GDB's thread.

    heeds:   whether a Ctrl-C stops the guest; else it waits for the end.
    is_late: whether the time was up first.
    is_stopped: GDB reports a stop. missed: QEMU may have missed the last command.
    """

    def __init__(self, seconds: float | None = None, heeds: bool = True) -> None:
        self._seconds = seconds
        self._heeds = heeds
        self._asked = False
        self.is_late = self.is_stopped = False
        self.missed = True
        self._ending = False
        self._over = threading.Event()
        self._ends = threading.Lock()
        self._hurried = False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        _active.append(self)
        self._thread.start()

    def asked(self) -> bool:
        """Return whether the guest must stop."""
        return self._asked

    def hurry(self) -> None:
        """Let the time be up now; any thread may call this, at any time. Use it where a Ctrl-C is heeded."""
        with self._ends:
            if not self._ending:
                self._hurried = True
                self._wake()

    def _wake(self) -> None:
        assert self._heeds and self._thread.ident is not None
        signal.pthread_kill(self._thread.ident, signal.SIGINT)

    def end(self) -> None:
        """End the run. A Ctrl-C that has not stopped the guest goes to GDB."""
        with self._ends:
            self._ending = True
            _active.remove(self)
            if self._heeds:
                self._wake()
            self._over.set()
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    # in the thread, which lives until `_over` ----------------------------------------------------------------------

    def _wait(self) -> None:
        self.is_late = not self._comes(self._seconds) or self._hurried
        since = last = time.monotonic()
        self._asked = not self._ending
        while not self._ending:
            now = time.monotonic()
            if not self.is_stopped and (self.missed or now - last >= ANYWAY):
                self.missed, last = False, now
                post(self._interrupt)
            if self._comes(AGAIN) and not self._ending and time.monotonic() - since > PATIENCE:
                post(self._give_up)
                break
        self._over.wait()

    def _comes(self, seconds: float | None) -> bool:
        """Wait for a Ctrl-C or the end. Return whether one came within `seconds`."""
        if not self._heeds:
            return self._over.wait(seconds)
        if seconds is None:
            return signal.sigwaitinfo(CTRL_C) is not None
        return signal.sigtimedwait(CTRL_C, max(seconds, 0)) is not None

    # in GDB's event loop -------------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        if not self._ending and is_running():
            gdb.execute("interrupt", to_string=True)

    def _give_up(self) -> None:
        if not self._ending:
            # After this event GDB's own handler gets the signal, and passes it to the remote target.
            send_again()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)


@contextmanager
def interrupting(seconds: float | None, heeds: bool = True) -> Iterator[Interrupter]:
    """Stop the guest at a Ctrl-C, if `heeds`, or after `seconds`, while it runs within the block."""
    interrupter = Interrupter(seconds, heeds)
    try:
        yield interrupter
    finally:
        interrupter.end()
