"""A GDB that a program drives: lines in, output out.

    with Debugger(guest.gdb_socket) as gdb:
        gdb("optprobe add vfs_read")
        gdb.running(lambda: guest.run("dd …"))      # the guest runs for as long as the call takes
        print(gdb("optprobe report"))
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from .checkout import INSTALL_IT, IS_CHECKOUT, PLUGIN, ROOT
from .processes import end_with_parent

__all__ = [
    "PATIENTLY",
    "TIMEOUT",
    "Debugger",
    "DebuggerError",
    "gdb_program",
    "knows",
    "line_to_start",
    "lines_to_start",
]

TIMEOUT = 120.0
AGAIN = 3.0
T = TypeVar("T")
# Progress and errors of optprobe look alike in the output, so this command marks a failure.
FAILED = "@@failed@@"
TRY = f"""python
def optprobe_try(line):
    try:
        gdb.execute(line)
    except gdb.error as error:
        print("{FAILED}", error)
end"""


class DebuggerError(Exception):
    """GDB failed; the text has its output."""


class DebuggerTimeout(DebuggerError):
    """GDB has not answered yet."""


PATIENTLY = "set remotetimeout 30"
"""For a busy machine: GDB asks again after 2 s, and takes the second answer for that to its next question."""


def gdb_program() -> str:
    """Return the GDB to run: $OPTPROBE_GDB, or one that knows every architecture if there is one."""
    if wanted := os.environ.get("OPTPROBE_GDB"):
        found, why = shutil.which(wanted), f"$OPTPROBE_GDB is no program: {wanted}"
    else:
        found = shutil.which("gdb-multiarch") or shutil.which("gdb")
        why = f"gdb-multiarch is not installed; {INSTALL_IT}"
    if found is None:
        raise DebuggerError(why)
    return found


def knows(architecture: str) -> bool:
    """Return whether that GDB debugs guests of `architecture`, as GDB names it."""
    command = [gdb_program(), "-nx", "-batch", "-ex", f"set architecture {architecture}"]
    return not subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).stderr


def lines_to_start(socket: Path | str) -> tuple[str, ...]:
    """Return the first commands for GDB."""
    return f"target remote {socket}", f"source {PLUGIN}"


def line_to_start(socket: Path | str) -> str:
    """Return the shell's line that starts GDB so."""
    program, lines = (["gdb-multiarch"], 2) if IS_CHECKOUT else (["optprobe", "gdb"], 1)
    return shlex.join([*program, *(word for line in lines_to_start(socket)[:lines] for word in ("-ex", line))])


class Debugger:
    """GDB without a terminal, connected to a guest, with the commands of optprobe. It ends with the `with` block."""

    def __init__(self, socket: Path | str, program: str = "", symbols: Path | None = None) -> None:
        """Start GDB. program: the GDB to run; "" for the one of `gdb_program`. symbols: a vmlinux for it."""
        self._marks = itertools.count()
        self._printed = b""
        self._process = subprocess.Popen(
            [program or gdb_program(), "-nx", "-q"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            # A Ctrl-C at the terminal must not reach GDB: this process handles it.
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
        self._until(self._send(TRY), TIMEOUT)
        given = (f"symbol-file {symbols}",) if symbols is not None else ()
        first = ("set pagination off", "set width 0", "set confirm off", PATIENTLY, *given)
        for line in (*first, *lines_to_start(socket)):
            self(line)
        # Without a terminal there is no prompt to ask at.
        self("set optprobe on-exit remove")

    @property
    def pid(self) -> int:
        return self._process.pid

    def __call__(self, line: str, timeout: float = TIMEOUT) -> str:
        """Run one line and return its output. Raises DebuggerError when the line fails."""
        printed, failed, why = self._until(self._send(f"python optprobe_try({line!r})"), timeout).partition(FAILED)
        if failed:
            raise DebuggerError(f"{line}: {why.strip().removeprefix('optprobe: ')}")
        return printed

    def begin(self, line: str) -> None:
        """Send GDB a line without waiting for its end, to kill it meanwhile."""
        self._send(f"python optprobe_try({line!r})")

    def running(self, work: Callable[[], T], timeout: float = TIMEOUT) -> T:
        """Let the guest run until `work` returns, and return its result."""
        mark = self._send("continue")
        self._until("Continuing.", timeout)
        try:
            return work()
        finally:
            self._interrupt(mark, timeout)

    def _interrupt(self, mark: str, timeout: float) -> None:
        """Stop the guest. GDB drops a signal that comes just as it hands over the terminal, so it is sent again."""
        deadline = time.monotonic() + timeout
        while True:
            self._process.send_signal(signal.SIGINT)
            try:
                self._until(mark, min(AGAIN, timeout))
                return
            except DebuggerTimeout:
                if time.monotonic() > deadline:
                    raise

    def kill(self) -> None:
        """End GDB as the user's `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def quit(self, timeout: float = TIMEOUT) -> None:
        """Let GDB leave as the user's `quit` does, and wait for it. Raises DebuggerError where it does not."""
        self.begin("quit")
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise DebuggerError(f"GDB does not quit; it printed:\n{self._said()}") from None

    def close(self) -> None:
        """End GDB as `quit` does, so that the guest is as it was; by force where GDB does not react."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, DebuggerError):
            if self._process.poll() is None and self._process.stdin is not None:
                self._process.stdin.write(b"quit\n")
                self._process.stdin.flush()
                self._process.wait(10)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Debugger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, DebuggerError):
            # It may be in the middle of a `continue`.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)
        self.close()

    def _send(self, line: str) -> str:
        mark = f"@@{next(self._marks)}@@"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\necho {mark}\\n\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise DebuggerError(f"GDB has ended before: {line}") from None
        return mark

    def _until(self, mark: str, timeout: float) -> str:
        """Return the output before `mark`, without GDB's prompts."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while mark.encode() not in self._printed:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise DebuggerTimeout(f"GDB did not answer in {timeout:g} s; it printed:\n{self._said()}")
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise DebuggerError(f"GDB has ended; it printed:\n{self._said()}")
            self._printed += piece
        before, _, self._printed = self._printed.partition(mark.encode())
        return before.decode(errors="replace").replace("(gdb) ", "").lstrip("\n")

    def _said(self) -> str:
        return self._printed.decode(errors="replace")
