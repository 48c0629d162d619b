"""Run GDB in batch against a guest, with workloads in the guest while GDB lets it run.

A script is a list of lines of GDB's; a `Workload` among them lets the guest run until its command has ended there.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qemu.debugger import PATIENTLY, gdb_program
from qemu.guest import Guest
from tests.booted.progress import without_progress

ROOT = Path(__file__).parents[2]
MARK = "@@"
AGAIN = 15.0
"""Seconds after which a GDB that has not ended its run is interrupted once more."""


@dataclass(frozen=True)
class Workload:
    """A command line in the guest, for which the guest runs until it has ended."""

    command: str
    timeout: float = 120.0


@dataclass(frozen=True)
class Finished:
    """What GDB printed (both streams), its exit status, and what each workload printed."""

    output: str
    status: int
    workloads: tuple[str, ...]

    def json(self, name: str) -> Any:
        """What `json(name, command)` printed."""
        begin = f"{MARK}{name}\n"
        return json.loads(without_progress(self.output.split(begin)[1]).splitlines()[0])


def at_once(guest: Guest, command: str, name: str = "at_once") -> Workload:
    """A workload in a file of the guest's, which its shell reads at once. A command line it reads byte by byte: each
    byte is a hit of a probe on reads, and a stop in the tiers that stop.
    """
    guest.check(f"printf %s {shlex.quote(command)} > /bin/{name}; chmod +x /bin/{name}")
    return Workload(name)


def keep(name: str, command: str) -> str:
    """A line that prints a command's JSON for `Finished.json`."""
    return f'python print("{MARK}{name}"); gdb.execute("{command} -json")'


def timed(name: str, command: str) -> str:
    """A line that runs a command and keeps the seconds it took, for `Finished.json`."""
    return (
        f"python import time; _t = time.monotonic(); gdb.execute({command!r}); "
        f'print("{MARK}{name}"); print(time.monotonic() - _t)'
    )


def batch(
    guest: Guest,
    script: Sequence[str | Workload],
    *,
    source: bool = True,
    symbols: Path | None = None,
    timeout: float = 300.0,
    **environment: str,
) -> Finished:
    """Run `script` in a GDB that is connected to `guest` and has sourced scripts/optprobe.py.

    symbols: what GDB has before: a guest that has those of no Linux is not searched for one, which takes seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        runner = _Runner(guest, Path(folder))
        lines = ["set pagination off", "set width 0", PATIENTLY, f"target remote {guest.gdb_socket}"]
        lines += [f"symbol-file {symbols}"] if symbols is not None else []
        lines += [f"source {ROOT}/scripts/optprobe.py"] if source else []
        lines += [runner.line(step) if isinstance(step, Workload) else step for step in script]
        path = Path(folder) / "script.gdb"
        path.write_text("\n".join(lines) + "\n")
        command = [gdb_program(), "-nx", "-batch", "-x", str(path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        thread = threading.Thread(target=runner.serve, args=(process,), daemon=True)
        thread.start()
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise AssertionError(f"GDB did not end in {timeout:g} s:\n{output}") from None
        finally:
            runner.stopped = True
            thread.join(5)
        return Finished(output, process.returncode, tuple(runner.outputs))


class _Runner:
    """Starts each workload when GDB has come to it, and interrupts GDB's run when it has ended."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        self._guest = guest
        self._folder = folder
        self._steps: list[Workload] = []
        self.outputs: list[str] = []
        self.stopped = False

    def line(self, step: Workload) -> str:
        number = len(self._steps)
        self._steps.append(step)
        return f"shell touch {self._begun(number)}\noptprobe run\nshell touch {self._ended(number)}"

    def _begun(self, number: int) -> Path:
        return self._folder / f"{number}.begun"

    def _ended(self, number: int) -> Path:
        return self._folder / f"{number}.ended"

    def serve(self, process: subprocess.Popen[str]) -> None:
        for number, step in enumerate(self._steps):
            self._wait_for(self._begun(number))
            if self.stopped:
                return
            try:
                self.outputs.append(self._guest.run(step.command, step.timeout)[1])
            except Exception as error:
                self.outputs.append(f"workload failed: {error}")
            # The guest ran, so GDB is in its run, or something else has ended that.
            while not self._ended(number).exists() and not self.stopped:
                process.send_signal(signal.SIGINT)
                self._wait_for(self._ended(number), AGAIN)

    def _wait_for(self, file: Path, seconds: float = math.inf) -> None:
        deadline = time.monotonic() + seconds
        while not file.exists() and not self.stopped and time.monotonic() < deadline:
            time.sleep(0.02)
