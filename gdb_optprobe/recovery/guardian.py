"""Free a guest after its GDB has died: a process of its own, which GDB starts and keeps informed.

    GDB ──── a pipe ────► guardian         GDB disconnects in order: it sends a last line, and this process ends
     └──► QEMU's stub ◄─ ─ ─ ┘             the pipe ends without that line: GDB was killed, or crashed

QEMU keeps the breakpoints of a dead GDB, and the guest stops at the next one; and a stopped guest stays stopped. So the
guardian connects to the stub, completes the change that GDB was making, has the breakpoints dropped and disconnects.
It does nothing where another debugger is connected, or where another QEMU listens on the address by now.

This file runs without GDB and without the rest of the package: `guardian.py unix:PATH`, `guardian.py tcp:HOST:PORT`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

LEAVE = b"null\n"
"""The line that GDB sends before it disconnects in order."""
LOOK = 5.0
"""Seconds between two checks that QEMU is still there."""
SETTLE = 0.1
"""Seconds within which a single step that GDB left behind stops the guest again."""
AGAIN = 16
"""How many of those steps to wait for."""
AT_ONCE = 0.3
"""Seconds within which an immediate answer has come."""
TIMEOUT = 5.0
"""Seconds for a connection."""
PROC = Path("/proc/net")
LISTENS, CONNECTED, CONNECTING = 1, 3, 2  # states of a unix socket, include/uapi/linux/net.h; 1 with __SO_ACCEPTCON
TCP_ESTABLISHED, TCP_LISTEN = 1, 10  # include/net/tcp_states.h


@dataclass(frozen=True, slots=True)
class Change:
    """A change of several writes, all of which must be made before the guest runs.

    thread:    the stub's name of the vCPU that has the registers and the page tables.
    registers: values by the stub's register numbers, in the stub's byte order.
    memory:    bytes by virtual address.
    where:     a register and memory with the values that they must have; else the change is not made.
    """

    thread: str
    registers: tuple[tuple[int, bytes], ...] = ()
    memory: tuple[tuple[int, bytes], ...] = ()
    where: tuple[tuple[int, bytes], tuple[int, bytes]] | None = None

    @property
    def is_one(self) -> bool:
        """Return whether it is a single write, which is never half done."""
        return len(self.registers) + len(self.memory) == 1

    def packets(self) -> Iterator[str | tuple[str, str]]:
        """Yield the packets, which may be sent several times. A pair is a packet and its required answer."""
        # The stub knows registers by number only after a request for their description.
        yield "qXfer:features:read:target.xml:0,ffb"
        yield f"Hg{self.thread}"
        if self.where is not None:
            (number, value), (address, held) = self.where
            yield f"p{number:x}", value.hex()
            yield f"m{address:x},{len(held):x}", held.hex()
        for address, data in self.memory:
            yield f"M{address:x},{len(data):x}:{data.hex()}"
        for number, data in self.registers:
            yield f"P{number:x}={data.hex()}"


def encode(*changes: Change) -> bytes:
    """Return the line that announces changes. It replaces those that were announced before."""
    return json.dumps([[*change.packets()] for change in changes]).encode() + b"\n"


# where QEMU listens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sockets:
    """Inodes of QEMU's sockets on this machine. Both are empty where it listens on another machine."""

    listening: frozenset[str] = frozenset()
    connected: frozenset[str] = frozenset()


class Unix:
    """A socket in the file system."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._identity()

    def connect(self) -> socket.socket:
        if self._identity() != self._file:
            # Where other users may write, one of them may have made it.
            raise FileNotFoundError(f"{self._path} is another socket than GDB's was")
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(TIMEOUT)
            connection.connect(self._path)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection

    def sockets(self) -> Sockets:
        # Num RefCount Protocol Flags Type St Inode Path; QEMU may have bound a relative path.
        rows = [line.split(maxsplit=7) for line in _lines("unix")]
        mine = [row for row in rows if len(row) == 8 and self._is(row[7])]
        return Sockets(
            frozenset(row[6] for row in mine if int(row[5], 16) == LISTENS),
            frozenset(row[6] for row in mine if int(row[5], 16) in (CONNECTED, CONNECTING)),
        )

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            known = os.stat(self._path)
        except OSError:
            return None
        return known.st_dev, known.st_ino, known.st_uid

    def _is(self, bound: str) -> bool:
        return bound == self._path or (not bound.startswith(("/", "@")) and self._path.endswith(f"/{bound}"))


class Tcp:
    """A port, on this machine or another."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host or "localhost"
        self._port = port

    def connect(self) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), TIMEOUT)
        connection.settimeout(None)
        return connection

    def sockets(self) -> Sockets:
        if not self._is_local():
            return Sockets()
        # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
        rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(name)]
        mine = [row for row in rows if int(row[1].rpartition(":")[2], 16) == self._port]
        return Sockets(
            frozenset(row[9] for row in mine if int(row[3], 16) == TCP_LISTEN),
            frozenset(row[9] for row in mine if int(row[3], 16) == TCP_ESTABLISHED),
        )

    def _is_local(self) -> bool:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            return False
        return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


