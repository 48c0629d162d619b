"""Stops the guest at a Ctrl-C, or when the time of a run is up, whatever GDB is at just then.

GDB passes a Ctrl-C on as a byte, which QEMU heeds only while the guest runs: one that comes while GDB handles a hit is
lost. One that comes while our Python runs would end that in the middle, and after a second one GDB may give up the
connection. So, while the guest is run, SIGINT is blocked in GDB's thread, and a thread of ours takes it:

    SIGINT, or the time is up ──► a command `interrupt` for GDB's event loop, where GDB is at nothing else
                                  again, where a hit of ours may have made QEMU miss it, until the run has ended
No command shall be left in that loop at the end of a run (event_loop.py): while GDB tells of a stop, however long that
takes, and while one is on its way to QEMU, there is no other.
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
"""Seconds after which GDB is asked once more, where a hit has come between."""
ANYWAY = 1.0
"""The same where none has."""
PATIENCE = 5.0
"""Seconds after which a further Ctrl-C is left to GDB, which then offers to give up a guest that does not respond."""


def is_stopped() -> bool:
    """Whether there is a guest and it stands still, so that its memory and registers can be used."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and not thread.is_running()


def is_running() -> bool:
    """Whether there is a guest and it runs."""
    thread = gdb.selected_thread()
    return thread is not None and thread.is_valid() and thread.is_running()


_active: list[Interrupter] = []


def mark_stopped(_: object = None) -> None:
    """GDB is about to tell of a stop. To be connected before all else that listens to stops."""
    for interrupter in _active:
        interrupter.stands = True


def mark_running(_: object = None) -> None:
    """The guest runs on, after a stop or a hit: what was on its way to QEMU may be lost."""
    for interrupter in _active:
        interrupter.stands, interrupter.missed = False, True


class Interrupter:
    """From its making until `end`, in GDB's thread, the guest is stopped at a Ctrl-C or after `seconds` (None: never).

    heeds:   whether at a Ctrl-C; else that waits for the end.
    is_late: whether the time was up before anything else.
    stands:  GDB tells of a stop. missed: QEMU may have missed the last command.
    """

    def __init__(self, seconds: float | None = None, heeds: bool = True) -> None:
        self._seconds = seconds
        self._heeds = heeds
        self._asked = False
        self.is_late = self.stands = False
        self.missed = True
        self._ending = False
        self._over = threading.Event()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        _active.append(self)
        self._thread.start()

    def asked(self) -> bool:
        """Whether the guest is to stop."""
        return self._asked

    def end(self) -> None:
        """The run has ended. A Ctrl-C that has not been heeded goes to GDB."""
        self._ending = True
        _active.remove(self)
        if self._heeds:
            assert self._thread.ident is not None
            signal.pthread_kill(self._thread.ident, signal.SIGINT)
        self._over.set()
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    # in the thread, which lives until `_over` ----------------------------------------------------------------------

    def _wait(self) -> None:
        self.is_late = not self._comes(self._seconds)
        since = last = time.monotonic()
        self._asked = not self._ending
        while not self._ending:
            now = time.monotonic()
            if not self.stands and (self.missed or now - last >= ANYWAY):
                self.missed, last = False, now
                post(self._interrupt)
            if self._comes(AGAIN) and not self._ending and time.monotonic() - since > PATIENCE:
                post(self._give_up)
                break
        self._over.wait()

    def _comes(self, seconds: float | None) -> bool:
        """Whether a Ctrl-C, or the end, comes within some seconds."""
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
            # Behind this event, where GDB's own handler passes it to what the remote target does about it.
            send_again()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)


@contextmanager
def interrupting(seconds: float | None, heeds: bool = True) -> Iterator[Interrupter]:
    """A run: the guest is stopped at a Ctrl-C, if that is heeded, or after `seconds`."""
    interrupter = Interrupter(seconds, heeds)
    try:
        yield interrupter
    finally:
        interrupter.end()
