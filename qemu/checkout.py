"""Say whether this is a checkout or an installed package, and what files and programs are called there."""

from __future__ import annotations

from pathlib import Path

__all__ = ["INSTALL_IT", "IS_CHECKOUT", "PLUGIN", "ROOT", "program"]

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the package `gdb_optprobe`."""
# setup.cfg installs this folder as gdb_optprobe_qemu.
IS_CHECKOUT = __package__ == "qemu"
PLUGIN = ROOT / ("scripts/optprobe.py" if IS_CHECKOUT else "gdb_optprobe/commands/load.py")
"""The file that GDB sources."""
INSTALL_IT = "scripts/setup installs it" if IS_CHECKOUT else "install it with the packages of your system"


def program(word: str) -> str:
    """Return how the user calls a program: `scripts/guest`, or `optprobe guest`."""
    return f"scripts/{word}" if IS_CHECKOUT else f"optprobe {word}"
