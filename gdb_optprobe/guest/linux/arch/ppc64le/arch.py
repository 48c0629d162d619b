"""The record of Linux on ppc64le."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.kernel_image import Image
from gdb_optprobe.guest.linux.arch.base import (
    Facts,
    LinuxArch,
    LinuxText,
    ModuleAt,
    Reads,
    Room,
    Say,
    Stacks,
    Unwinder,
    WalkedFrom,
    Window,
    nowhere,
)
from gdb_optprobe.guest.linux.arch.ppc64le import (
    back_chain,
    chain_walk,
    current,
    derive,
    image_padding,
    linear_window,
    program_check,
    sched_clock,
    stacks,
    user_kernel,
    user_walk,
)
from gdb_optprobe.guest.linux.arch.ppc64le import find as finding
from gdb_optprobe.guest.linux.arch.ppc64le import reads as reading
from gdb_optprobe.guest.linux.arch.ppc64le import structures as code
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.ftrace import ENTERED
from gdb_optprobe.guest.linux.arch.ppc64le.kernel_tree import VMALLOC, KernelMap
from gdb_optprobe.guest.linux.arch.ppc64le.module_text import PowerModuleText
from gdb_optprobe.guest.linux.arch.ppc64le.syscalls import SYSCALLS
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.linux.arch.ppc64le.trap_entry import TRAPPING
from gdb_optprobe.guest.linux.boot import INITCALLS, Beginning
from gdb_optprobe.guest.linux.clock import ClockRate
from gdb_optprobe.guest.linux.current import Current, unknown
from gdb_optprobe.guest.linux.kernel import Kernel, Structures, Symbols
from gdb_optprobe.guest.linux.kernel_discovery import View
from gdb_optprobe.guest.linux.loaded_text import LoadedText, ModuleCode
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.linux.page_allocator import NO_CODE
from gdb_optprobe.guest.linux.syscall_events import SyscallAbi
from gdb_optprobe.guest.linux.tracepoints import TracepointArch
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine, Memory, Vcpu
from gdb_optprobe.guest.symbols import SymbolTable
from gdb_optprobe.guest.text import Function, Overlay, Text
from gdb_optprobe.handlers.stack_walk import Walker
from gdb_optprobe.isa.base import Flow, ReadMemory
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.abi import TOC_SETUP
from gdb_optprobe.isa.ppc64le.return_codegen import is_leaf
from gdb_optprobe.isa.record import Isa


@dataclass(frozen=True, slots=True)
class BackChain:
    """Unwind by the stack's back chain, and the code of the innermost function."""

    text: tuple[int, int]
    code: PowerText
    read: Callable[[int, int], bytes]
    how = "the stack's back chain"

    def knows(self, pc: int) -> bool:
        return self.text[0] <= pc < self.text[1]

    def caller(self, registers: Mapping[str, int], exact: bool) -> tuple[Mapping[str, int], bool] | None:
        found = back_chain.unwind(back_chain.State(registers, exact=exact), self.function, self.read)
        return (found.registers, found.exact) if found is not None else None

    def over(self, read: ReadMemory) -> BackChain:
        return replace(self, read=read)

    def function(self, pc: int) -> back_chain.Function | None:
        found = self.code.function(pc)
        return (found.start, found.own) if found is not None else None


EVENT_COSTS = {"kprobe": 1_125, "kretprobe": 1_696, "uprobe": 2_455, "uretprobe": 3_980}


