"""One running Linux kernel, put together: its text, its stacks, what names mean in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi, scope
from gdb_optprobe.guest.linux import bypasses, frame
from gdb_optprobe.guest.linux.arch.base import LinuxArch, LinuxText, Reads, Say, Stacks, Unwinder
from gdb_optprobe.guest.linux.clock import hertz
from gdb_optprobe.guest.linux.current import Current
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.structures import KernelStructures, Layouts, no_layouts
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.scope import Debug
from gdb_optprobe.guest.scope import Site as Probed
from gdb_optprobe.guest.text import Function, Overlay
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.guest.user_scope import user_scope
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.record import Isa

LARGEST_BTF = 1 << 26
NO_TYPES = "before the first optprobe command, load its vmlinux with debug information: symbol-file FILE"
RETURN_HOOKS = ("return_to_handler", "arch_rethook_trampoline", "__kretprobe_trampoline", "kretprobe_trampoline")
DebugAt = Callable[[int, abi.Abi, Callable[[], Expr | None]], Debug | None]
"""Of an address, what debug information tells; the last tells where the frame of the function there begins."""


@dataclass
class LinuxGuest:
    """What is known of the guest's kernel, and what of it must be forgotten when the guest has run.

    originals: what text held before an earlier GDB changed it, by address. Raises OptprobeError.
    """

    recovered: DiscoveredKernel
    machine: Machine
    memory: KernelMemory
    isa: Isa
    kernel: Kernel
    structures: KernelStructures
    core: LinuxText
    text: LoadedText
    arch: LinuxArch
    _saved: list[SavedWords] | None = None
    _moment: int = 0
    _constants: dict[str, int | None] = field(default_factory=dict)
    unwind_missing: OptprobeError | None = None
    originals: Callable[[], Originals] = dict

    @classmethod
    def of(
        cls,
        recovered: DiscoveredKernel,
        machine: Machine,
        memory: KernelMemory,
        isa: Isa,
        arch: LinuxArch,
        overlay: Overlay,
        say: Say,
        layouts: Callable[[], Layouts | None] = no_layouts,
    ) -> LinuxGuest:
        """`overlay` shows the original bytes in place of our branches. layouts: GDB's, of this kernel."""

        def blob() -> bytes:
            kernel = Kernel(memory, recovered.symbols)
            start, end = kernel.range("__start_BTF", "__stop_BTF")
            if not 0 < end - start <= LARGEST_BTF:
                raise OptprobeError("this kernel has no type information (BTF)", NO_TYPES)
            return kernel.read(start, end)

        structures = KernelStructures(blob, layouts)
        kernel = arch.kernel(memory, recovered.symbols, structures)
        core = arch.text(kernel, overlay, recovered.shelf, say)
        text = arch.modular(kernel, core)
        return cls(recovered, machine, memory, isa, kernel, structures, core, text, arch)

    def forget(self) -> None:
        """The guest has run: page tables, the vCPUs' view, stacks and the text may have changed."""
        self._saved = None
        self._moment += 1
        self.memory.forget()
        self.text.forget()

    def moment(self) -> int:
        """The same until the guest may have run."""
        return self._moment

    def still_there(self) -> bool:
        """Whether a vCPU still runs this kernel. Raises Unreadable."""
        return self.recovered.still_there(self.machine)

    # stacks --------------------------------------------------------------------------------------------------------

    @cached_property
    def _stacks(self) -> Stacks:
        return self.arch.stacks(self.kernel, self.machine, self.isa.registers)

    def saved(self) -> Iterable[SavedWords]:
        """Everywhere a PC may be saved now. Raises OptprobeError.

        While the guest stands they are read once.
        """
        if self._saved is None:
            start, end = self.kernel.range("_stext", "_etext")
            reach = self.isa.branch_reach
            self._saved = [found.among(start - reach, end + reach) for found in self._stacks.saved()]
        return self._saved

    def hides(self) -> bool:
        """Whether a thread that ends may have return addresses on a stack that is not among them. Raises OptprobeError.
        """
        return self._stacks.hides()

    def stacks_missing(self) -> str:
        """Why not all stacks can be told, in words; "" when they can."""
        return self.arch.stacks_missing(self.kernel)

    @cached_property
    def hidden_returns(self) -> tuple[int, ...]:
        """Where the kernel's tracers have calls return to (fgraph.c, rethook.c, kprobes.c)."""
        found = (self.kernel.symbols.address(name) for name in RETURN_HOOKS)
        return tuple(address for address in found if address is not None)

    # names -----------------------------------------------------------------------------------------------------------

    def scope(
        self, address: int, convenience: Callable[[str], int | None], debug: DebugAt = lambda address, abi, frame: None
    ) -> NamesAt:
        """What names mean at `address`. convenience: the values of GDB's variables. debug: its debug information."""
        function = self.text.function(address)
        name = self._named(function) if function is not None else ""
        site = scope.Site(address, name, function is not None and self._is_entry(address))
        of = abi.of(self.isa)
        return self._names(site, convenience, debug(address, of, lambda: self._frame(address, of)))

    def _frame(self, address: int, of: abi.Abi) -> Expr | None:
        return frame.base(self.own_unwinder, address, of) if self.own_unwinder is not None else None

    def _names(
        self, site: Probed, convenience: Callable[[str], int | None], debug: Debug | None = None
    ) -> NamesAt:
        of = abi.of(self.isa)
        names = scope.kernel_scope(self.kernel, self.current, self._types, of, site, convenience, debug)
        cpu = self.current.cpu
        number = None if isinstance(cpu, Missing) else cpu
        return NamesAt(names, self.arch.per_cpu(self.kernel), number, self.reads, hertz(self.kernel, self.arch.clock))

    def at_return(
        self, address: int, convenience: Callable[[str], int | None], debug: DebugAt = lambda address, abi, frame: None
    ) -> NamesAt | None:
        """What names mean where the function has returned that is entered at `address`; None where none is."""
        if (function := self.text.function(address)) is None or not self._is_entry(address):
            return None
        site = scope.Site(address, self._named(function), returns=True)
        return self._names(site, convenience, debug(address, abi.of(self.isa), lambda: None))

    def _named(self, function: Function) -> str:
        """A module's function with the module's name: the kernel's own types know nothing of it."""
        return self.text.symbol(function.start) or function.name

    def bypassed(self, address: int) -> str:
        """See Target."""
        function = self.text.function(address)
        if function is None or not self._is_entry(address):
            return ""
        module = self.text.at(address)
        kernel = self.kernel if module is None else replace(self.kernel, symbols=module.symbols)
        return bypasses.note(kernel, function.name, function.start)

    def entered(self, function: Function) -> bool:
        """See Target."""
        return self.arch.entered(function, self.own_unwinder)

    @cached_property
    def own_unwinder(self) -> Unwinder | None:
        """Of what stands in the guest's memory now."""
        return self.unwinder(self.memory.read)

    def _is_entry(self, address: int) -> bool:
        """Whether arguments are where the ABI has them: nothing but the tracer's site may have run."""
        function = self.text.function(address)
        if function is None:
            return False
        entry = self.entry(function.start)
        return address == entry or any(site.end == address for site in self.text.ftrace_sites(entry, entry + 1))

    @cached_property
    def reads(self) -> Reads | Missing:
        """How memory that may not be there is read."""
        try:
            return self.arch.reads(self.kernel, self.machine, self.memory.physical)
        except OptprobeError as error:
            return Missing(error.message, error.hint)

    def trap_calls(self) -> TrapCalls:
        """Raises OptprobeError."""
        return self._trap_calls

    @cached_property
    def _trap_calls(self) -> TrapCalls:
        return self.arch.trap_calls(self.kernel, self.originals())

    @cached_property
    def user_kernel(self) -> UserKernel:
        """What probes on programs need of it. Raises OptprobeError."""
        return self.arch.user_kernel(self.kernel, self.machine, self.memory.physical, self.originals())

    def constant(self, name: str) -> int | None:
        """The value of an enumerator of the kernel's; None where none is known of that name."""
        if name not in self._constants:
            self._constants[name] = self._types.btf.constant(name) if self._types is not None else None
        return self._constants[name]

    def user_names(
        self,
        address: int,
        entry: bool,
        bits: int,
        convenience: Callable[[str], int | None],
        returns: bool = False,
    ) -> NamesAt:
        """What names mean at an address of a program."""
        found = self._names(scope.Site(address, "", entry, returns), convenience)
        assert isinstance(found.names, scope.KernelScope), "of this kernel"
        return replace(found, names=user_scope(found.names, bits, self.user_kernel.isa, self.user_kernel.kernel.offset))

    @cached_property
    def _types(self) -> BtfTypes | None:
        try:
            return BtfTypes(self.structures.btf)
        except OptprobeError:
            return None

    @cached_property
    def current(self) -> Current:
        """What runs."""
        return self.arch.current(self.kernel)

    # the unwinder ----------------------------------------------------------------------------------------------------

    def unwinder(self, read: Callable[[int, int], bytes], quietly: bool = False) -> Unwinder | None:
        """From a frame to its caller; None where this kernel's stack cannot be unwound, see `unwind_missing`.

        quietly: of modules, by what is known: nothing is read but by `read`.
        """
        find = self.text.known if quietly else self.text.at

        def module(address: int) -> Module | None:
            found = find(address)
            return found.module if found is not None else None

        try:
            return self.arch.unwinder(self.kernel, self.core, self.structures, read, module)
        except OptprobeError as error:
            self.unwind_missing = error
            return None

    def entry(self, function: int) -> int:
        """Where a probe on the function whose symbol is at `function` stands."""
        return self.arch.entry(function, self.text)
