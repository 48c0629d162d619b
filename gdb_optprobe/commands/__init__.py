"""What a user types. `register` makes the commands known to GDB."""

from __future__ import annotations


def register() -> None:
    """Register commands, settings and functions with GDB, once: sourcing the file again changes nothing."""
    from gdb_optprobe.commands.command_table import register_all

    register_all()
