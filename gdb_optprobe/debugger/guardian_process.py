"""Start, inform and dismiss the guardian of this GDB, which frees the guest if GDB dies (recovery/guardian.py)."""

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

from gdb_optprobe.recovery import guardian
from gdb_optprobe.recovery.guardian import LEAVE, Change, encode

PYTHONS = (f"{sys.prefix}/bin/python3", sys.executable)
"""This GDB's own, before the PATH's."""


class GuardianProcess:
    """At most one process. It lives until it is dismissed or the guest has ended."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: int | None = None
        self._fallback: tuple[Change, ...] = ()

    @property
    def is_running(self) -> bool:
        """Return whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def start(self, details: str) -> str:
        """Start a guardian for the guest at `details`, GDB's text for its address. Return why that failed, or ""."""
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
            # A session of its own: it gets no Ctrl-C and no hang-up of GDB's terminal.
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
        """End the process: GDB disconnects from the guest in order."""
        self._send(LEAVE)
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    @contextmanager
    def completing(self, change: Change) -> Iterator[None]:
        """Have the guardian make all of `change` if GDB dies within the block."""
        if change.is_one:
            yield
            return
        self._fallback = ()
        self._send(encode(change))
        try:
            yield
        finally:
            self._send(encode())

    def set_fallback(self, *changes: Change) -> None:
        """Have the guardian make these changes, each where its `where` holds, if GDB dies from now on.

        The next call of this, or of `completing`, replaces them.
        """
        if changes != self._fallback:
            self._fallback = changes
            self._send(encode(*changes))

    def _send(self, line: bytes) -> None:
        if self.pipe is not None:
            # The guardian may have ended, or be stuck.
            with contextlib.suppress(OSError):
                os.write(self.pipe, line)


def why_not(details: str) -> str:
    """Return why the guest at `details`, GDB's text for its address, cannot be guarded; "" where it can."""
    if address_of(details) is None:
        return f"{details} cannot be opened a second time"
    return "" if _python() is not None else "there is no python3 to run it"


def _python() -> str | None:
    return next((found for each in (*PYTHONS, "python3") if (found := shutil.which(each or ""))), None)


def address_of(details: str) -> str | None:
    """Convert an argument of `target remote` to one of recovery/guardian.py; None where it can be opened only once.

    The rules are GDB's (serial.c, serial_open; ser-tcp.c, net_parse_spec).
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
