"""Have GDB leave the PC of a stop as the stub reports it.

Where a breakpoint instruction has one byte, GDB takes a stop at the address behind a breakpoint for a hit of it, and
sets the PC back: the guest runs that instruction twice. GDB does not where the stub says that it tells one from the
other (infrun.c, adjust_pc_after_break). QEMU reports the breakpoint's own address, and does not say so.
"""

from __future__ import annotations

import gdb


class StopPcs:
    """The setting, of the connection that it is set for: since GDB 14 each has its own."""

    def __init__(self) -> None:
        self._connection: gdb.TargetConnection | None = None

    def keep(self, connection: gdb.TargetConnection) -> None:
        """Set it for a connection to QEMU, unless the user has set it."""
        if "auto" in gdb.execute("show remote swbreak-feature-packet", to_string=True):
            gdb.execute("set remote swbreak-feature-packet on", to_string=True)
            self._connection = connection

    def part(self, connection: gdb.TargetConnection) -> None:
        """Put it back: GDB has closed the connection, and the next may be to another stub."""
        if self._connection is connection:
            self._connection = None
            gdb.execute("set remote swbreak-feature-packet auto", to_string=True)
