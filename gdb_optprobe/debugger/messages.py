"""Messages besides a command's answer. With -json the answer is JSON and nothing else.

                       with text                  with JSON
    progress           GDB's log                  -
    notes              GDB's log                  standard error of the process, not GDB's, because
    warnings           GDB's standard error         `gdb.execute(…, to_string=True)` includes that
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import gdb

from gdb_optprobe.guest_text import lines

BESIDE_JSON: ContextVar[bool] = ContextVar("BESIDE_JSON", default=False)


@contextmanager
def beside(json: bool) -> Iterator[None]:
    """Say whether the answer that is printed within the block is JSON."""
    token = BESIDE_JSON.set(json)
    try:
        yield
    finally:
        BESIDE_JSON.reset(token)


def progress(text: str) -> None:
    """Print a step that takes time."""
    if not BESIDE_JSON.get():
        note(f"{text}…")


def note(text: str) -> None:
    """Print a sentence that is no error: it has no prefix `optprobe:`."""
    _tell(f"{text[0].upper()}{text[1:]}", gdb.STDLOG)


def warn(what: object) -> None:
    """Print an error outside a command, or what remains in the guest after GDB has left."""
    _tell(f"optprobe: {what}", gdb.STDERR)


def _tell(line: str, stream: int) -> None:
    line = lines(line)
    if not BESIDE_JSON.get():
        gdb.write(f"{line}\n", stream)
    elif sys.__stderr__ is not None:
        print(line, file=sys.__stderr__, flush=True)
