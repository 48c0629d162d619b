"""Child processes: none outlives the process that started it; and their processor time."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["cpu_seconds", "end_with_parent", "ending_on_signals"]

PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` for a process that must end with this one, however this one ends.

    The signal follows the thread that started the process, so None outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    return _ask_for_signal


def _ask_for_signal() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ending_on_signals() -> None:
    """Let the signals that end a program end it as Ctrl-C does: through every `with` block."""

    def end(number: int, _: object) -> None:
        # Once is enough: a second one must not interrupt the cleaning up.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that processes have used so far, with all their threads, to the nanosecond."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9
