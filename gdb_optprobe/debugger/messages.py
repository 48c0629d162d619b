"""What is told beside a command's answer. A program that reads JSON finds nothing else in it.

                       beside text                beside JSON
    progress           GDB's log                  nowhere
    notes              GDB's log                  standard error of the process, not GDB's: that stands in the answer
    warnings           GDB's standard error         where a program has `gdb.execute(…, to_string=True)`
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
    """The answer within the block is JSON, or text."""
    token = BESIDE_JSON.set(json)
    try:
        yield
    finally:
        BESIDE_JSON.reset(token)


def progress(text: str) -> None:
    """What the user waits for."""
    if not BESIDE_JSON.get():
        note(f"{text}…")


def note(text: str) -> None:
    """A sentence that is no error: only those begin with `optprobe:`."""
    _tell(f"{text[0].upper()}{text[1:]}", gdb.STDLOG)


def warn(what: object) -> None:
    """An error that nobody waits for, or what leaving leaves in the guest."""
    _tell(f"optprobe: {what}", gdb.STDERR)


def _tell(line: str, stream: int) -> None:
    line = lines(line)
    if not BESIDE_JSON.get():
        gdb.write(f"{line}\n", stream)
    elif sys.__stderr__ is not None:
        print(line, file=sys.__stderr__, flush=True)
