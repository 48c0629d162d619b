"""What is printed while the guest runs: GDB keeps what is written to its own output until it stops.

So it is written to this process's output, past GDB. Where something else than that gets GDB's output, each look is a
stop of the guest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gdb

from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.debugger.stop_report import is_tui_active

STANDARD_OUTPUT = 1


def can_print_at_once(is_called_from_python: bool) -> bool:
    """Return whether text may pass GDB: neither a program, a log, a window nor a caller in Python waits for it."""
    if is_called_from_python or machine_interface() or is_tui_active():
        return False
    return not gdb.parameter("logging enabled")


@contextmanager
def printed_at_once() -> Iterator[Callable[[str], object]]:
    """Yield what prints text at once."""
    output = os.dup(STANDARD_OUTPUT)
    try:
        with open(output, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as file:

            def write(text: str) -> None:
                gdb.flush(gdb.STDOUT)  # what was printed by GDB before it
                file.write(text)
                file.flush()

            yield write
    finally:
        os.close(output)
