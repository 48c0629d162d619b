"""Delay a Ctrl-C during work that must not be interrupted.

SIGINT is blocked during the work. Afterwards GDB's own handler gets it, and Python raises KeyboardInterrupt at once.
Only GDB's thread may use these: other threads must have SIGINT blocked, as GDB's own threads have.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

CTRL_C = frozenset({signal.SIGINT})
_FIRM = ContextVar("_FIRM", default=False)
MOMENT = 0.01
"""Seconds in which Python has returned to GDB."""


def is_held() -> bool:
    """Return whether a Ctrl-C would wait."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextmanager
def held(firmly: bool = False) -> Iterator[None]:
    """Raise a Ctrl-C within the block at its end, as KeyboardInterrupt; one that came before it, at its beginning.

    firmly: also where work within the block is `interruptible`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    firm = _FIRM.set(firmly or _FIRM.get())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
        yield
    except Exception:
        if signal.SIGINT not in before:
            # The work has ended already, and its error is worth more.
            signal.sigtimedwait(CTRL_C, 0)
        raise
    finally:
        _FIRM.reset(firm)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a Ctrl-C interrupt the block at once, within `held`: for long work that leaves nothing half done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if not _FIRM.get():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def checkpoint() -> None:
    """Raise KeyboardInterrupt where a Ctrl-C waits."""
    with interruptible():
        pass


def unbroken(handler: Callable[_P, _R], holds: bool = True) -> Callable[_P, _R]:
    """Wrap the handler of an event, where GDB drops exceptions: a Ctrl-C within it waits, and is sent again later.

    holds: whether the handler is `held`. Not one that asks for that (`is_held`), or leaves SIGINT blocked or unblocked.
    """

    def handle(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with held() if holds else nullcontext():
            return handler(*args, **kwargs)

    return handle


def spare_events() -> None:
    """Have Python raise no KeyboardInterrupt in `unbroken` handlers from now on.

    GDB's handler stays the handler of the process: Python's `signal` would replace it.
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
    """Send a Ctrl-C a moment later."""
    timer = threading.Timer(MOMENT, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    with held():
        timer.start()
