"""QEMU on this host: which process it is, and its memory by /proc or by its control protocol, QMP. Nothing is written.

    GDB's sockets ──peer──► process ──► /proc/PID/mem    1.4 µs a word, 0.1 ms for all data of probes
    the setting qmp-socket ───────────► pmemsave         0.5 ms a word, 1.8 ms for all
"""

from __future__ import annotations

import json
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import Extent
from gdb_optprobe.guest_text import one_line

_CREDENTIALS = struct.Struct("iII")
_SHARED_MEMORY = Path("/dev/shm")
PATIENCE = 2.0
"""Seconds that QMP may take for an answer."""
MOST_LINE = 1 << 20
"""Bytes of an answer."""


class ProcessMemory:
    """Implements Way by /proc/PID/mem, opened to be read only. Raises OSError."""

    def __init__(self, process: int) -> None:
        self._file = os.open(f"/proc/{process}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, extent: Extent, offset: int, size: int) -> bytes:
        return os.pread(self._file, size, extent.host + offset)

    def close(self) -> None:
        os.close(self._file)


class QmpMemory:
    """Implements Way by QMP: QEMU writes a file in a folder of this process, which is read. Raises OSError,
    OptprobeError.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._socket.settimeout(PATIENCE)
            self._socket.connect(path)
            self._lines = self._socket.makefile("rb")
            self._answer("QMP")
            self._execute("qmp_capabilities")
            where = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
            self._folder = tempfile.TemporaryDirectory(prefix="optprobe-", dir=where)
        except BaseException:
            self._socket.close()
            raise

    def read(self, extent: Extent, offset: int, size: int) -> bytes:
        assert self._folder is not None, "it is open"
        file = Path(self._folder.name) / "memory"
        self._execute("pmemsave", val=extent.physical + offset, size=size, filename=str(file))
        data = file.read_bytes()
        file.unlink()
        return data

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _execute(self, command: str, **arguments: Any) -> None:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self._answer("return")

    def _answer(self, key: str) -> None:
        """Wait for an answer; events come between."""
        while line := self._lines.readline(MOST_LINE):
            try:
                message = json.loads(line)
            except ValueError:
                break
            if not isinstance(message, dict):
                break
            if "error" in message:
                raise OptprobeError(f"QEMU says {one_line(json.dumps(message['error']))[:200]}")
            if key in message:
                return
        raise OptprobeError("what answers is no QMP")


def peers() -> list[int]:
    """Return the processes at the other ends of this process's sockets, on this host: one of them is QEMU."""
    found: dict[int, None] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            # Of its own: another thread may close the descriptor meanwhile.
            duplicate = os.dup(int(name))
            try:
                found.update(dict.fromkeys(_peers_of(duplicate)))
            finally:
                os.close(duplicate)
    found.pop(os.getpid(), None)
    return [process for process in found if process > 0]


def _peers_of(descriptor: int) -> Iterator[int]:
    """Yield the processes behind a socket. Raises OSError where it is none, or not connected."""
    one = socket.socket(fileno=descriptor)
    try:
        if one.family == socket.AF_UNIX:
            one.getpeername()
            yield _CREDENTIALS.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        elif one.family in (socket.AF_INET, socket.AF_INET6):
            yield from _owners(_inodes(one.getsockname()[1], one.getpeername()[1]))
    finally:
        one.detach()  # the caller closes it


def _inodes(local: int, remote: int) -> set[str]:
    """Return the inodes of sockets of this host that are connected from port `remote` to port `local`."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if [int(fields[place].rpartition(":")[2], 16) for place in (1, 2)] == [remote, local]:
                    found.add(fields[9])
    return found


def _owners(inodes: set[str]) -> Iterator[int]:
    """Yield the processes that have one of these sockets open, as far as this user may see."""
    wanted = {f"socket:[{inode}]" for inode in inodes - {"0"}}
    for process in filter(str.isdecimal, os.listdir("/proc") if wanted else ()):
        with suppress(OSError):
            folder = f"/proc/{process}/fd"
            if any(_link(f"{folder}/{name}") in wanted for name in os.listdir(folder)):
                yield int(process)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
