"""The text of modules on ppc64le: too far from the kernel's for a branch to a detour.

Code that the kernel rewrites there, or knows by its address, is in tables (jump labels, faults, traps) that cannot be
found without BTF: then no instruction is copied or emulated. A breakpoint needs neither.
Barriers and features of a module are settled when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdb_optprobe.guest.linux.arch.ppc64le.constants import EXCEPTION_ROW
from gdb_optprobe.guest.linux.arch.ppc64le.ftrace import SITE
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.linux.bug_table import row_size
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.module_symbols import ModuleNames, ModuleSymbols
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Area, Fact, Mark


class PowerModuleText(ModuleNames, PowerText):
    """Fills guest.text.Text for one module."""

    def __init__(self, module: Module, kernel: Kernel, originals: OriginalText) -> None:
        """Read the module. Raises OptprobeError."""
        self.module = module
        self.symbols = ModuleSymbols(module, kernel, row_size(kernel), EXCEPTION_ROW.size)
        super().__init__(replace(kernel, symbols=self.symbols), originals=originals)
        self.renew(module)

    def renew(self, module: Module) -> None:
        """Take the module as it is after the guest has run."""
        self.module = module
        self.forget()
        self.ftrace = FtraceSites(self._kernel, SITE, of=module.text)

    def area(self, address: int) -> Area:
        found = super().area(address)
        return Area.LOADED if found is Area.TEXT else found

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        if self.module.tables is not None:
            return super().marks(start, end)
        return [Mark(Fact.UNKNOWN, at, 4) for at in range(start, end, 4)]
