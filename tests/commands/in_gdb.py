"""Run GDB in batch mode with the real commands and a session without a guest."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from qemu.debugger import DebuggerError, gdb_program

END = "--- carried out ---"
ROOT = Path(__file__).resolve().parents[2]
# What a GDB that knows "set style error-prefix" puts before every error, on UTF-8 hosts but not in batch mode.
ERROR_PREFIX = "❌️ "


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    out: str
    err: str


def gdb(*commands: str, options: tuple[str, ...] = ("-batch",), stdin: str | None = None) -> Ended:
    """What GDB prints for `commands`, each given with -ex after our two files were sourced."""
    done = subprocess.run(
        _words(options, *commands), input=stdin or "", capture_output=True, text=True, timeout=60
    )
    return Ended(done.returncode, done.stdout, done.stderr.replace(ERROR_PREFIX, ""))


def shared_gdb(*commands: str) -> Ended:
    """As `gdb`, in one GDB that all such tests have in turn: for commands of which none ends it or leaves anything."""
    return _server().carry_out(commands)


class _Server:
    """A GDB with a new session for each list of commands."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        words = _words(("-batch",), f"source {ROOT}/tests/commands/serve.py")
        self._gdb = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1
        )
        atexit.register(self._end)

    def carry_out(self, commands: Sequence[str]) -> Ended:
        assert self._gdb.stdin is not None and self._gdb.stdout is not None
        before = self._errors.seek(0, os.SEEK_END)
        self._gdb.stdin.write(f"{json.dumps(commands)}\n")
        out = ""
        for line in self._gdb.stdout:
            last, end, status = line.partition(END)
            out += last
            if end:
                self._errors.seek(before)
                return Ended(int(status), out, self._errors.read().replace(ERROR_PREFIX, ""))
        self._errors.seek(before)
        raise AssertionError(f"GDB ended with status {self._gdb.wait(10)}: {out}{self._errors.read()}")

    def _end(self) -> None:
        self._gdb.communicate()


@cache
def _server() -> _Server:
    return _Server()


def _words(options: Sequence[str], *commands: str) -> list[str]:
    try:
        program = gdb_program()
    except DebuggerError as missing:
        pytest.skip(str(missing))
    sourced = [f"source {ROOT}/tests/commands/fake_attach.py", f"source {ROOT}/scripts/optprobe.py"]
    return [program, "-nx", "-q", *options, *(word for command in (*sourced, *commands) for word in ("-ex", command))]
