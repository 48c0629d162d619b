"""The text of modules on ppc64le: too far from the kernel's for a branch to a detour.

Code that the kernel rewrites there, or knows by its address, is in tables (jump labels, faults, traps) that cannot be
found without BTF: then no instruction is copied or emulated. A breakpoint needs neither.
Barriers and features of a module are settled when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.linux.one_size_text import OneSizeModuleText
from gdb_optprobe.guest.text import Fact, Mark


class PowerModuleText(OneSizeModuleText, PowerText):
    """Fills guest.text.Text for one module."""

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        if self.module.tables is not None:
            return super().marks(start, end)
        return [Mark(Fact.UNKNOWN, at, 4) for at in range(start, end, 4)]
