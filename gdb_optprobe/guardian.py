"""Frees a guest whose GDB has died: a process of its own, which that GDB started and keeps informed.

    GDB ──── a pipe ────► guardian         GDB lets go in order: it says so in a last line, and this ends
     └──► QEMU's stub ◄─ ─ ─ ┘             the pipe ends without: GDB was killed, or crashed

QEMU keeps a dead GDB's breakpoints, and the guest parks at the next one; nor does a guest run on that stood still. So
the guardian connects to the stub, makes whole what GDB was in the middle of, has the breakpoints dropped and lets go.
It keeps its hands off where somebody else is connected, or where another QEMU listens by now.

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
"""The line that says that GDB lets go in order."""
LOOK = 5.0
"""Seconds between two looks at whether QEMU is still there."""
SETTLE = 0.1
"""Seconds within which a single step that GDB left behind stops the guest again."""
AGAIN = 16
"""How many of those are waited for."""
AT_ONCE = 0.3
"""Seconds within which what comes at once has come."""
TIMEOUT = 5.0
"""Seconds for a connection."""
PROC = Path("/proc/net")
LISTENS, CONNECTED, CONNECTING = 1, 3, 2  # states of a unix socket, include/uapi/linux/net.h; 1 with __SO_ACCEPTCON
TCP_ESTABLISHED, TCP_LISTEN = 1, 10  # include/net/tcp_states.h


@dataclass(frozen=True, slots=True)
class Change:
    """A change of several writes that is under way, all of which must be made before the guest runs.

    thread:    the stub's name of a vCPU, whose registers and page tables are meant.
    registers: values by the stub's numbers, as it has their bytes.
    memory:    bytes by virtual address.
    where:     what registers and memory must hold for it to be made; else it is left out.
    """

    thread: str
    registers: tuple[tuple[int, bytes], ...] = ()
    memory: tuple[tuple[int, bytes], ...] = ()
    where: tuple[tuple[int, bytes], tuple[int, bytes]] | None = None

    @property
    def is_one(self) -> bool:
        """Whether it is a single write, which is never half done."""
        return len(self.registers) + len(self.memory) == 1

    def packets(self) -> Iterator[str | tuple[str, str]]:
        """What the stub is told; any number of times comes to the same. With an answer: what it must be to go on."""
        # It knows registers by number only once it was asked for their description.
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


def told(*changes: Change) -> bytes:
    """The line that tells of changes under way, in place of those that were told before."""
    return json.dumps([[*change.packets()] for change in changes]).encode() + b"\n"


# where QEMU listens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sockets:
    """Inodes of a listener's side, as this machine knows them. Both are empty where it listens elsewhere."""

    listening: frozenset[str] = frozenset()
    connected: frozenset[str] = frozenset()


class Unix:
    """A socket in the file system."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._identity()

    def connect(self) -> socket.socket:
        if self._identity() != self._file:
            # Where others may write too, another user may have made it.
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
        # Num RefCount Protocol Flags Type St Inode Path; a path is as it was when QEMU bound it, maybe a relative one.
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
        if not self._is_here():
            return Sockets()
        # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
        rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(name)]
        mine = [row for row in rows if int(row[1].rpartition(":")[2], 16) == self._port]
        return Sockets(
            frozenset(row[9] for row in mine if int(row[3], 16) == TCP_LISTEN),
            frozenset(row[9] for row in mine if int(row[3], 16) == TCP_ESTABLISHED),
        )

    def _is_here(self) -> bool:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            return False
        return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


Address = Unix | Tcp


def address_of(text: str) -> Address:
    """From `unix:PATH`, `tcp:HOST:PORT`."""
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
    """QEMU's end of GDB's remote protocol, which stops the guest when it takes the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._sent = b""

    def ask(self, packet: str) -> str:
        """Its answer; a stop that it tells of meanwhile is none. Raises Gone, OSError."""
        self.send(packet)
        while (answer := self.receive()) is None or answer.startswith(("T", "S")):
            pass
        return answer

    def send(self, packet: str) -> None:
        data = packet.encode("latin-1")
        self._sent = b"$%s#%02x" % (data, sum(data) % 256)
        self._connection.sendall(self._sent)

    def interrupt(self) -> None:
        """Stop the guest, which runs."""
        self._connection.sendall(b"\x03")
        self.receive(AT_ONCE)

    def part(self) -> None:
        """Let the guest run, and do not so much as acknowledge the answer: any byte would stop the guest again."""
        for _ in range(AGAIN):
            # Where the guest runs, this only stops it.
            self.send("D;1")
            while (answer := self._await(AT_ONCE)) is not None:
                if answer == "OK":
                    return

    def receive(self, seconds: float | None = None) -> str | None:
        """The next packet; None where none comes within so long. Raises Gone, OSError."""
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
        """The first one that has come whole; what stands before it are acknowledgements."""
        before, begin, rest = self._received.partition(b"$")
        if b"-" in before:
            # What the stub had of a packet when that GDB died stood in front of ours.
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


Told = Sequence[str | Sequence[str]]
"""The packets of a change, as they come out of JSON."""


def make(stub: Stub, change: Told) -> None:
    """Make whole what GDB was in the middle of, unless the guest is not where that is meant. Raises Gone, OSError."""
    for packet in change:
        if isinstance(packet, str):
            stub.ask(packet)
            continue
        question, answer = packet
        if stub.ask(question).lower() != answer:
            return


def free(stub: Stub, changes: Sequence[Told]) -> None:
    """Let the guest run, rid of what its GDB left in the stub. Raises Gone, OSError."""
    stub.ask("Qqemu.PhyMemMode:0")
    # QEMU drops every breakpoint when it is asked why the guest stands (gdbstub.c, handle_target_halt).
    stub.send("?")
    stub.receive()
    for change in changes:
        make(stub, change)
    for _ in range(AGAIN):
        stub.send("vCont;c")
        if stub.receive(SETTLE) is None:
            break
    stub.interrupt()
    stub.part()


# GDB's life ----------------------------------------------------------------------------------------------------------


def guard(address: Address, pipe: int) -> None:
    """Wait until GDB lets go in order, or QEMU ends; should GDB die, free the guest."""
    before = address.sockets()
    changes: list[Told] = []
    for line in _told_through(pipe):
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
        # Who has come in between is served first. To hang up would leave the guest standing behind him.
        free(stub, changes)


def _told_through(pipe: int) -> Iterator[bytes]:
    """Whole lines until the other end is closed; an empty one where nothing came for a while."""
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
