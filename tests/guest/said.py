"""What GDB has printed, read by tests."""

from __future__ import annotations


def spoken(said: str) -> str:
    """What was said, without what the user was told to wait for: a kernel is read where none has been seen before."""
    return "".join(line for line in said.splitlines(keepends=True) if not line.endswith("…\n"))
