"""Ctrl-C, kept off work that must not end in the middle.

SIGINT is blocked for as long as the work goes on. GDB's own handler gets it behind that, and Python raises what that
asks for at once. Only GDB's thread may use these: other threads must have SIGINT blocked, as GDB's own have.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

CTRL_C = frozenset({signal.SIGINT})
MOMENT = 0.01
"""Seconds in which Python is back in GDB."""


def is_held() -> bool:
    """Whether a Ctrl-C would wait."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextmanager
def held() -> Iterator[None]:
    """A Ctrl-C within the block is raised at its end, as KeyboardInterrupt; one that came before, at its beginning."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
        yield
    except Exception:
        if signal.SIGINT not in before:
            # What was to be ended has ended, and why is worth more.
            signal.sigtimedwait(CTRL_C, 0)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Long work within `held` that leaves nothing half done: KeyboardInterrupt ends it at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def checkpoint() -> None:
    """Raises KeyboardInterrupt where a Ctrl-C waits."""
    with interruptible():
        pass


def unbroken(handler: Callable[_P, _R]) -> Callable[_P, _R]:
    """`handler` of an event, where GDB has no use for exceptions: a Ctrl-C that Python sees in it comes again later."""

    def handle(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return handler(*args, **kwargs)

    return handle


def spare_events() -> None:
    """From now on, what GDB's handler asks Python to raise is not raised in what is `unbroken`.

    GDB's handler stays the process's: Python's `signal` would put its own in that place.
    """
    c = ctypes.CDLL(None)
    c.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    c.signal.restype = ctypes.c_void_p
    before = signal.getsignal(signal.SIGINT)
    event = unbroken(spare_events).__code__

    def act(number: int, frame: FrameType | None) -> None:
        if any(each.f_code is event for each in _callers(frame)):
            send_again()
        elif callable(before):
            before(number, frame)

    with held():
        theirs = c.signal(signal.SIGINT, None)
        signal.signal(signal.SIGINT, act)
        c.signal(signal.SIGINT, theirs)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def send_again() -> None:
    """A Ctrl-C comes a moment later."""
    timer = threading.Timer(MOMENT, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    with held():
        timer.start()
