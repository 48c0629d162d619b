"""Who is at the other end of a socket, its memory by /proc, and by QMP from a process that speaks it."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gdb_optprobe.debugger.qemu_memory import ProcessMemory, QmpMemory, peers
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import Extent

LISTENS = """
import socket, sys
one = socket.socket(getattr(socket, sys.argv[1]))
one.bind(sys.argv[2] if sys.argv[1] == "AF_UNIX" else ("127.0.0.1", 0))
one.listen()
print(sys.argv[2] if sys.argv[1] == "AF_UNIX" else one.getsockname()[1], flush=True)
other, _ = one.accept()
other.send(b"accepted")
other.recv(1)
"""


@contextmanager
def listener(family: str, path: Path) -> Iterator[tuple[int, str]]:
    """A process that listens: its number, and where."""
    arguments = [sys.executable, "-c", LISTENS, family, str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
def test_the_process_behind_a_connection_is_found(family: str, tmp_path: Path) -> None:
    with listener(family, tmp_path / "socket") as (process, place):
        assert process not in peers()
        with socket.socket(getattr(socket, family)) as one:
            one.connect(place if family == "AF_UNIX" else ("127.0.0.1", int(place)))
            assert one.recv(8)
            assert process in peers()
            before = os.listdir("/proc/self/fd")
            peers()
            assert os.listdir("/proc/self/fd") == before, "nothing is left open"


def test_a_process_is_read_and_cannot_be_written() -> None:
    held = ctypes.create_string_buffer(b"what a guest holds")
    extent = Extent(0xFFFF_FFFF_7FE0_0000, len(held), 0x1000, ctypes.addressof(held))
    with closing(ProcessMemory(os.getpid())) as memory:
        assert memory.read(extent, 5, 13) == b"a guest holds"
        held[5] = b"A"
        assert memory.read(extent, 5, 1) == b"A"
        (file,) = [name for name in os.listdir("/proc/self/fd") if _leads_to_memory(name)]
        with pytest.raises(OSError):
            os.pwrite(int(file), b"x", extent.host)
    assert not any(map(_leads_to_memory, os.listdir("/proc/self/fd")))


def _leads_to_memory(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").endswith("/mem")
    except OSError:
        return False


class Qemu(threading.Thread):
    """Speaks QMP to one client, with an event before each answer. memory: guest-physical."""

    def __init__(self, path: Path, greeting: bytes = b'{"QMP": {}}\n') -> None:
        super().__init__(daemon=True)
        self.memory, self.asked = bytes(range(200)), list[str]()
        self.greeting = greeting
        self.listens = socket.socket(socket.AF_UNIX)
        self.listens.bind(str(path))
        self.listens.listen()
        self.start()

    def run(self) -> None:
        client, _ = self.listens.accept()
        with self.listens, client, client.makefile("rwb") as lines:
            lines.write(self.greeting)
            lines.flush()
            for line in lines:
                asked = json.loads(line)
                self.asked.append(asked["execute"])
                lines.write(b'{"event": "RESUME"}\n' + json.dumps(self.answer(**asked)).encode() + b"\n")
                lines.flush()

    def answer(self, execute: str, arguments: dict[str, int | str]) -> dict[str, object]:
        if execute == "pmemsave":
            start, size = int(arguments["val"]), int(arguments["size"])
            if start + size > len(self.memory):
                return {"error": {"class": "GenericError", "desc": "Invalid addr"}}
            Path(str(arguments["filename"])).write_bytes(self.memory[start : start + size])
        return {"return": {}}


def test_qmp_reads_physical_memory(tmp_path: Path) -> None:
    qemu = Qemu(tmp_path / "qmp")
    with closing(QmpMemory(str(tmp_path / "qmp"))) as memory:
        extent = Extent(0xFFFF_FFFF_7FE0_0000, 1000, 40, 0)
        assert memory.read(extent, 2, 3) == bytes([42, 43, 44])
        with pytest.raises(OptprobeError, match="Invalid addr"):
            memory.read(extent, 500, 8)
        assert memory.read(extent, 0, 1) == bytes([40])
    qemu.join(5)
    assert qemu.asked == ["qmp_capabilities", "pmemsave", "pmemsave", "pmemsave"]


@pytest.mark.parametrize("greeting", [b"\n", b"SSH-2.0\n", b"[]\n"], ids=["a line", "text", "a list"])
def test_what_is_no_qmp_is_refused(greeting: bytes, tmp_path: Path) -> None:
    Qemu(tmp_path / "qmp", greeting)
    with pytest.raises(OptprobeError, match="no QMP"):
        QmpMemory(str(tmp_path / "qmp"))
    with pytest.raises(OSError):
        QmpMemory(str(tmp_path / "nothing"))
