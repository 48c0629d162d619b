"""A proxy between GDB and QEMU's stub that counts packets and stops.

    GDB ──── proxy.path ──── proxy ──── gdb.sock ──── QEMU
               packets sent ───►  ◄─── packets received, stops among them

The stream is not changed: each piece is counted and forwarded as it comes.
"""

from __future__ import annotations

import contextlib
import re
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .cache import guests_directory

__all__ = ["Count", "RspProxy", "Tally"]


@dataclass(frozen=True, slots=True)
class Count:
    """Packets so far: both ways, and those that report a stop of the guest."""

    packets: int = 0
    stops: int = 0

    def __sub__(self, other: Count) -> Count:
        return Count(self.packets - other.packets, self.stops - other.stops)


class Tally:
    """Counts the packets of one direction in a stream that arrives in pieces.

    `$` begins a packet and occurs nowhere else: GDB and stubs escape it in binary data ("Overview" of the protocol
    in GDB's manual). A packet from the stub that begins with T or S reports a stop.
    """

    def __init__(self) -> None:
        self.packets = 0
        self.stops = 0
        self._at_start = False
        self._all = bytearray()

    def contents(self) -> list[bytes]:
        """Return what is between `$` and `#` of each packet so far: `#` too is escaped in binary data."""
        return re.findall(rb"\$([^#]*)#", bytes(self._all))

    def add(self, data: bytes) -> None:
        self._all += data
        if self._at_start and data:
            self.stops += data[:1] in (b"T", b"S")
        self.packets += data.count(b"$")
        self.stops += len(re.findall(rb"\$[TS]", data))
        self._at_start = data.endswith(b"$") if data else self._at_start


class RspProxy:
    """Listens on `path` for one GDB at a time, for the length of a `with` block."""

    def __init__(self, stub: Path) -> None:
        """Listen. stub: QEMU's socket for GDB."""
        self._stub = stub
        self._folder = tempfile.TemporaryDirectory(dir=guests_directory(), prefix="proxy-")
        self.path = Path(self._folder.name) / "gdb.sock"
        self._sent, self._received = Tally(), Tally()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        threading.Thread(target=self._serve, daemon=True).start()

    def count(self) -> Count:
        """Return the counts since the start."""
        return Count(self._sent.packets + self._received.packets, self._received.stops)

    def sent(self) -> list[bytes]:
        """Return all packets that GDB has sent."""
        return self._sent.contents()

    def close(self) -> None:
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> RspProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                gdb, _ = self._listener.accept()
                with gdb, socket.socket(socket.AF_UNIX) as stub:
                    stub.connect(str(self._stub))
                    back = threading.Thread(target=_pump, args=(stub, gdb, self._received), daemon=True)
                    back.start()
                    _pump(gdb, stub, self._sent)
                    back.join()


def _pump(source: socket.socket, sink: socket.socket, tally: Tally) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            # Before it is sent: the receiver may ask for the count at once.
            tally.add(data)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
