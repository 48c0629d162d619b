"""A GDB command `optprobe-text FILE`: write the kernel's text to a file, as the guest's memory has it.

Read as optprobe reads it, through the kernel's own page tables: a vCPU in user mode may not map the kernel.
"""

from __future__ import annotations

from pathlib import Path

import gdb

from gdb_optprobe.debugger.attach import attachments

PIECE = 1 << 20


class OptprobeText(gdb.Command):
    """Write the kernel's text to FILE."""

    def __init__(self) -> None:
        super().__init__("optprobe-text", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        assert attachments.current is not None and attachments.current.linux is not None
        kernel = attachments.current.linux.kernel
        start, end = kernel.range("_stext", "_etext")
        pieces = [kernel.memory.read(at, min(PIECE, end - at)) for at in range(start, end, PIECE)]
        Path(argument).write_bytes(b"".join(pieces))


OptprobeText()
