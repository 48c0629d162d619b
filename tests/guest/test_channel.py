"""A command in the guest: what it printed and its status, however the line cuts it into pieces."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gdb_optprobe.guest.channel import READY, ChannelError, Command


def answered(path: Path, pieces: Callable[[str], Sequence[bytes]]) -> tuple[int, bytes]:
    """Return the outcome of a command to which a guest answers in these pieces, made of the command's token."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        line, _ = server.accept()
        with line:
            for piece in pieces(line.recv(100).split()[0].decode()):
                line.sendall(piece)

    guest = threading.Thread(target=serve)
    guest.start()
    try:
        return Command(path, "true").outcome()
    finally:
        guest.join()
        server.close()


def test_an_end_in_pieces_is_found(tmp_path: Path) -> None:
    def pieces(token: str) -> Sequence[bytes]:
        whole = f"of before\1begin {token}\nprinted\n\1end 1 0\n\1end {token} 17\nof later".encode()
        return [whole[at : at + 1] for at in range(len(whole))]

    assert answered(tmp_path / "socket", pieces) == (17, b"printed\n\1end 1 0\n")


def test_a_line_that_ends_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="the guest went away during: true"):
        answered(tmp_path / "socket", lambda token: [f"\1begin {token}\n\1end {token} 1".encode()])


def test_a_command_that_the_guest_is_not_at_has_not_begun(tmp_path: Path) -> None:
    """A line that comes while the guest boots is lost: nothing may tell then that the command runs."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        command = Command(path, "true")
        line, _ = server.accept()
        with line:
            token = line.recv(100).split()[0].decode()
            line.sendall(b"\1begin 0.0\n")
            with pytest.raises(ChannelError, match="did not finish"):
                command.outcome(0.01)
            assert not command.has_begun
            line.sendall(f"\1begin {token}".encode())
            assert not command.has_begun
            line.sendall(b"\nprinted")
            assert command.has_begun, "it is in the socket, and was not taken yet"
            with pytest.raises(ChannelError, match="did not finish"):
                command.outcome(0.1)
            assert command.has_begun
        command.close()


BOOTS = "[    0.000000] Linux version 6.1\n"


@pytest.mark.parametrize("before", ["", "SeaBIOS\n", BOOTS, f"{BOOTS}{READY}\n{BOOTS}"])
def test_a_command_is_sent_once_the_guest_takes_it(tmp_path: Path, before: str) -> None:
    """A line that comes while the guest boots is lost, in part: the command would never end."""
    path, log = tmp_path / "socket", tmp_path / "log"
    log.write_text(before)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        command = Command(path, "true", log)
        line, _ = server.accept()
        with line:
            line.settimeout(0.1)
            with pytest.raises(ChannelError, match="was not given the command, it was not ready in"):
                command.outcome(0.1)
            with pytest.raises(TimeoutError):
                line.recv(100)
            assert not command.is_sent
            log.write_text(f"{before}{BOOTS}{READY}\n")
            with pytest.raises(ChannelError, match="did not finish"):
                command.outcome(0.1)
            token, sent = line.recv(100).split()
            assert command.is_sent and sent == b"true"
            line.sendall(b"\1begin " + token + b"\n\1end " + token + b" 0\n")
            assert command.outcome() == (0, b"")


def test_a_command_that_was_given_up_is_not_sent(tmp_path: Path) -> None:
    path, log = tmp_path / "socket", tmp_path / "log"
    log.write_text("")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        command = Command(path, "true", log)
        command.close()
        with pytest.raises(ChannelError, match="it was given up"):
            command.outcome(10)
