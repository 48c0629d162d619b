"""Folded stacks, from which flame graphs are drawn: `outermost;…;innermost 12`.

Of stacks, how often each was seen, or nanoseconds where their time was taken. Where there are none, of calls: the
thread, the functions that nest, and the innermost one's own time in nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gdb_optprobe.exports.own_time import own_times
from gdb_optprobe.exports.recording import Recording, Stack

_SEPARATORS = re.compile(r"[;\s]")


def encode(recording: Recording) -> bytes:
    stacks = recording.stacks or [Stack(path, own.time) for path, own in own_times(recording).items()]
    return "".join(f"{line}\n" for line in lines(stacks)).encode()


def lines(stacks: Sequence[Stack]) -> list[str]:
    """Return a line for each stack that was seen."""
    return [f"{';'.join(map(_name, one.frames))} {one.weight}" for one in stacks if one.weight]


def _name(function: str) -> str:
    return _SEPARATORS.sub("_", function)
