"""What a user is told to wait for, where a kernel is seen for the first time."""

from __future__ import annotations

WAITS = ("Recovering the kernel's symbols", "Finding out what leads into the kernel's functions")


def without_progress(said: str) -> str:
    """What GDB has printed but for that: lines that end in an ellipsis."""
    return "".join(line for line in said.splitlines(keepends=True) if not line.endswith("…\n"))
