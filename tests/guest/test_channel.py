"""A command in the guest: what it printed and its status, however the line cuts it into pieces."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gdb_optprobe.guest.channel import ChannelError, Command


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
