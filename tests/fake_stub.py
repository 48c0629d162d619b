"""A stub that behaves as QEMU's where it matters: it stops the guest for a client, and for any byte when it runs."""

from __future__ import annotations

import contextlib
import socket
import threading


class FakeQemu:
    """Listens on a socket, serves one client after the other, and notes what it is told."""

    def __init__(self, listener: socket.socket, stale: bytes = b"", steps: int = 0) -> None:
        """stale: what it has of a packet of a client that is gone; steps: how often a step that it left stops it."""
        self.listener = listener
        self.packets: list[str] = []
        self.running = True
        self.clients = 0
        self._line = stale
        self._steps = steps
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.clients += 1
            with client, contextlib.suppress(ConnectionError):
                self._stop(client)
                while data := client.recv(1):
                    self._byte(data, client)

    def _stop(self, client: socket.socket) -> None:
        if self.running:
            self.running = False
            _packet(client, "T02thread:01;")

    def _byte(self, data: bytes, client: socket.socket) -> None:
        if self.running:
            self._stop(client)
        elif self._line or data == b"$":
            self._line += data
            if self._line[-3:-2] == b"#":
                line, self._line = self._line, b""
                good = int(line[-2:], 16) == sum(line[1:-3]) % 256
                client.sendall(b"+" if good else b"-")
                if good:
                    self._carry_out(line[1:-3].decode(), client)

    def _carry_out(self, packet: str, client: socket.socket) -> None:
        self.packets.append(packet)
        if packet == "?":
            _packet(client, "T05thread:01;")
        elif packet == "vCont;c":
            self.running = True
            if self._steps:
                self._steps -= 1
                self.running = False
                _packet(client, "T05thread:01;")
        else:
            self.running = packet.startswith("D")
            _packet(client, "OK")


def _packet(client: socket.socket, text: str) -> None:
    client.sendall(b"$%s#%02x" % (text.encode(), sum(text.encode()) % 256))