class _Linux:
    isa: Isa = PPC64LE
    # arch/powerpc/kernel/time.c
    clock: Sequence[ClockRate] = (
        ClockRate("tb_ticks_per_sec", 8, 1),
        ClockRate("tb_ticks_per_usec", 8, 1_000_000),
    )
    log_clock = staticmethod(sched_clock.log_clock)
    syscalls: SyscallAbi = SYSCALLS
    tracepoints: TracepointArch | None = None
    event_costs: Mapping[str, int] = EVENT_COSTS
    page_faults: Sequence[tuple[str, str]] = (("___do_page_fault", "arg1"), ("__do_page_fault", "arg1"))
    loaded = VMALLOC
    # early_setup() patches the first instruction, at the start of the linear map (arch/powerpc/kernel/setup_64.c). What
    # copies the kernel there flushes each cache line by the line's last word (copy_and_flush in head_64.S).
    first_reads: Sequence[tuple[int, int]] = ((finding.LINEAR_MAP[0], 8),)
    beginning: Beginning = INITCALLS
    find = staticmethod(finding.find)
    notes = staticmethod(finding.notes)

    def complete(self, where: Image, view: View, symbols: SymbolTable) -> tuple[Image, View]:
        assert isinstance(view, finding.LinearMap)
        return finding.complete(where, symbols), KernelMap(view, symbols)

    def names(self, memory: Memory, symbols: SymbolTable) -> Symbols:
        return symbols

    def kernel(self, memory: Memory, symbols: Symbols, structures: Structures) -> Kernel:
        """Return the kernel. Without types its structures are derived from its code; the layout of tables is then the
        one that kernels have had for long.
        """
        names = DerivedSymbols(symbols, memory)
        try:
            structures.offset("task_struct", "tasks")
        except OptprobeError:
            structures = code.of_kprobes(names)
        kernel = Kernel(memory, names, structures)
        names.read_through(lambda address, data: OriginalText(kernel, PPC64LE)(address, data))
        return kernel

    def text(self, kernel: Kernel, overlay: Overlay, shelf: Shelf | None, say: Say) -> LinuxText:
        return PowerText(kernel, overlay, shelf=shelf)

    def modular(self, kernel: Kernel, text: LinuxText) -> LoadedText:
        def of(module: Module) -> ModuleCode:
            return PowerModuleText(module, kernel, text.originals)

        return LoadedText(text, kernel, VMALLOC, of)

    def entry(self, function: int, text: Text) -> int:
        """Return the local entry: a call through the global one passes it, and a call inside the kernel goes there
        directly.
        """
        found = text.function(function)
        return PPC64LE.entry(function, found.own) if found is not None else function

    def entry_by_head(self, function: int, head: bytes, original: bool = False) -> int | None:
        # Nearly all begin in one of these ways; a patch on the tracer's site, behind `ENTERED`, says nothing.
        if PPC64LE.makes_toc(head):
            return function + TOC_SETUP
        if head.startswith(ENTERED):
            return function
        insns = PPC64LE.decode(head, function)
        if not insns or (any(insn.flow is not Flow.NEXT for insn in insns) and not original):
            return None  # of a patch, or it may be
        return PPC64LE.entry(function, {insn.address: insn for insn in insns})

    def entered(self, function: Function, unwinder: Unwinder | None) -> bool:
        """Return whether it is compiled code, or code that does not write LR and returns by it."""
        return function.compiled or is_leaf(function.own)

    def pointer_thunks(self, kernel: Kernel) -> Mapping[int, str]:
        return {}

    def per_cpu(self, kernel: Kernel) -> int | None:
        return None

    def stacks(self, kernel: Kernel, machine: Machine, registers: Sequence[str]) -> Stacks:
        return stacks.Stacks(kernel, machine, registers, derive.derive(kernel))

    def stacks_missing(self, kernel: Kernel) -> str:
        return derive.missing(kernel)

    def room(self, machine: Machine, kernel: Kernel) -> Room:
        return image_padding.find(machine, kernel)

    def places(self, machine: Machine, kernel: Kernel) -> Iterable[Room]:
        return image_padding.places(machine, kernel)

    def window(self, machine: Machine, kernel: Kernel) -> Window:
        return linear_window.window(machine, kernel)

    def code_window(self, machine: Machine, kernel: Kernel) -> Window:
        raise OptprobeError(NO_CODE)

    def current(self, kernel: Kernel) -> Current:
        try:
            found = derive.derive(kernel)
        except OptprobeError as error:
            return unknown(error.message)
        return current.current(current.Paca(found.current, found.number, found.pid, found.comm, found.per_cpu_offset))

    def outside(self, kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
        return current.outside(machine, vcpu)

    def reads(self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None]) -> Reads:
        return reading.reads(machine, kernel)

    def trap_calls(self, kernel: Kernel, originals: Originals) -> TrapCalls:
        return replace(program_check.find(kernel, originals), trapping=TRAPPING)

    def user_kernel(
        self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None], originals: Originals
    ) -> UserKernel:
        return user_kernel.user_kernel(kernel, reading.reads(machine, kernel), originals)

    def walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        assert isinstance(unwinder, BackChain)
        return chain_walk.walker(kernel, unwinder.function, derive.derive(kernel), place)

    def walked_code(self, unwinder: Unwinder, address: int) -> int | None:
        return None

    def user_walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        assert isinstance(unwinder, BackChain)
        return user_walk.walker(chain_walk.walker(kernel, unwinder.function, derive.derive(kernel), place))

    def program_walker(self, bits: int, returned: bool) -> Walker:
        return user_walk.of_program(returned)

    def unwinder(
        self, kernel: Kernel, text: LinuxText, facts: Facts, read: ReadMemory, module: ModuleAt = nowhere
    ) -> Unwinder:
        assert isinstance(text, PowerText)
        return BackChain(kernel.range("_stext", "_etext"), text.through(read), read)


LINUX_PPC64LE = _Linux()
_: LinuxArch = LINUX_PPC64LE
