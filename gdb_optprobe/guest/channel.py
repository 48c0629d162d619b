"""Commands in the guest, over its second serial line; the protocol is drawn at the head of `qemu/init`."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from pathlib import Path

from gdb_optprobe.errors import OptprobeError

__all__ = ["ChannelError", "Command"]

READY, STARTED = "optprobe-guest: ready", "Linux version "
"""In the guest's log: its init takes commands; its kernel has started."""
LOOKS = 0.02
"""Seconds between two looks at the log."""
_number = itertools.count()
MOST = 1 << 26
"""Bytes that a command may print."""


class ChannelError(OptprobeError):
    """The guest did not answer in time, or the line to it broke."""


def is_ready(log: Path) -> bool:
    """Return whether the guest's init has said in its log that it takes commands, since the kernel started last; also
    where there is no log.
    """
    try:
        text = log.read_bytes()
    except FileNotFoundError:
        return True
    return text.rfind(READY.encode()) > text.rfind(STARTED.encode())


class Command:
    """A running command in the guest; a second one waits until the first has ended.

    is_sent: whether the guest was given it: a line that comes while it boots is lost, in part.
    """

    def __init__(self, socket_path: Path, command: str, log: Path | None = None) -> None:
        """Send `command`, one line for the guest's `sh`. ValueError when it is more than one line.

        log: of the guest. Where the guest is not ready by it, `outcome` waits for that, and sends the command then.
        """
        if "\n" in command or "\0" in command:
            raise ValueError("a command must be one line")
        self.command = command
        self._token = f"{os.getpid()}.{next(_number)}"
        self._received = bytearray()
        self._searched = 0
        self._taking = threading.Lock()  # what has left the socket is in _received where this is free
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(socket_path))
        self._log, self._is_closed, self.is_sent = log, False, False
        self._send_if_ready()

    @property
    def has_begun(self) -> bool:
        """Return whether the guest has said that it runs the command. Any thread may ask."""
        begin = f"\1begin {self._token}\n".encode()
        with self._taking:
            return begin in self._received or begin in self._received + self._waiting()

    def outcome(self, timeout: float = 60.0) -> tuple[int, bytes]:
        """Return the exit status and what the command printed (both streams), once it has ended.

        timeout: seconds. ChannelError when they pass first; waiting again is allowed, giving up too:
        the command then runs on and its output is lost.
        """
        begin, end = f"\1begin {self._token}\n".encode(), f"\1end {self._token} ".encode()
        deadline = time.monotonic() + timeout
        while not self.is_sent:
            if self._is_closed or time.monotonic() >= deadline:
                why = "it was given up" if self._is_closed else f"it was not ready in {timeout:g} s"
                raise ChannelError(f"the guest was not given the command, {why}: {self.command}")
            self._send_if_ready()
            if not self.is_sent:
                time.sleep(LOOKS)
        while True:
            # Each byte is searched once, however much the guest prints.
            at = self._received.find(end, self._searched)
            self._searched = at if at >= 0 else max(0, len(self._received) - len(end))
            if at >= 0 and (line := self._received.find(b"\n", at)) >= 0:
                self.close()
                output = bytes(self._received[:at]).partition(begin)[2]
                return self._status(bytes(self._received[at + len(end) : line])), output
            self._receive(deadline, timeout)
            if len(self._received) > MOST:
                raise ChannelError(f"the guest printed more than {MOST} bytes during: {self.command}")

    def close(self) -> None:
        """Give up on the command."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            # A thread may be waiting for an answer.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_if_ready(self) -> None:
        """Send the command if the guest takes it by now."""
        if self._log is None or is_ready(self._log):
            self.is_sent = True
            self._socket.sendall(f"{self._token} {self.command}\n".encode())

    def _status(self, text: bytes) -> int:
        if not text.isdigit():
            raise ChannelError(f"no exit status came of: {self.command}")
        return int(text[:3])

    def _waiting(self) -> bytes:
        """Return what is in the socket and was not taken yet. It stays there."""
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        return self._socket.recv(65536, socket.MSG_PEEK) if ready.poll(0) else b""

    def _receive(self, deadline: float, timeout: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            self._socket.recv(1, socket.MSG_PEEK)  # wait for more
            with self._taking:
                data = self._socket.recv(65536)
                self._received += data
        except TimeoutError:
            raise ChannelError(f"the guest did not finish in {timeout:g} s: {self.command}") from None
        if not data:
            raise ChannelError(f"the guest went away during: {self.command}")
