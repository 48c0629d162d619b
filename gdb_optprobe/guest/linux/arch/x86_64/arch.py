"""The record of Linux on x86-64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux import physical_patch, trap_calls
from gdb_optprobe.guest.linux.arch.base import (
    Facts,
    LinuxArch,
    LinuxText,
    ModuleAt,
    Reads,
    Room,
    Say,
    Unwinder,
    WalkedFrom,
    Window,
    nowhere,
)
from gdb_optprobe.guest.linux.arch.x86_64 import (
    current,
    frame_pointers,
    image_padding,
    invalid_op,
    orc,
    orc_unwind,
    orc_walk,
    sched_clock,
    stacks,
    user_kernel,
    user_walk,
)
from gdb_optprobe.guest.linux.arch.x86_64 import find as finding
from gdb_optprobe.guest.linux.arch.x86_64 import reads as reading
from gdb_optprobe.guest.linux.arch.x86_64.data_window import DataWindow
from gdb_optprobe.guest.linux.arch.x86_64.frame_pointers import FramePointers
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import NoPadding
from gdb_optprobe.guest.linux.arch.x86_64.module_text import ModuleText
from gdb_optprobe.guest.linux.arch.x86_64.paging import by_table
from gdb_optprobe.guest.linux.arch.x86_64.syscalls import SYSCALLS
from gdb_optprobe.guest.linux.arch.x86_64.text import MODULES, KernelText, modules_area
from gdb_optprobe.guest.linux.arch.x86_64.tracepoints import TRACEPOINTS
from gdb_optprobe.guest.linux.arch.x86_64.trap_entry import TRAPPING
from gdb_optprobe.guest.linux.arch.x86_64.vmalloc_loan import Borrower
from gdb_optprobe.guest.linux.boot import INITCALLS, Beginning
from gdb_optprobe.guest.linux.clock import ClockRate
from gdb_optprobe.guest.linux.current import Current
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel, Structures, Symbols
from gdb_optprobe.guest.linux.loaded_text import LoadedText, ModuleCode
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.page_allocator import NO_CODE
from gdb_optprobe.guest.linux.syscall_events import SyscallAbi
from gdb_optprobe.guest.linux.tracepoints import TracepointArch
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine, Memory, Vcpu
from gdb_optprobe.guest.symbols import SymbolTable
from gdb_optprobe.guest.text import Function, Overlay, Text
from gdb_optprobe.handlers.stack_walk import KNOWN, Walker
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.abi import GENERAL

PAD = 4
"""Bytes of a landing pad."""
LANDING_PAD = bytes.fromhex("f3 0f 1e fa")  # endbr64
SITE = bytes.fromhex("0f 1f 44 00 00")  # a tracer's site: longer than a pad
PATCHES = {b"\xcc", b"\xe9"}
"""First bytes of a patch that may be over a pad."""
NOPS = tuple(map(bytes.fromhex, ("0f1f", "660f1f", "6666")))
"""How a nop as long as a pad begins, which seals it."""

EVENT_COSTS = {"kprobe": 751, "kretprobe": 1_050, "uprobe": 1_673, "uretprobe": 2_827}


class _Linux:
    isa: Isa = X86_64
    clock: Sequence[ClockRate] = (ClockRate("tsc_khz", 4, 1000),)  # arch/x86/kernel/tsc.c
    log_clock = staticmethod(sched_clock.log_clock)
    syscalls: SyscallAbi = SYSCALLS
    tracepoints: TracepointArch | None = TRACEPOINTS
    event_costs: Mapping[str, int] = EVENT_COSTS
    page_faults: Sequence[tuple[str, str]] = (("do_user_addr_fault", "arg1"),)
    loaded = MODULES
    # copy_bootdata() and get_bios_ebda() read low memory through the linear map, with page tables of 4 and 5 levels
    # (arch/x86/include/asm/page_64_types.h). The map is moved at random only later.
    first_reads: Sequence[tuple[int, int]] = ((0xFFFF_8880_0000_0000, 0xA0000), (0xFF11_0000_0000_0000, 0xA0000))
    beginning: Beginning = INITCALLS
    find = staticmethod(finding.find)
    complete = staticmethod(finding.complete)
    notes = staticmethod(finding.notes)

    def names(self, memory: Memory, symbols: SymbolTable) -> Symbols:
        return symbols

    def kernel(self, memory: Memory, symbols: Symbols, structures: Structures) -> Kernel:
        return Kernel(memory, symbols, structures)

    def text(self, kernel: Kernel, overlay: Overlay, shelf: Shelf | None, say: Say) -> LinuxText:
        return KernelText(kernel, X86_64, overlay, shelf, say)

    def modular(self, kernel: Kernel, text: LinuxText) -> LoadedText:
        def of(module: Module) -> ModuleCode:
            return ModuleText(module, kernel, X86_64, text.originals, is_code)

        def is_code(address: int) -> bool:
            found = both.at(address)
            symbols = found.symbols if found is not None else kernel.symbols
            return symbols.function_bounds(address) is not None

        both = LoadedText(text, kernel, modules_area(kernel), of)
        return both

    def entry(self, function: int, text: Text) -> int:
        """Skip a landing pad: an indirect call must find it unchanged, and the tracer's site begins behind it.
        Where nothing calls the function indirectly, the kernel has sealed the pad: it holds a nop, and which one
        depends on
        the kernel. (arch/x86/kernel/alternative.c, kprobes/core.c: arch_adjust_kprobe_addr)
        """
        found = text.function(function)
        insn = found.own.get(function) if found is not None else None
        if insn is None:
            return function
        sealed = insn.size == PAD and X86_64.fills(insn) and not text.marks(function, insn.end)
        return insn.end if sealed or insn.text.startswith("endbr") else function

    def entry_by_head(self, function: int, head: bytes, original: bool = False) -> int | None:
        if head.startswith(LANDING_PAD):
            return function + PAD
        # What may be a sealed pad, a nop of four bytes, or a patch over anything, is looked at.
        is_patched = head[:1] in PATCHES and not original
        is_plain = head.startswith(SITE) or not (is_patched or head.startswith(NOPS))
        return function if head and is_plain else None

    def entered(self, function: Function, unwinder: Unwinder | None) -> bool:
        """Return whether only calls enter the function, so that the return address is on top of the stack.
        With ORC, where the tables say so: objtool has proven that this code returns there. With frame pointers, where
        the
        function makes a frame. Without either, where GCC has named it.
        """
        if isinstance(unwinder, OrcUnwinder):
            return unwinder.tables.find(function.start, unwinder.read) == orc_unwind.CALLED
        return function.compiled or (isinstance(unwinder, FramePointers) and frame_pointers.is_called(function))

    def pointer_thunks(self, kernel: Kernel) -> Mapping[int, str]:
        """Return the retpolines: arch/x86/lib/retpoline.S."""
        found = {name: kernel.symbols.address(f"__x86_indirect_thunk_{name}") for name in GENERAL}
        return {address: name for name, address in found.items() if address is not None}

    def per_cpu(self, kernel: Kernel) -> int | None:
        return kernel.symbols.address("this_cpu_off")

    def stacks(self, kernel: Kernel, machine: Machine, registers: Sequence[str]) -> stacks.Stacks:
        return stacks.Stacks(kernel, machine, registers)

    def stacks_missing(self, kernel: Kernel) -> str:
        return stacks.missing(kernel)

    def room(self, machine: Machine, kernel: Kernel) -> Room:
        """Return padding of the kernel's own text (what an earlier session left of it), else memory that it would lend.
        """
        tables = image_padding.page_tables(machine, kernel)
        left = image_padding.left_behind(kernel, tables, machine.read_physical)
        if left is not None:
            return Room(left.code, left.data, image_padding.FILL)
        try:
            found = image_padding.find(kernel)
        except NoPadding as missing:
            return Borrower(machine, kernel, user_kernel.VCPUS).room(missing.message)
        mapping = image_padding.plan_mapping(found, tables, by_table(machine.read_physical))
        take = partial(physical_patch.apply, mapping, machine)
        give_back = partial(physical_patch.undo, mapping, machine)
        return Room(
            found.code, found.data, image_padding.FILL, take, give_back, mapping=mapping, journal=found.journal
        )

    def places(self, machine: Machine, kernel: Kernel) -> Iterable[Room]:
        for place in image_padding.places(kernel):
            if place.journal[0] < place.journal[1]:
                code = partial(image_padding.as_found, kernel, place.code)
                yield Room(place.code, place.data, image_padding.FILL, journal=place.journal, as_found=code)
        lent = Borrower(machine, kernel, user_kernel.VCPUS).place()
        if lent is not None:
            yield lent

    def window(self, machine: Machine, kernel: Kernel) -> Window:
        return DataWindow(machine, kernel)

    def code_window(self, machine: Machine, kernel: Kernel) -> Window:
        raise OptprobeError(NO_CODE)

    def current(self, kernel: Kernel) -> Current:
        return current.current(kernel)

    def outside(self, kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
        return current.outside(kernel, machine, vcpu)

    def reads(self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None]) -> Reads:
        return reading.reads(machine, kernel, physical)

    def trap_calls(self, kernel: Kernel, originals: Originals) -> TrapCalls:
        found = trap_calls.find(kernel, X86_64, originals, "exc_invalid_op", ("asm_exc_invalid_op",))
        return replace(found, trap=invalid_op.trap(kernel, originals, found.handler), trapping=TRAPPING)

    def user_kernel(
        self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None], originals: Originals
    ) -> UserKernel:
        direct = reading.reads(machine, kernel, physical).direct
        return user_kernel.user_kernel(kernel, self.current(kernel).task, direct, originals)

    def walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        if not isinstance(unwinder, OrcUnwinder):
            raise NoSuchKernel("a hit walks its stack by ORC tables, which this kernel has not")
        return orc_walk.walker(kernel, unwinder.tables, place)

    def walked_code(self, unwinder: Unwinder, address: int) -> int | None:
        assert isinstance(unwinder, OrcUnwinder)
        data = unwinder.entry(address)
        return int.from_bytes(data, "little") | KNOWN if data is not None else None

    def user_walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        return user_walk.walker(kernel)

    def program_walker(self, bits: int, returned: bool) -> Walker:
        return user_walk.of_program(bits)

    def unwinder(
        self, kernel: Kernel, text: LinuxText, facts: Facts, read: ReadMemory, module: ModuleAt = nowhere
    ) -> OrcUnwinder | FramePointers:
        if not frame_pointers.has_tables(kernel):
            return frame_pointers.unwinder(kernel, text, read)
        found = orc.tables(kernel, facts)
        return OrcUnwinder(found.text, found, read, read, module)


@dataclass(frozen=True, slots=True)
class OrcUnwinder:
    """Unwind by the kernel's ORC tables, and a module's in its text. stack: reads the stack."""

    text: tuple[int, int]
    tables: orc_unwind.Tables
    read: ReadMemory
    stack: ReadMemory
    module: ModuleAt = nowhere
    how = "ORC tables"

    def knows(self, pc: int) -> bool:
        return self.text[0] <= pc < self.text[1] or self.module(pc) is not None

    def caller(self, registers: Mapping[str, int], exact: bool) -> tuple[Mapping[str, int], bool] | None:
        tables = self._tables(registers["rip"] - (not exact))

        def read(address: int, size: int) -> bytes:
            return (self.read if tables.holds(address) else self.stack)(address, size)

        found = orc_unwind.unwind(orc_unwind.State(registers, exact=exact), tables, read)
        return (found.registers, found.exact) if found is not None else None

    def over(self, read: ReadMemory) -> OrcUnwinder:
        return replace(self, stack=read)

    def entry(self, pc: int) -> bytes | None:
        """Return the bytes of the entry for code of a module; None where there is none."""
        try:
            return self._tables(pc).raw(pc, self.read)
        except Unreadable:
            return None

    def _tables(self, pc: int) -> orc_unwind.Tables:
        found = self.module(pc) if not self.text[0] <= pc < self.text[1] else None
        if found is None or found.tables is None:
            return self.tables
        ips, entries = (found.tables[name] for name in ("arch.orc_unwind_ip", "arch.orc_unwind"))
        span = (ips.start, ips.start + 4 * ips.count)
        return orc_unwind.Tables(found.text, span, entries.start, encoding=self.tables.encoding)


LINUX_X86_64 = _Linux()
_: LinuxArch = LINUX_X86_64
