"""Packets are counted in whatever pieces they arrive."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from qemu.rsp_proxy import Count, RspProxy, Tally


def test_pieces() -> None:
    stream = b"+$T05thread:01;#00+$OK#9a+$S05#b8$1234#ca"
    whole, bytewise = Tally(), Tally()
    whole.add(stream)
    for at in range(len(stream)):
        bytewise.add(stream[at : at + 1])
    for tally in (whole, bytewise):
        assert (tally.packets, tally.stops) == (4, 2)


def test_proxy_changes_nothing_and_counts_both_ways(tmp_path: Path) -> None:
    stub = socket.socket(socket.AF_UNIX)
    stub.bind(str(tmp_path / "stub"))
    stub.listen(1)

    def answer() -> None:
        connection, _ = stub.accept()
        with connection:
            assert connection.recv(100) == b"$?#3f"
            connection.sendall(b"+$T05#b9")

    answering = threading.Thread(target=answer)
    answering.start()
    with RspProxy(tmp_path / "stub") as proxy:
        with socket.socket(socket.AF_UNIX) as gdb:
            gdb.connect(str(proxy.path))
            gdb.sendall(b"$?#3f")
            received = b""
            while piece := gdb.recv(100):
                received += piece
        answering.join(5)
        assert received == b"+$T05#b9"
        assert proxy.count() == Count(packets=2, stops=1)
    assert not proxy.path.exists()