Address = Unix | Tcp


def address_of(text: str) -> Address:
    """Parse `unix:PATH` or `tcp:HOST:PORT`."""
    kind, _, rest = text.partition(":")
    if kind == "unix":
        return Unix(rest)
    host, _, port = rest.rpartition(":")
    return Tcp(host.strip("[]"), int(port))


def _lines(name: str) -> list[str]:
    try:
        return (PROC / name).read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return []


# the stub ------------------------------------------------------------------------------------------------------------


class Gone(Exception):
    """QEMU has closed the connection."""


class Stub:
    """A connection to QEMU's stub. The stub stops the guest when it accepts the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._sent = b""

    def ask(self, packet: str) -> str:
        """Send a packet and return its answer, without stop replies in between. Raises Gone, OSError."""
        self.send(packet)
        while (answer := self.receive()) is None or answer.startswith(("T", "S")):
            pass
        return answer

    def send(self, packet: str) -> None:
        data = packet.encode("latin-1")
        self._sent = b"$%s#%02x" % (data, sum(data) % 256)
        self._connection.sendall(self._sent)

    def interrupt(self) -> None:
        """Stop the running guest."""
        self._connection.sendall(b"\x03")
        self.receive(AT_ONCE)

    def part(self) -> None:
        """Detach, and do not acknowledge the answer: any byte would stop the guest again."""
        for _ in range(AGAIN):
            # If the guest runs, this only stops it.
            self.send("D;1")
            while (answer := self._await(AT_ONCE)) is not None:
                if answer == "OK":
                    return

    def receive(self, seconds: float | None = None) -> str | None:
        """Return the next packet; None where none comes within `seconds`. Raises Gone, OSError."""
        packet = self._await(seconds)
        if packet is not None:
            self._connection.sendall(b"+")
        return packet

    def _await(self, seconds: float | None) -> str | None:
        end = None if seconds is None else time.monotonic() + seconds
        while (packet := self._packet()) is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._connection], [], [], left)[0]:
                return None
            more = self._connection.recv(65536)
            if not more:
                raise Gone
            self._received += more
        return packet

    def _packet(self) -> str | None:
        """Return the first complete packet, without the acknowledgements before it."""
        before, begin, rest = self._received.partition(b"$")
        if b"-" in before:
            # The stub has read a part of a packet that the dead GDB sent: send again.
            self._connection.sendall(self._sent)
        data, _, sums = rest.partition(b"#")
        if len(sums) < 2:
            self._received = begin + rest
            return None
        self._received = sums[2:]
        return data.decode("latin-1")

    def __enter__(self) -> Stub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


Packets = Sequence[str | Sequence[str]]
"""The packets of a change, decoded from JSON."""


def apply(stub: Stub, change: Packets) -> None:
    """Make a change that GDB was making, if its condition holds. Raises Gone, OSError."""
    for packet in change:
        if isinstance(packet, str):
            stub.ask(packet)
            continue
        question, answer = packet
        if stub.ask(question).lower() != answer:
            return


def free(stub: Stub, changes: Sequence[Packets]) -> None:
    """Drop the dead GDB's breakpoints, make `changes` and let the guest run. Raises Gone, OSError."""
    stub.ask("Qqemu.PhyMemMode:0")
    # QEMU drops every breakpoint at a request for the reason of the stop (gdbstub.c, handle_target_halt).
    stub.send("?")
    stub.receive()
    for change in changes:
        apply(stub, change)
    for _ in range(AGAIN):
        stub.send("vCont;c")
        if stub.receive(SETTLE) is None:
            break
    stub.interrupt()
    stub.part()


# GDB's life ----------------------------------------------------------------------------------------------------------


def guard(address: Address, pipe: int) -> None:
    """Wait until GDB disconnects in order, or QEMU ends. If GDB dies, free the guest."""
    before = address.sockets()
    changes: list[Packets] = []
    for line in _lines_of(pipe):
        if line == LEAVE:
            return
        if line:
            changes = json.loads(line)
        elif before.listening and not before.listening & address.sockets().listening:
            return
    now = address.sockets()
    taken = now.connected - before.connected
    if taken or (before.listening and not before.listening & now.listening):
        return
    with contextlib.suppress(Gone, OSError), Stub(address.connect()) as stub:
        # A debugger that has connected in between is served first. To hang up would leave the guest stopped after it.
        free(stub, changes)


def _lines_of(pipe: int) -> Iterator[bytes]:
    """Yield whole lines until the other end is closed; an empty one whenever none came for a while."""
    received = b""
    while True:
        if not select.select([pipe], [], [], LOOK)[0]:
            yield b""
            continue
        more = os.read(pipe, 65536)
        if not more:
            return
        *lines, received = (received + more).split(b"\n")
        yield from (line + b"\n" for line in lines)


if __name__ == "__main__":
    guard(address_of(sys.argv[1]), sys.stdin.fileno())
