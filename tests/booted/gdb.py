"""A GDB at a terminal, connected to a guest: commands in, what it printed out, Ctrl-C, SIGKILL; and one that speaks MI.

    with Console(guest) as gdb:
        gdb("break vfs_read")
        with working(guest, reads(30)):
            assert "Breakpoint 1" in gdb("continue")

`tests/booted/batch.py` runs whole scripts in batch mode instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qemu.channel import Command
from qemu.debugger import PATIENTLY, gdb_program
from qemu.guest import Guest

ROOT = Path(__file__).parents[2]
EVENTS = Path(__file__).with_name("guest_events.py")
TRACING = "/sys/kernel/tracing"
PROMPT = "(gdb) "
CTRL_C = b"\x03"
SCROLLED = "\r<"
# A prompt with nothing behind it for so long is where GDB waits for us.
QUIET = 0.04
# Seconds until a GDB that has not answered has failed: a busy machine that sees a kernel for the first time takes 10.
PATIENCE = 45.0
ROWS, COLUMNS = 24, 120


class Gdb:
    """A GDB behind a file descriptor each way."""

    prompt: str

    def __init__(self, process: subprocess.Popen[bytes], into: int, out: int) -> None:
        self.process = process
        self._into = into
        self._out = out
        self.transcript = ""

    def send(self, line: str) -> None:
        os.write(self._into, line.encode() + b"\n")

    def until(self, pattern: str, timeout: float = PATIENCE) -> str:
        """What GDB prints up to the end of the first match of `pattern`, and what came with it."""
        text = ""
        deadline = time.monotonic() + timeout
        while re.search(pattern, text) is None or self._more(QUIET):
            more = self._read(deadline - time.monotonic())
            if more is None:
                raise AssertionError(f"waited for {pattern!r}, GDB has printed:\n{self.transcript}")
            text += more
        return text

    def _more(self, seconds: float) -> bool:
        return bool(select.select([self._out], [], [], seconds)[0])

    def _read(self, seconds: float) -> str | None:
        """What comes next; None when nothing does, or GDB has ended."""
        if seconds <= 0 or not self._more(seconds):
            return None
        try:
            data = os.read(self._out, 65536)
        except OSError:
            return None
        text = data.decode(errors="replace").replace("\r\n", "\n")
        self.transcript += text
        return text or None

    def rest(self, timeout: float = PATIENCE) -> str:
        """What GDB prints until it ends."""
        text = ""
        deadline = time.monotonic() + timeout
        while (more := self._read(deadline - time.monotonic())) is not None:
            text += more
        self.process.wait(max(0.1, deadline - time.monotonic()))
        return text

    def kill(self) -> None:
        """As the user's `kill -9`, or the kernel out of memory."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for descriptor in {self._into, self._out}:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Console(Gdb):
    """GDB at a terminal of its own, connected and with our file sourced unless `bare`."""

    def __init__(self, guest: Guest, *options: str, bare: bool = False) -> None:
        self.guest = guest
        self.work: Command | None = None
        self._knows_events = False
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        # Given so, and not typed, the lines do not wait for a prompt each.
        lines = () if bare else ("set confirm off", "set pagination off", PATIENTLY, *self.lines())
        process = subprocess.Popen(
            [gdb_program(), "-nx", "-q", *options, *(word for line in lines for word in ("-ex", line))],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env={**os.environ, "TERM": "dumb"},
            preexec_fn=_own_terminal,
        )
        os.close(theirs)
        super().__init__(process, ours, ours)
        self.until(re.escape(PROMPT) + "$", 2 * PATIENCE)

    def lines(self) -> tuple[str, ...]:
        """What connects a fresh GDB."""
        return f"target remote {self.guest.gdb_socket}", f"source {ROOT}/scripts/optprobe.py"

    def __call__(self, line: str, timeout: float = PATIENCE) -> str:
        """What GDB prints for one line, without the echo and the prompt."""
        self.send(line)
        return self._answer(line, timeout)

    def ctrl_c(self) -> None:
        """Whatever GDB is at."""
        os.write(self._into, CTRL_C)

    def interrupt(self, timeout: float = PATIENCE) -> str:
        """Ctrl-C; what GDB prints until its next prompt."""
        self.ctrl_c()
        return self._answer("", timeout)

    def run_for(self, seconds: float, line: str = "continue") -> str:
        """Let the guest run, then Ctrl-C; all that was printed."""
        self.send(line)
        time.sleep(seconds)
        return self.interrupt()

    def finish_work(self) -> None:
        """Let the guest run until `work` has ended there and the guest is idle, whatever the user's breakpoints say."""
        self("disable")
        assert self.work is not None
        self.send("continue")
        self.work.wait(PATIENCE)
        self.work = None
        for _ in range(100):
            time.sleep(0.1)
            self.interrupt()
            if self("info threads").count("halted") == self.guest.options.processors:
                return
            self.send("continue")
        raise AssertionError("the guest does not come to rest")

    def _answer(self, line: str, timeout: float) -> str:
        text = self.until(re.escape(PROMPT) + "$", timeout)
        # Of a line that is longer than the terminal, readline shows the end.
        shown = text.partition("\n")[0]
        echo = shown if shown.startswith(SCROLLED) and line.endswith(shown.removeprefix(SCROLLED)) else line
        return text.removeprefix(echo).removeprefix("\n").removesuffix(PROMPT)

    def probe(self, number: int) -> dict[str, Any]:
        """One probe, as `optprobe list -json` has it."""
        (probe,) = json.loads(self(f"optprobe list {number} -json"))
        assert isinstance(probe, dict)
        return probe

    def hits(self, number: int) -> int:
        return int(self.probe(number)["hits"])

    def probes(self) -> list[dict[str, Any]]:
        """All of them."""
        found = json.loads(self("optprobe list -json"))
        assert isinstance(found, list)
        return found

    def events(self) -> dict[str, int]:
        """Hits of the guest's own kprobe events, read while the guest is stopped."""
        if not self._knows_events:
            self(f"source {EVENTS}")
            self._knows_events = True
        return dict(json.loads(self("guest-event-hits")))

    def offset(self, function: str) -> int:
        """How far the PC is behind the start of a function."""
        return self.value("$pc") - self.value(function)

    def covers(self, probed: str, place: str) -> bool:
        """Whether the branch of an optimized probe, 5 bytes long, covers a place."""
        return 0 <= self.value(place) - self.value(probed) < 5

    def value(self, expression: str) -> int:
        """An expression's value, as an unsigned number."""
        return int(self(f"output/u (unsigned long)({expression})"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End GDB. Where a test has failed in the middle, the next one finds a guest that runs and has no probes."""
        if error is not None:
            error.add_note(f"GDB's terminal:\n{self.transcript[-6000:]}")
            with contextlib.suppress(AssertionError, OSError, subprocess.TimeoutExpired):
                os.write(self._into, CTRL_C)
                self.until(re.escape(PROMPT) + "$", 5)
        if self.process.poll() is None:
            with contextlib.suppress(AssertionError, OSError, subprocess.TimeoutExpired):
                self("set optprobe on-exit remove", 5)
                self.send("quit")
                self.rest()
        self.close()
        if self.work is not None:
            self.work.close()
        if self.guest.running:
            release(self.guest)


class Mi(Gdb):
    """GDB as an editor drives it."""

    prompt = "(gdb) \n"

    def __init__(self, guest: Guest) -> None:
        process = subprocess.Popen(
            [gdb_program(), "-nx", "-q", "-i=mi"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        assert process.stdin is not None and process.stdout is not None
        super().__init__(process, process.stdin.fileno(), process.stdout.fileno())
        self._token = 0
        self._kept = ""
        self("-gdb-set mi-async on")
        self(f"-gdb-{PATIENTLY}")
        self(f"-target-select remote {guest.gdb_socket}")
        self(f'-interpreter-exec console "source {ROOT}/scripts/optprobe.py"')

    def __call__(self, command: str, timeout: float = PATIENCE) -> str:
        """The result record of one command and what came before it."""
        self._token += 1
        self.send(f"{self._token}{command}")
        return self.until(rf"(?m)^{self._token}\^.*\n", timeout)

    def until(self, pattern: str, timeout: float = PATIENCE) -> str:
        """What GDB prints up to the end of the line in which `pattern` first matches; the rest is kept."""
        deadline = time.monotonic() + timeout
        while (found := re.search(pattern + r".*\n?", self._kept)) is None:
            more = self._read(deadline - time.monotonic())
            if more is None:
                raise AssertionError(f"waited for {pattern!r}, GDB has printed:\n{self.transcript}")
            self._kept += more
        text, self._kept = self._kept[: found.end()], self._kept[found.end() :]
        return text

    def console(self, line: str) -> str:
        """What a command of the console prints."""
        streams = re.findall(r'(?m)^~"(.*)"$', self(f'-interpreter-exec console "{line}"'))
        return "".join(streams).replace("\\n", "\n").replace('\\"', '"')


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def release(guest: Guest) -> None:
    """Attach and detach a GDB without us: QEMU drops its breakpoints and lets the guest run."""
    words = [word for line in (PATIENTLY, f"target remote {guest.gdb_socket}", "detach") for word in ("-ex", line)]
    subprocess.run(
        [gdb_program(), "-nx", "-batch", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )


@contextlib.contextmanager
def traced_at(guest: Guest, place: str) -> Iterator[None]:
    """The guest's own kprobe event at a place, and the program that `reads` runs, for as long as the block."""
    guest.check(f"printf '{READS}' > /bin/r; chmod +x /bin/r")
    guest.check(f"cd {TRACING}; echo 'p:citizen {place}' > kprobe_events; echo 1 > events/kprobes/enable")
    try:
        yield
    finally:
        guest.check(f"cd {TRACING}; echo 0 > events/enable; echo > kprobe_events; echo > trace")


def reads(count: int, processes: int = 1) -> str:
    """A guest's command line that calls vfs_read and vfs_write `count` times in each of some concurrent processes.

    They read 7 bytes each. A few other calls come with it, and the guest's shell reads its command line byte by byte:
    so it is a short one. Each process, of at most two, stays on its CPU: GDB waits for who is stepped or finished on
    that thread alone, and would wait for ever.
    """
    return f"r {count} {processes}"


READS = (
    "#!/bin/sh\\nfor i in $(seq $2); do"
    " taskset $i dd if=/dev/zero of=/dev/null bs=7 count=$1 2>/dev/null & done; wait\\n"
)
