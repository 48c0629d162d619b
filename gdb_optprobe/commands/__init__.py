"""What a user types. `register` makes the commands known to GDB."""

from __future__ import annotations

from gdb_optprobe.garbage import kept
from gdb_optprobe.lazy_dataclasses import while_importing


def register() -> None:
    """Register commands, settings and functions with GDB, once: sourcing the file again changes nothing."""
    with kept(), while_importing():
        from gdb_optprobe.commands.command_table import register_all

    register_all()
