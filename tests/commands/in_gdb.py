"""Run GDB in batch mode with the real commands and a session without a guest."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = shutil.which("gdb-multiarch") or shutil.which("gdb") or ""


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    out: str
    err: str


def gdb(*commands: str, options: tuple[str, ...] = ("-batch",), stdin: str | None = None) -> Ended:
    """What GDB prints for `commands`, each given with -ex after our two files were sourced."""
    if not PROGRAM:
        pytest.skip("no GDB here")
    sourced = [f"source {ROOT}/tests/commands/fake_attach.py", f"source {ROOT}/scripts/optprobe.py"]
    words = [word for command in (*sourced, *commands) for word in ("-ex", command)]
    done = subprocess.run(
        [PROGRAM, "-nx", "-q", *options, *words], input=stdin or "", capture_output=True, text=True, timeout=60
    )
    return Ended(done.returncode, done.stdout, done.stderr)
