"""The text of modules beside the kernel's own, on x86-64. A module is read as a small kernel (module_symbols.py).

    kernel's image ──► KernelText          modules are looked up by address; a ModuleText is dropped when the guest
    module        ──► ModuleText           has run and the module is gone, or the memory belongs to another one
    anything else in memory for modules: no text

A probe in a module is as safe as the module itself. A thread in a detour of a function is in that function: what keeps
the module from being unloaded under the function (a reference, RCU, the end of its callbacks, which its exit function
awaits) keeps it loaded while the thread is in the detour. Once the text is freed, no thread can return to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdb_optprobe.guest.linux.arch.x86_64 import mid_function_entries, nops, smp_locks
from gdb_optprobe.guest.linux.arch.x86_64.mid_function_entries import Functions, MidFunctionEntries
from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.linux.bug_table import row_size
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.module_symbols import ModuleNames, ModuleSymbols
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Area, Fact, Mark
from gdb_optprobe.isa.record import Isa

TRAMPOLINE = "__SCT__"
LOCK = 0x3E  # the prefix that replaces a lock on one CPU


class ModuleText(ModuleNames, KernelText):
    """Fills guest.text.Text for one module."""

    def __init__(
        self, module: Module, kernel: Kernel, isa: Isa, originals: OriginalText, is_code: Callable[[int], bool]
    ) -> None:
        """Read the module. Raises OptprobeError.
        is_code: whether a function of the kernel or of any module is at an address.
        """
        self.module = module
        self.symbols = ModuleSymbols(module, kernel, row_size(kernel))
        own = Kernel(kernel.memory, self.symbols, kernel.structures)
        super().__init__(own, isa, originals=originals)
        self._core_kernel = kernel
        self.ftrace = self._sites(module)
        self._is_code = is_code

    def renew(self, module: Module) -> None:
        """Take the module as it is after the guest has run: its state and the tracer's records may have changed."""
        self.module = module
        self.forget()
        self.ftrace = self._sites(module)

    def _sites(self, module: Module) -> FtraceSites:
        return FtraceSites(self._kernel, nops.SITE, of=module.text, nop=lambda: nops.traced_place(self._core_kernel))

    def area(self, address: int) -> Area:
        found = super().area(address)
        start, end = self.module.init
        if start <= address < end:
            return Area.INIT
        return Area.LOADED if found is Area.TEXT else found

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        if self.module.tables is None:
            return [Mark(Fact.UNKNOWN, at, 1) for at in range(start, end)]
        found = [*super().marks(start, end)]
        function = self.function(start)
        if function is None:
            return found
        if function.name.startswith(TRAMPOLINE):
            found.append(Mark(Fact.STATIC_CALL, start, end - start))
        if smp_locks.waiting(self._core_kernel):
            prefixes = (insn.address for insn in function.hot if insn.data[0] == LOCK)
            found += [Mark(Fact.LOCK_PREFIX, at, 1) for at in prefixes if start <= at < end]
        return found

    def all_entries(self) -> MidFunctionEntries:
        if self._landings is None:
            start, end = self.module.text
            self.originals.check()
            text = self.originals.read(start, end)
            functions = Functions(self.symbols, start, text)
            found = mid_function_entries.find(text, start, functions, self._isa.decode, self._words())
            self._landings = found.landings
        return self._landings

    def _words(self) -> Iterator[tuple[int, bytes]]:
        for start, end in (*self.module.constants, *self.module.data):
            yield start, self._core_kernel.read(start, end)

    def _leads_astray(self, target: int) -> bool:
        return not self._is_code(target)
