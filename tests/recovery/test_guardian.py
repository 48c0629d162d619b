"""The guardian: what it tells QEMU's stub when GDB dies, and when it keeps its hands off."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gdb_optprobe.recovery import guardian
from gdb_optprobe.recovery.guardian import LEAVE, Change, address_of, encode, guard
from tests.fake_stub import FakeQemu

CHANGE = Change("p1.2", ((16, b"\x01\0\0\0\0\0\0\x80"), (4, bytes(8))), ((0xFFFF_8000_0000_1000, b"\x12\x34"),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gdb.sock"


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


@contextmanager
def guarded(address: str) -> Iterator[tuple[Callable[[bytes], object], Callable[[], None]]]:
    """A guardian at work; yields what tells it something, and what is GDB's end."""
    reads, writes = os.pipe()
    thread = threading.Thread(target=guard, args=(address_of(address), reads), daemon=True)
    thread.start()
    # It looks who is connected before it waits.
    time.sleep(0.05)
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            os.close(writes)
            ended = True
        thread.join(60)
        assert not thread.is_alive()

    try:
        yield lambda line: os.write(writes, line), end
    finally:
        end()
        os.close(reads)


def test_frees(path: Path) -> None:
    qemu = FakeQemu(listening(path))
    with guarded(f"unix:{path}") as (_, end):
        end()
    assert qemu.packets == ["Qqemu.PhyMemMode:0", "?", "vCont;c", "D;1"]
    assert qemu.running


def test_frees_a_guest_that_stands_in_the_middle_of_a_packet(path: Path) -> None:
    qemu = FakeQemu(listening(path), stale=b"$m1234,")
    qemu.running = False
    with guarded(f"unix:{path}") as (_, end):
        end()
    assert qemu.packets[-3:] == ["?", "vCont;c", "D;1"]
    assert qemu.running


def test_waits_for_steps_that_gdb_left(path: Path) -> None:
    qemu = FakeQemu(listening(path), steps=3)
    with guarded(f"unix:{path}") as (_, end):
        end()
    assert qemu.packets.count("vCont;c") == 4
    assert qemu.packets[-1] == "D;1" and qemu.running


def test_makes_whole_what_is_under_way(path: Path) -> None:
    qemu = FakeQemu(listening(path))
    with guarded(f"unix:{path}") as (tell, end):
        tell(encode(Change("p1.1", ((0, bytes(8)),))))
        tell(encode(CHANGE))
        tell(b'["half of a li')
        end()
    assert qemu.packets[2:-2] == [
        "qXfer:features:read:target.xml:0,ffb",
        "Hgp1.2",
        "Mffff800000001000,2:1234",
        "P10=0100000000000080",
        "P4=0000000000000000",
    ]


def test_what_is_whole_is_left_alone(path: Path) -> None:
    qemu = FakeQemu(listening(path))
    with guarded(f"unix:{path}") as (tell, end):
        tell(encode(CHANGE))
        tell(encode())
        end()
    assert not [packet for packet in qemu.packets if packet[0] in "MP"]


def test_leaves(path: Path) -> None:
    qemu = FakeQemu(listening(path))
    with guarded(f"unix:{path}") as (tell, end):
        tell(encode(CHANGE) + LEAVE)
        end()
    assert qemu.clients == 0


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_keeps_off_where_somebody_is_connected(path: Path, family: socket.AddressFamily) -> None:
    if family == socket.AF_UNIX:
        listener, address = listening(path), f"unix:{path}"
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"tcp:localhost:{listener.getsockname()[1]}"
    qemu = FakeQemu(listener)
    with guarded(address) as (_, end), socket.socket(family) as other:
        other.connect(listener.getsockname())
        end()
    time.sleep(0.1)
    assert qemu.clients == 1 and qemu.packets == []


def test_the_dead_gdb_itself_is_not_somebody(path: Path) -> None:
    qemu = FakeQemu(listening(path))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.connect(str(path))
        assert dead.recv(1), "QEMU has taken the connection before a guardian is started"
        with guarded(f"unix:{path}") as (_, end):
            # QEMU has not noticed yet that it is gone when the guardian comes.
            threading.Timer(0.2, lambda: dead.shutdown(socket.SHUT_RDWR)).start()
            end()
    assert qemu.clients == 2 and qemu.running


def test_keeps_off_another_qemu_at_the_same_place(path: Path) -> None:
    first = listening(path)
    with guarded(f"unix:{path}") as (_, end):
        first.close()
        path.unlink()
        qemu = FakeQemu(listening(path))
        end()
    assert qemu.clients == 0


def test_ends_where_nobody_listens(path: Path) -> None:
    with guarded(f"unix:{path}") as (_, end):
        end()


def test_ends_with_qemu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "LOOK", 0.05)
    listener = listening(path)
    reads, writes = os.pipe()
    thread = threading.Thread(target=guard, args=(address_of(f"unix:{path}"), reads), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    listener.close()
    thread.join(5)
    assert not thread.is_alive()
    os.close(writes)
    os.close(reads)


def test_keeps_off_a_socket_that_another_user_put_in_the_place_of_qemus(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel's list of sockets does not tell, as in a container."""
    monkeypatch.setattr(guardian, "PROC", tmp_path / "nowhere")
    first = listening(path)
    with guarded(f"unix:{path}") as (tell, end):
        tell(encode(CHANGE))
        time.sleep(0.05)
        path.rename(tmp_path / "away")
        trap = FakeQemu(listening(path))
        end()
    assert trap.clients == 0 and trap.packets == []
    first.close()
