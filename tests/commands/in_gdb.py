"""Run GDB in batch mode with the real commands and a session without a guest."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from qemu.debugger import DebuggerError, gdb_program

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
    try:
        program = gdb_program()
    except DebuggerError as missing:
        pytest.skip(str(missing))
    sourced = [f"source {ROOT}/tests/commands/fake_attach.py", f"source {ROOT}/scripts/optprobe.py"]
    words = [word for command in (*sourced, *commands) for word in ("-ex", command)]
    done = subprocess.run(
        [program, "-nx", "-q", *options, *words], input=stdin or "", capture_output=True, text=True, timeout=60
    )
    return Ended(done.returncode, done.stdout, done.stderr.replace(ERROR_PREFIX, ""))
