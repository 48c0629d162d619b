"""A command in the guest, for as long as a run: over the channel that `scripts/guest` and its init have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.channel import Command
from gdb_optprobe.guest_text import of_literal

SOCKET, LOG = "channel.sock", "console.log"
"""Beside the socket of the guest's stub."""
FOREVER = 20 * 24 * 3600.0
"""Seconds; a socket takes no more."""


class GuestCommand:
    """Implements probes.target.Command. It begins when the guest runs; its end is read in a thread."""

    def __init__(self, stub: str, text: str) -> None:
        """Send the command, once the guest takes it. stub: what GDB is connected to. Raises OptprobeError."""
        path = Path(stub.removeprefix("unix:")).with_name(SOCKET) if "/" in stub else None
        if path is None or not path.is_socket():
            raise OptprobeError(
                "there is no channel for commands to this guest: it was not started by scripts/guest",
                "optprobe run -for SECONDS, and run the command in the guest yourself",
            )
        self._lock = threading.Lock()
        self._told = ""
        self._act: Callable[[], None] = lambda: None
        try:
            self._command = Command(path, text, path.with_name(LOG))
        except (OSError, ValueError) as error:
            raise OptprobeError(f"the command cannot be sent to the guest: {error}") from None
        threading.Thread(target=self._wait, daemon=True).start()

    def outcome(self) -> str:
        with self._lock:
            return self._told

    @property
    def has_begun(self) -> bool:
        return self._command.has_begun

    @property
    def is_sent(self) -> bool:
        return self._command.is_sent

    def when_ended(self, act: Callable[[], None]) -> None:
        with self._lock:
            self._act = act
            if self._told:
                act()

    def close(self) -> None:
        self._command.close()

    def _wait(self) -> None:
        try:
            status, printed = self._command.outcome(FOREVER)
            told = f"{of_literal(printed)}the command has ended with status {status}"
        except (OptprobeError, OSError) as error:
            told = f"the command's end is not known: {error}"
        with self._lock:
            self._told = told
            self._act()
