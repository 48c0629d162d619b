"""What a reading takes: steps of Python's and memory, where seconds would tell of the machine."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gdb_optprobe.errors import OptprobeError

MEMORY = 64 << 20
"""Bytes that a reading may take beside what is linear in the bytes read."""
EACH = 32
"""Bytes that it may take for each byte read: a name of one is an object of Python's."""


class TooManySteps(BaseException):
    """A reading has gone beyond what it may take; no reader catches this."""


@dataclass(frozen=True)
class Outcome:
    """value: None where it was refused. error: why, in one line; "" where it was not."""

    value: Any = None
    error: str = ""


def outcome(work: Callable[[], Any]) -> Outcome:
    """Of a reading, which ends in a value or in an OptprobeError of one line, whatever the bytes."""
    try:
        return Outcome(work())
    except OptprobeError as error:
        assert str(error) and "\n" not in str(error)
        return Outcome(error=str(error))


def within(work: Callable[[], Any], lines: int) -> Outcome:
    """The same, of a reading that may run so many lines of Python's."""
    left = lines

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            raise TooManySteps(f"over {lines:,} lines")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return outcome(work)
    finally:
        sys.settrace(before)


def in_memory(work: Callable[[], Any], read: int) -> Outcome:
    """The same, of a reading of so many bytes that may take memory for them."""
    tracemalloc.start()
    try:
        found = outcome(work)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MEMORY + EACH * read, f"{peak >> 20} MiB for {read:,} bytes"
    return found


def soon(work: Callable[[], Any], seconds: float) -> Outcome:
    """The same, of a reading that may take the CPU for so long.

    Python's collector does not run meanwhile: it walks all that the cases before have left, for over a second.
    """
    gc.disable()
    before = time.process_time()
    try:
        found = outcome(work)
        taken = time.process_time() - before
    finally:
        gc.enable()
    assert taken < seconds, f"{taken:.2f} s of the CPU"
    return found
