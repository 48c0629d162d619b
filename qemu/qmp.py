"""Just enough of QMP, QEMU's control protocol (JSON lines over a unix socket), to steer a guest."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Qmp", "QmpError"]


class QmpError(Exception):
    """QEMU refused a command, or went away before it answered."""


class Qmp:
    """A connection to a guest's QMP socket. QEMU serves one at a time: keep it short."""

    def __init__(self, path: Path, timeout: float = 10.0) -> None:
        """Connect; timeout: seconds for each answer. OSError when nothing listens at `path`."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(path))
            self._lines = self._socket.makefile("rb")
            self._answer("QMP")
            self.execute("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return its result. Raises QmpError when QEMU refuses."""
        message = {"execute": command, "arguments": arguments}
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        return self._answer("return")

    def monitor(self, line: str) -> str:
        """Run one line of the human monitor and return its output."""
        return str(self.execute("human-monitor-command", **{"command-line": line}))

    def __enter__(self) -> Qmp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()

    def _answer(self, key: str) -> Any:
        for line in self._lines:
            message = json.loads(line)
            if "error" in message:
                raise QmpError(message["error"]["desc"])
            if key in message:
                return message[key]
        raise QmpError("QEMU closed the connection")
