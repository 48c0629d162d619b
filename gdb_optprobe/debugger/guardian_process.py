"""The guardian of this GDB, which frees the guest should GDB die: started, informed and let go of (guardian.py)."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdb_optprobe import guardian
from gdb_optprobe.guardian import LEAVE, Change, told

PYTHONS = (f"{sys.prefix}/bin/python3", sys.executable)
"""This GDB's own, before the PATH's."""


class GuardianProcess:
    """At most one process. It lives until it is told to leave, or the guest has ended."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: int | None = None
        self._fallback: tuple[Change, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether it is there."""
        return self.process is not None and self.process.poll() is None

    def start(self, details: str) -> str:
        """Have the guest at `details`, GDB's words for where it is, guarded; why that cannot be, "" when it is."""
        if self.is_running:
            return ""
        self.dismiss()
        if why := why_not(details):
            return why
        address, python = address_of(details), _python()
        assert address is not None and python is not None, "why_not"
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        try:
            # A session of its own: a Ctrl-C or a hang-up at GDB's terminal is none of its business.
            self.process = subprocess.Popen(
                [python, "-I", "-S", str(Path(guardian.__file__)), address],
                stdin=reads,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            self.pipe = writes
        except OSError as error:
            os.close(writes)
            return str(error)
        finally:
            os.close(reads)
        return ""

    def dismiss(self) -> None:
        """GDB lets go of the guest in order."""
        self._send(LEAVE)
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    @contextmanager
    def completing(self, change: Change) -> Iterator[None]:
        """Should GDB die within the block, the guardian makes `change`, all of it."""
        if change.is_one:
            yield
            return
        self._fallback = ()
        self._send(told(change))
        try:
            yield
        finally:
            self._send(told())

    def set_fallback(self, *changes: Change) -> None:
        """Should GDB die from now on, the guardian makes these changes, each where its `where` is so.

        That is so until the next call, or the next change that is made whole.
        """
        if changes != self._fallback:
            self._fallback = changes
            self._send(told(*changes))

    def _send(self, line: bytes) -> None:
        if self.pipe is not None:
            # It may have ended, or be stuck: then nobody is told.
            with contextlib.suppress(OSError):
                os.write(self.pipe, line)


def why_not(details: str) -> str:
    """Return why the guest at `details`, GDB's words for where it is, cannot be guarded; "" where it can."""
    if address_of(details) is None:
        return f"{details} cannot be opened a second time"
    return "" if _python() is not None else "there is no python3 to run it"


def _python() -> str | None:
    return next((found for each in (*PYTHONS, "python3") if (found := shutil.which(each or ""))), None)


def address_of(details: str) -> str | None:
    """What guardian.py connects to for what `target remote` was given; None where that can be opened but once.

    As GDB tells them apart (serial.c, serial_open; ser-tcp.c, net_parse_spec).
    """
    if details.startswith("|"):
        return None
    kind, _, rest = details.partition(":")
    if kind in ("tcp", "tcp4", "tcp6"):
        return f"tcp:{rest}"
    if kind in ("udp", "udp4", "udp6"):
        return None
    if ":" in details:
        return f"tcp:{details}"
    path = os.path.abspath(details)
    try:
        return f"unix:{path}" if stat.S_ISSOCK(os.stat(path).st_mode) else None
    except OSError:
        return None
