"""The text of modules on aarch64."""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.guest.linux.one_size_text import OneSizeModuleText


class ArmModuleText(OneSizeModuleText, ArmText):
    """Fills guest.text.Text for one module."""
