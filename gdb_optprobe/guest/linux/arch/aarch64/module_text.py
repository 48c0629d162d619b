"""The text of modules on aarch64: mostly too far from the kernel's for a branch to a detour."""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.guest.linux.arch.aarch64.ftrace import SITE
from gdb_optprobe.guest.linux.arch.aarch64.names import EXCEPTION_ROW
from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.guest.linux.bug_table import row_size
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.module_symbols import ModuleNames, ModuleSymbols
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Area


class ArmModuleText(ModuleNames, ArmText):
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
