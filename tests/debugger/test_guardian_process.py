"""GDB's side of the guardian: one process, detached, that ends when it is told to."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdb_optprobe.debugger.guardian_process import GuardianProcess, address_of
from gdb_optprobe.recovery.guardian import Change
from tests.fake_stub import FakeQemu


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "gdb.sock"))
        listener.listen(1)
        yield listener


@pytest.fixture
def guard(stub: socket.socket) -> Iterator[GuardianProcess]:
    made = GuardianProcess()
    assert made.start(stub.getsockname()) == ""
    yield made
    made.dismiss()
    assert made.process is not None
    made.process.wait(5)


@pytest.mark.parametrize(
    ("details", "address"),
    [
        (":1234", "tcp::1234"),
        ("localhost:1234", "tcp:localhost:1234"),
        ("tcp:[::1]:1234", "tcp:[::1]:1234"),
        ("tcp6:[::1]:1234", "tcp:[::1]:1234"),
        ("udp:localhost:1234", None),
        ("| socat - unix:gdb.sock", None),
        ("/dev/null", None),
        ("/nowhere", None),
    ],
)
def test_what_can_be_opened_twice(details: str, address: str | None) -> None:
    assert address_of(details) == address


def test_a_relative_path(stub: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(stub.getsockname())
    monkeypatch.chdir(path.parent)
    assert address_of("gdb.sock") == f"unix:{path}"


def test_why_not() -> None:
    assert "cannot be opened a second time" in GuardianProcess().start("| nc somewhere 1234")


def open_files(process: int) -> Iterator[tuple[int, str]]:
    """Those of a process that may close some meanwhile."""
    for name in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield int(name), os.readlink(f"/proc/{process}/fd/{name}")


def test_one_process_of_a_session_of_its_own_without_our_files(guard: GuardianProcess, stub: socket.socket) -> None:
    process = guard.process
    assert process is not None
    assert guard.start(stub.getsockname()) == "" and guard.process is process
    assert os.getsid(process.pid) == process.pid
    files = dict(open_files(process.pid))
    assert files[0].startswith("pipe:") and files[1] == files[2] == "/dev/null"
    assert stub.fileno() not in files or "socket" not in files[stub.fileno()]


def test_leaving_ends_it_at_once_and_touches_nothing(guard: GuardianProcess, stub: socket.socket) -> None:
    assert guard.process is not None
    guard.dismiss()
    assert guard.process.wait(5) == 0
    assert not guard.is_running
    stub.setblocking(False)
    with pytest.raises(BlockingIOError):
        stub.accept()


def test_what_is_under_way_is_told_beforehand(guard: GuardianProcess, stub: socket.socket) -> None:
    qemu = FakeQemu(stub)
    block = guard.completing(Change("p1.1", ((16, bytes(8)), (7, bytes(8)))))
    block.__enter__()
    # GDB dies in the block.
    os.close(guard.pipe)
    guard.pipe = None
    assert guard.process is not None
    guard.process.wait(5)
    assert {"P10=0000000000000000", "P7=0000000000000000"} <= {*qemu.packets}
    assert qemu.running


def test_one_that_was_killed_is_started_anew(guard: GuardianProcess, stub: socket.socket) -> None:
    first = guard.process
    assert first is not None
    first.kill()
    first.wait(5)
    with guard.completing(Change("p1.1", ((16, bytes(8)), (7, bytes(8))))):
        pass
    assert guard.start(stub.getsockname()) == ""
    assert guard.is_running and guard.process is not first
