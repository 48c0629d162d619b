"""The record of Linux on aarch64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.arch.aarch64 import (
    areas,
    current,
    el1_sync,
    image_padding,
    near_window,
    record_walk,
    sched_clock,
    stacks,
    user_kernel,
    user_walk,
)
from gdb_optprobe.guest.linux.arch.aarch64 import find as finding
from gdb_optprobe.guest.linux.arch.aarch64 import reads as reading
from gdb_optprobe.guest.linux.arch.aarch64.find import PageTables
from gdb_optprobe.guest.linux.arch.aarch64.frame_records import FrameRecords, record_in_registers
from gdb_optprobe.guest.linux.arch.aarch64.module_text import ArmModuleText
from gdb_optprobe.guest.linux.arch.aarch64.names import TIMER, KernelNames
from gdb_optprobe.guest.linux.arch.aarch64.syscalls import SYSCALLS
from gdb_optprobe.guest.linux.arch.aarch64.text import MODULES, ArmText
from gdb_optprobe.guest.linux.arch.aarch64.tracepoints import TRACEPOINTS
from gdb_optprobe.guest.linux.arch.aarch64.trap_entry import TRAPPING
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
from gdb_optprobe.guest.linux.boot import DRIVERS, Beginning
from gdb_optprobe.guest.linux.clock import ClockRate
from gdb_optprobe.guest.linux.current import Current
from gdb_optprobe.guest.linux.kernel import Kernel, Structures, Symbols
from gdb_optprobe.guest.linux.loaded_text import LoadedText, ModuleCode
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.linux.structures import KernelStructures
from gdb_optprobe.guest.linux.syscall_events import SyscallAbi
from gdb_optprobe.guest.linux.tracepoints import TracepointArch
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine, Memory, Vcpu
from gdb_optprobe.guest.text import Function, Overlay, Text
from gdb_optprobe.handlers.stack_walk import Walker
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow, ReadMemory
from gdb_optprobe.isa.record import Isa

LANDING_PADS = frozenset(word.to_bytes(4, "little") for word in (0xD503_245F, 0xD503_24DF))  # bti c, bti jc
EVENT_COSTS = {"kprobe": 1_450, "kretprobe": 1_735, "uprobe": 2_644, "uretprobe": 3_934}


class _Linux:
    isa: Isa = AARCH64
    clock: Sequence[ClockRate] = (ClockRate(TIMER, 4, 1),)  # drivers/clocksource/arm_arch_timer.c
    log_clock = staticmethod(sched_clock.log_clock)
    syscalls: SyscallAbi = SYSCALLS
    tracepoints: TracepointArch | None = TRACEPOINTS
    event_costs: Mapping[str, int] = EVENT_COSTS
    page_faults: Sequence[tuple[str, str]] = (("do_page_fault", "arg3"),)
    loaded = MODULES
    first_reads: Sequence[tuple[int, int]] = finding.FIRST_READS
    beginning: Beginning = DRIVERS
    find = staticmethod(finding.find)
    complete = staticmethod(finding.complete)
    notes = staticmethod(finding.notes)

    def names(self, memory: Memory, symbols: Symbols) -> Symbols:
        return KernelNames(symbols, memory)

    def kernel(self, memory: Memory, symbols: Symbols, structures: Structures) -> Kernel:
        kernel = Kernel(memory, symbols, structures)
        if isinstance(symbols, KernelNames):
            symbols.types = structures if isinstance(structures, KernelStructures) else None
            symbols.forget_missing()
            symbols.read_through(lambda address, data: OriginalText(kernel, AARCH64)(address, data))
        return kernel

    def text(self, kernel: Kernel, overlay: Overlay, shelf: Shelf | None, say: Say) -> LinuxText:
        return ArmText(kernel, overlay, shelf=shelf)

    def modular(self, kernel: Kernel, text: LinuxText) -> LoadedText:
        def of(module: Module) -> ModuleCode:
            return ArmModuleText(module, kernel, text.originals)

        return LoadedText(text, kernel, MODULES, of)

    def entry(self, function: int, text: Text) -> int:
        """Skip a landing pad: an indirect call must find it unchanged."""
        found = text.function(function)
        insn = found.own.get(function) if found is not None else None
        return insn.end if insn is not None and insn.data in LANDING_PADS else function

    def entry_by_head(self, function: int, head: bytes, original: bool = False) -> int | None:
        # No branch of a probe is over a landing pad.
        return function + 4 if head[:4] in LANDING_PADS else function if len(head) >= 4 else None

    def entered(self, function: Function, unwinder: Unwinder | None) -> bool:
        """Return whether it is compiled code, or code that calls nothing and returns."""
        flows = {insn.flow for insn in function.own.values()}
        leaf = Flow.RETURN in flows and not flows & {Flow.CALL, Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP, Flow.SYSTEM}
        return function.compiled or leaf

    def pointer_thunks(self, kernel: Kernel) -> Mapping[int, str]:
        return {}

    def per_cpu(self, kernel: Kernel) -> int | None:
        """Return the exception level: its TPIDR has it. Kernels at EL2 are refused."""
        return 1

    def stacks(self, kernel: Kernel, machine: Machine, registers: Sequence[str]) -> Stacks:
        return stacks.Stacks(kernel, machine, registers)

    def stacks_missing(self, kernel: Kernel) -> str:
        return stacks.missing(kernel)

    def room(self, machine: Machine, kernel: Kernel) -> Room:
        return image_padding.find(machine, kernel)

    def places(self, machine: Machine, kernel: Kernel) -> Iterable[Room]:
        return image_padding.places(machine, kernel)

    def window(self, machine: Machine, kernel: Kernel) -> Window:
        return near_window.window(machine, kernel, is_code=False)

    def code_window(self, machine: Machine, kernel: Kernel) -> Window:
        return near_window.window(machine, kernel, is_code=True)

    def current(self, kernel: Kernel) -> Current:
        return current.current(kernel)

    def outside(self, kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
        return current.outside(kernel, machine, vcpu)

    def reads(self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None]) -> Reads:
        return reading.reads(machine, kernel, physical)

    def trap_calls(self, kernel: Kernel, originals: Originals) -> TrapCalls:
        return replace(el1_sync.find(kernel, originals), trapping=TRAPPING)

    def user_kernel(
        self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None], originals: Originals
    ) -> UserKernel:
        found = finding.find(machine)
        if found is None or not isinstance(found[1], PageTables):
            raise OptprobeError("the kernel's page tables are not found")
        return user_kernel.user_kernel(kernel, reading.reads(machine, kernel, physical), found[1], originals)

    def walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        assert isinstance(unwinder, FrameRecords)
        return record_walk.walker(kernel, unwinder, place)

    def walked_code(self, unwinder: Unwinder, address: int) -> int | None:
        return None

    def user_walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        return user_walk.walker(kernel)

    def program_walker(self, bits: int, returned: bool) -> Walker:
        return user_walk.of_program(bits)

    def unwinder(
        self, kernel: Kernel, text: LinuxText, facts: Facts, read: ReadMemory, module: ModuleAt = nowhere
    ) -> Unwinder:
        assert isinstance(text, ArmText)
        entry = areas.entry_text(kernel)
        record = record_in_registers(text, entry)
        ranges = kernel.range("_stext", "_etext"), kernel.range("_sinittext", "_einittext")
        return FrameRecords(*ranges, entry, record, text.through(read), read)


LINUX_AARCH64 = _Linux()
_: LinuxArch = LINUX_AARCH64
