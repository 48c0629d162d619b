"""Compile a script for the guest of a session, and run it: `optprobe script`, and commands that compose one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gdb

from gdb_optprobe.commands.at_once import printed_at_once
from gdb_optprobe.commands.base import stream
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script.compile import Script, compile_script
from gdb_optprobe.handlers.script.host import HostScope
from gdb_optprobe.handlers.script.output import Output
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.probes.script_host import GuestFiles, GuestNames
from gdb_optprobe.probes.script_kernel import ScriptKernel
from gdb_optprobe.probes.script_run import ScriptRun
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.session_scripts import STRINGS


@dataclass(frozen=True, slots=True)
class CompiledScript:
    """A script that may run in the guest of a session. kernel: without the handlers of tracepoints that were tried."""

    session: Session
    script: Script
    kernel: ScriptKernel
    now: int | Missing

    def run(
        self,
        output_of: Callable[[GuestNames], Output],
        write: Callable[[str], object],
        warn: Callable[[str], object],
        start: Callable[[ScriptRun], int],
        quiet: bool,
        live: Callable[[], LiveMemory | None],
    ) -> int:
        """Run it as `start` does, and return the status. output_of: makes what prints. live: see ScriptRun.

        Raises OptprobeError.
        """
        names = GuestNames(self.kernel, self.now, lambda: running.maps)
        with gdb.with_parameter("pagination", False):
            running = ScriptRun(
                self.session,
                self.script,
                output_of(names),
                GuestFiles(self.kernel),
                write,
                warn,
                self.kernel.now,
                quiet=quiet,
                live=live,
            )
            return start(running)


def compiled(
    session: Session, text: str, parameters: Sequence[str] = (), unsafe: bool = False, keep: bool = False
) -> CompiledScript:
    """Compile a script; nothing is attached. keep: its maps are to be the session's. Raises OptprobeError."""
    optimizer = session.optimizer
    kernel = ScriptKernel(session.target)
    now = kernel.now()
    host = HostScope(untimed=now) if isinstance(now, Missing) else HostScope(started=now)
    settings = Settings(max_strlen=STRINGS)
    with ExitStack() as tried:
        trial = partial(optimizer.tracepoints.trial, arena=optimizer.find_arena)
        kernel = ScriptKernel(session.target, host, lambda event: tried.enter_context(trial([event])))
        known = optimizer.scripts.current() if keep else None
        script = compile_script(text, kernel, parameters, settings, unsafe, known)
    return CompiledScript(session, script, kernel, now)


@contextmanager
def written(name: str, at_once: bool) -> Iterator[Callable[[str], object]]:
    """Yield what takes the text that a script prints. name: of a file; "" for this process's output, past GDB if it is
    to come `at_once`. Raises OptprobeError.
    """
    if not name:
        with printed_at_once() if at_once else nullcontext(stream) as write:
            yield write
        return
    try:
        # A line is there when it is printed, for a reader that follows the file.
        file = Path(name).expanduser().open("w", buffering=1, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise OptprobeError(f"failed to open file '{one_line(name)}': {error.strerror}") from error
    with file:
        yield file.write


def warn(text: str) -> None:
    gdb.write(f"WARNING: {text}\n", gdb.STDERR)
