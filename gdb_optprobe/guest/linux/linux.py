"""A guest that runs Linux: its text, its stacks and the meaning of names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest import abi, runs, scope
from gdb_optprobe.guest.guest import Guest, WalkedCode
from gdb_optprobe.guest.lasting_text import LastingText, ShelvedText
from gdb_optprobe.guest.linux import boot, bypasses, control_groups, event_name, frame, proc_files
from gdb_optprobe.guest.linux.arch.base import (
    Interrupted,
    LinuxArch,
    LinuxText,
    Reads,
    Say,
    Stacks,
    Unwinder,
    WalkedFrom,
)
from gdb_optprobe.guest.linux.backtrace import Copy, backtrace
from gdb_optprobe.guest.linux.clock import LogClock, hertz, log_clock
from gdb_optprobe.guest.linux.current import Current, at_stop, or_missing, unknown
from gdb_optprobe.guest.linux.derived_data import DerivedNames
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.handler_text import HandlerText
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.structures import KernelStructures, Layouts, no_layouts
from gdb_optprobe.guest.linux.syscall_events import SyscallEvents
from gdb_optprobe.guest.linux.tracepoints import ITERATOR, Tracepoints
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.guest.names import UNWALKED, NamesAt
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.scope import Debug, DebuggerSymbols, NoDebuggerSymbols
from gdb_optprobe.guest.scope import Site as Probed
from gdb_optprobe.guest.text import EnteredFunction, Function, IdleSites, Place
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.guest.user_scope import NO_KERNEL_STACK, user_scope
from gdb_optprobe.handlers.ir import Expr, Register
from gdb_optprobe.handlers.return_scope import RETURN_ADDRESS
from gdb_optprobe.handlers.scope import UNREAD, Missing
from gdb_optprobe.handlers.stack_walk import Walker
from gdb_optprobe.isa.base import Insn, Pointer
from gdb_optprobe.isa.record import Isa

LARGEST_BTF = 1 << 26
NO_TYPES = "before the first optprobe command, load its vmlinux with debug information: symbol-file FILE"
MANY = 1000
"""Functions of which the planning takes seconds."""
HEAD = 8
"""Bytes of a function that show where its entry is."""
TRACE_PRINTERS = ("show_trace_log_lvl", "show_stack")
"""The first that a kernel has: where it has both, an oops passes by the first alone."""
INTERRUPT_BOUNDS = ("irq_enter", "irq_exit")
"""kernel/softirq.c."""
RETURN_HOOKS = ("return_to_handler", "arch_rethook_trampoline", "__kretprobe_trampoline", "kretprobe_trampoline")


class Unpatched(Protocol):
    """The kernel's text as it was before probes changed it."""

    def __call__(self, address: int, data: bytes) -> bytes:
        """Return `data`, read at `address`, with the original bytes in place of branches: a guest.text.Overlay."""

    def originals(self) -> Originals:
        """Return bytes of text before an earlier GDB changed them, by address. Raises OptprobeError."""


@dataclass
class LinuxGuest(Guest):
    """A guest's kernel: facts about it, with those that are dropped when the guest has run.

    debugger: names and types that GDB knows.
    originals: bytes of text before an earlier GDB changed them, by address. Raises OptprobeError. say: tells the user.
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
    debugger: DebuggerSymbols = field(default_factory=NoDebuggerSymbols)
    originals: Callable[[], Originals] = dict
    say: Say = lambda _: None
    _saved: list[SavedWords] | None = None
    _moment: int = 0
    _clock: tuple[int, LogClock | None] = (-1, None)
    _constants: dict[str, int | None] = field(default_factory=dict)
    unwind_missing: OptprobeError | None = None
    _is_booting: bool | None = None
    _entries: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        recovered: DiscoveredKernel,
        machine: Machine,
        memory: KernelMemory,
        isa: Isa,
        arch: LinuxArch,
        unpatched: Unpatched,
        say: Say,
        debugger: DebuggerSymbols,
        layouts: Callable[[], Layouts | None] = no_layouts,
    ) -> LinuxGuest:
        """Build the guest of a kernel that was found in it.

        layouts: GDB's, of this kernel.
        """

        names = arch.names(memory, recovered.symbols)

        def blob() -> bytes:
            start, end = Kernel(memory, names).range("__start_BTF", "__stop_BTF")
            if not 0 < end - start <= LARGEST_BTF:
                raise OptprobeError("this kernel has no type information (BTF)", NO_TYPES)
            return memory.read_many([(start, end)])[0]

        structures = KernelStructures(blob, layouts)
        kernel = arch.kernel(memory, names, structures)
        core = arch.text(kernel, unpatched, recovered.shelf, say)
        text = arch.modular(kernel, core)
        text.handlers = HandlerText(isa)
        facts = recovered, machine, memory, isa, kernel, structures, core, text, arch
        return cls(*facts, debugger, unpatched.originals, say)

    def forget(self) -> None:
        """Drop what may have changed while the guest ran: page tables, the vCPUs' view, stacks, the text."""
        self._saved = None
        self._moment += 1
        self.memory.forget()
        self.text.forget()

    @property
    def page_faults(self) -> Sequence[tuple[str, str]]:
        return self.arch.page_faults

    def moment(self) -> int:
        return self._moment

    def is_same_kernel(self) -> bool:
        return self.recovered.is_same_kernel(self.machine)

    def is_booting(self) -> bool:
        """Return whether the kernel has not booted yet: then none of its memory may be used. Raises Unreadable.

        A kernel without symbols of data counts as booted, but for `note_boot`.
        """
        if self._is_booting is None and boot.has_ended(self.kernel.symbols, self.memory.read) is not False:
            self._is_booting = False
            self._forget_missing_names()
        return self._is_booting is not False

    def note_boot(self, ended: bool) -> None:
        """Note how far the kernel is: where it has patched its text, or where it has `ended` to boot."""
        self._is_booting = not ended
        self._forget_missing_names()
        self.forget()

    def _forget_missing_names(self) -> None:
        """Look again for names that the kernel had no data for while it booted."""
        if isinstance(symbols := self.kernel.symbols, DerivedNames):
            symbols.forget_missing()

    # stacks --------------------------------------------------------------------------------------------------------

    @cached_property
    def _stacks(self) -> Stacks:
        return self.arch.stacks(self.kernel, self.machine, self.isa.registers)

    def saved(self) -> Iterable[SavedWords]:
        """Return everywhere a PC may be saved now, read once while the guest is stopped. Raises OptprobeError."""
        if self._saved is None:
            start, end = self.kernel.range("_stext", "_etext")
            reach = self.isa.branch_reach
            self._saved = [found.among(start - reach, end + reach) for found in self._stacks.saved()]
        return self._saved

    def has_hidden_stacks(self) -> bool:
        """Return whether a thread that ends may have return addresses on a stack that is not among them.

        Raises OptprobeError.
        """
        return self._stacks.hides()

    @cached_property
    def stacks_missing(self) -> str:
        """Return why not all stacks are known, in words; "" where they are."""
        return self.arch.stacks_missing(self.kernel)

    def step_out(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.machine.step_out(self.isa.pc, ranges)
        self.forget()

    def backtrace(self, registers: Mapping[str, int], stack: bytes) -> Iterable[tuple[int, bool]]:
        if self.own_unwinder is None:
            return ()
        copy = Copy(registers[self.isa.sp], stack)
        frame = self.handlers.frame(registers[self.isa.pc])
        if frame is None or self.arch.tracepoints is None:
            return backtrace(self.own_unwinder, registers, self.isa.pc, copy)
        try:
            caller = self.arch.tracepoints.caller(registers, frame, copy.read)
        except Unreadable:
            return ((registers[self.isa.pc], True), (0, True))
        return ((registers[self.isa.pc], True), *backtrace(self.own_unwinder, caller, self.isa.pc, copy, exact=False))

    @cached_property
    def hidden_returns(self) -> tuple[int, ...]:
        """Return the addresses to which the kernel's tracers redirect returns (fgraph.c, rethook.c, kprobes.c)."""
        found = (self.kernel.symbols.address(name) for name in RETURN_HOOKS)
        return tuple(address for address in found if address is not None)

    @cached_property
    def trace_printer(self) -> int | None:
        found = (self.kernel.symbols.address(name) for name in TRACE_PRINTERS)
        return next((self.entry(address) for address in found if address is not None), None)

    # names -----------------------------------------------------------------------------------------------------------

    def symbol(self, address: int) -> str:
        """Return "vfs_read+0x13", with the module's name where it is one's; "" where no symbol is known."""
        return self.handlers.symbol(address) or str(self.recovered.symbols.at(address) or self.text.symbol(address))

    def known_symbol(self, address: int) -> str:
        return self.handlers.symbol(address) or str(self.recovered.symbols.at(address) or "")

    def symbols(self, addresses: Sequence[int]) -> list[str]:
        found = self.recovered.symbols.spelled(addresses)
        return [text or self.text.symbol(address) for address, text in zip(addresses, found, strict=True)]

    def file(self, name: str, now: int | None) -> str | None:
        types = self._types
        return proc_files.text(name, self.kernel, now, lambda each: types.btf.constant(each) if types else None)

    def control_group(self, number: int) -> str | None:
        return control_groups.path(self.kernel, number)

    def clock(self) -> LogClock | None:
        # While the guest runs, its clock is the one of the last stop at which it was asked for.
        if self._clock[0] != self._moment and not (self.machine.runs and self._clock[1] is not None):
            self._clock = self._moment, log_clock(self.kernel, self.arch.clock, self.arch.log_clock)
        return self._clock[1]

    def _now(self) -> Expr | Missing:
        found = self.clock()
        return scope.NO_TIME if found is None else found.now

    def completions(self, prefix: str) -> Sequence[str]:
        return self.recovered.symbols.completions(prefix)

    def names_at(self, address: int) -> NamesAt:
        if (event := event_name.parse(self.handlers.symbol(address))) is not None:
            return self._handler_names(event, address)
        function = self.place(address)  # it is not decoded for its name
        name = self._named(function) if function is not None else ""
        site = scope.Site(address, name, function is not None and self._is_entry(address))
        of = abi.of(self.isa)
        return self._names(site, self.debugger.debug(address, of, lambda: self._frame(address, of)))

    @cached_property
    def handlers(self) -> HandlerText:
        return self.text.handlers or HandlerText(self.isa)

    @cached_property
    def tracepoints(self) -> Tracepoints:
        if self.arch.tracepoints is None:
            raise OptprobeError(f"how functions of the kernel are called is not built for {self.isa.name} yet")
        return Tracepoints(
            *(self.kernel, self.machine, self.arch.tracepoints, self.forget, self.say, self._words),
            modules=self.text.modules,
        )

    def _words(self, function: str) -> int:
        """Return how many words of arguments a function has; 0 where that is not known."""
        found = self._types.btf.function(function) if self._types is not None else None
        placed = abi.slots(found.parameters, self._types.btf, abi.of(self.isa)) if found and self._types else {}
        return len(placed) if found is not None and len(placed) == len(found.parameters) else 0

    def events(self, event: EventName) -> Sequence[EventName]:
        of_calls = self.syscall_events.matching(event) if not event.is_raw else ()
        return of_calls if event.is_syscall else (*of_calls, *self.tracepoints.matching(event))

    def event_addresses(self, event: EventName) -> tuple[int, ...]:
        if not event.is_syscall:
            return self.handlers.called(str(event))
        return tuple(sorted({*self.entries(self.syscall_events.find(event))}))

    def event_at(self, event: EventName, address: int) -> EventName:
        if not event.is_syscall:
            return event
        function = self.text.function(address)
        return self.syscall_events.named(event, function.start) if function is not None else event

    def event_names_at(self, event: EventName, address: int, returned: bool = False) -> NamesAt:
        if not event.is_syscall:
            return self._handler_names(event, address)
        found = self.names_at_return(address) if returned else self.names_at(address)
        function = self.text.function(address)
        if found is None or function is None or not isinstance(names := found.names, scope.KernelScope):
            raise OptprobeError(f"{self.text.spell(address)} is not where {event} occurs")
        made = self.syscall_events.fields(event, function.start, names, names.abi.result, returned)
        return replace(found, names=replace(names, event=made))

    def _handler_names(self, event: EventName, address: int) -> NamesAt:
        """Return what names mean in a handler: the arguments, or the fields in its frame."""
        handled = event_name.parse(self.handlers.symbol(address)) or event
        # A handler has the arguments of the function that calls all handlers, and types know that one's.
        called = f"{ITERATOR}{event.event}" if handled.is_raw else ""
        found = self._names(scope.Site(address, called, entry=handled.is_raw))
        names = found.names
        assert isinstance(names, scope.KernelScope), "of this kernel"
        if handled.is_raw:
            return replace(found, names=replace(names, hidden=1))
        made = self.tracepoints.event_format(handled).members(str(event), names.abi.sp, names)
        return replace(found, names=replace(names, event=made))

    @cached_property
    def syscall_events(self) -> SyscallEvents:
        return SyscallEvents(self.kernel, self.arch.syscalls)

    def interrupt_bounds(self) -> tuple[int, int] | None:
        first, last = map(self.kernel.symbols.address, INTERRUPT_BOUNDS)
        return (first, last) if first is not None and last is not None else None

    def parameters(self, address: int) -> Sequence[str]:
        found = self.names_at(address).names
        return found.parameter_names() if isinstance(found, scope.KernelScope) else ()

    def _frame(self, address: int, of: abi.Abi) -> Expr | None:
        return frame.base(self.own_unwinder, address, of) if self.own_unwinder is not None else None

    def _names(self, site: Probed, debug: Debug | None = None) -> NamesAt:
        of, convenience = abi.of(self.isa), self.debugger.convenience
        names = scope.kernel_scope(self.kernel, self.current, self._types, of, site, convenience, debug, self._now)
        cpu = self.current.cpu
        number = None if isinstance(cpu, Missing) else cpu
        # Now: while a script is compiled, handlers of several events are tried at one address, one after the other.
        frame = self.handlers.frame(site.address)
        per_cpu, rate = self.arch.per_cpu(self.kernel), hertz(self.kernel, self.arch.clock)
        walkers = (partial(self._walker, site, frame), partial(self._user_walker, site.address))
        return NamesAt(names, per_cpu, number, self.reads, rate, *walkers)

    def walked_code(self, address: int) -> WalkedCode | None:
        if self.own_unwinder is None or (module := self.text.at(address)) is None:
            return None
        entry = self.arch.walked_code(self.own_unwinder, address)
        return WalkedCode(entry, module.module.identity) if entry is not None else None

    def _user_walker(self, address: int) -> Walker | Missing:
        """Return how a hit at an address finds the frames of its thread's program."""
        if self.own_unwinder is None:
            return UNWALKED
        return or_missing(partial(self.arch.user_walker, self.kernel, self.own_unwinder, WalkedFrom(address)))

    def _walker(self, site: Probed, frame: int | None, interrupted: Interrupted | None) -> Walker | Missing:
        """Return how a hit at a site finds its callers, or those of what is interrupted there."""
        if self.own_unwinder is None:
            error = self.unwind_missing
            return Missing(error.message, error.hint) if error is not None else UNWALKED
        returned = Register(RETURN_ADDRESS) if site.returns else None
        start = WalkedFrom(site.address, frame, interrupted, returned)
        return or_missing(partial(self.arch.walker, self.kernel, self.own_unwinder, start))

    def names_at_return(self, address: int) -> NamesAt | None:
        if (function := self.place(address)) is None or not self._is_entry(address):
            return None
        site = scope.Site(address, self._named(function), returns=True)
        return self._names(site, self.debugger.debug(address, abi.of(self.isa), lambda: None))

    def names_stopped_at(self, address: int) -> NamesAt:
        found = self.names_at(address)
        cpu = or_missing(lambda: self.arch.outside(self.kernel, self.machine, self.machine.selected()))
        if cpu is None:
            return found
        assert isinstance(found.names, scope.KernelScope), "of this kernel"
        known = unknown(cpu.message) if isinstance(cpu, Missing) else at_stop(self.kernel, cpu, self.current.members)
        # The vCPU's page tables may lack the kernel: a hit's reads would go by these, memory's go by the kernel's own.
        return replace(found, names=replace(found.names, current=known), reads=UNREAD)

    def names_at_stop(self) -> NamesAt | None:
        found = self._names(scope.Site(0, ""))
        assert isinstance(found.names, scope.KernelScope), "of this kernel"
        return replace(found, names=replace(found.names, current=at_stop(self.kernel, 0, self.current.members)))

    def _named(self, function: Place) -> str:
        """Return the name of a function, with the module's name for one of a module: the kernel's own types lack those.
        """
        return self.text.symbol(function.start) or function.name

    # control flow ----------------------------------------------------------------------------------------------------

    def why_bypassed(self, address: int) -> str:
        module = self.text.at(address)
        kernel = self.kernel if module is None else replace(self.kernel, symbols=module.symbols)
        found = kernel.symbols.at(address)
        if found is None or not bypasses.may_be(kernel, found.name) or not self._is_entry(address):
            return ""
        return bypasses.note(kernel, found.name, address - found.offset)

    def is_entered_by_calls(self, function: Function) -> bool:
        return self.arch.entered(function, self.own_unwinder)

    @cached_property
    def own_unwinder(self) -> Unwinder | None:
        """The unwinder for the guest's present memory."""
        return self.unwinder(self.memory.read)

    def _is_entry(self, address: int) -> bool:
        """Return whether arguments are where the ABI has them: nothing but the tracer's site may have run."""
        function = self.place(address)
        if function is None:
            return False
        entry = self.entry(function.start)
        return address == entry or any(site.end == address for site in self.text.ftrace_sites(entry, entry + 1))

    @cached_property
    def reads(self) -> Reads | Missing:
        """Return how memory is read that may not be mapped."""
        try:
            return self.arch.reads(self.kernel, self.machine, self.memory.physical)
        except OptprobeError as error:
            return Missing(error.message, error.hint)

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        return self.text.core.idle_sites(addresses, kept_off)

    def steady(self, places: Sequence[tuple[int, int]]) -> Sequence[bytes | None]:
        return self.core.steady(places)

    def own_kprobes(self) -> Collection[int]:
        return self.core.own_kprobes()

    def bounds(self, address: int) -> tuple[int, int] | None:
        found = self.recovered.symbols.function_bounds(address)
        return found if found is not None else super().bounds(address)

    def place(self, address: int) -> Place | None:
        return self.core.place(address) or super().place(address)

    def code(self, places: Sequence[Place]) -> Sequence[bytes | None]:
        return self.core.code(places)

    def is_traceable(self, start: int, end: int) -> bool:
        if self.core.place(start) is not None:
            return bool(self.core.ftrace.within(start, end))
        return super().is_traceable(start, end)

    def read_ahead(self, functions: int) -> None:
        if functions >= MANY:
            self.say(f"planning {functions:,} functions without a tracer's site, once for each kernel")
        self.core.read_ahead()

    def lasting_text(self) -> LastingText | None:
        return self.core.lasting()

    def shelved_text(self) -> ShelvedText | None:
        return self.core.shelved()

    def functions_entered(self, sites: Sequence[int]) -> Sequence[EnteredFunction]:
        symbols, wanted = self.kernel.symbols, frozenset(sites)
        bounds = sorted({found for site in sites if (found := symbols.function_bounds(site)) is not None})
        entries = self.entries([start for start, _ in bounds])
        at = [(entry, *one) for one, entry in zip(bounds, entries, strict=True) if entry in wanted]
        spans = [(start, end) for _, start, end in at]
        codes = runs.read_spans(spans, self.core.reader(spans))
        named = [(symbol.name if (symbol := symbols.at(start)) is not None else "") for _, start, _ in at]
        return [
            EnteredFunction(entry, name, start, code)
            for (entry, start, _), name, code in zip(at, named, codes, strict=True)
        ]

    def pointer(self, insn: Insn) -> Pointer | None:
        through = self._thunks.get(insn.target) if insn.target is not None else None
        return Pointer(through) if through is not None else self.isa.pointer(insn)

    @cached_property
    def _thunks(self) -> Mapping[int, str]:
        return self.arch.pointer_thunks(self.kernel)

    def trap_calls(self) -> TrapCalls:
        return self._trap_calls

    @cached_property
    def _trap_calls(self) -> TrapCalls:
        return self.arch.trap_calls(self.kernel, self.originals())

    @cached_property
    def user_kernel(self) -> UserKernel:
        """Return the facts about the kernel that probes on programs need. Raises OptprobeError."""
        return self.arch.user_kernel(self.kernel, self.machine, self.memory.physical, self.originals())

    def constant(self, name: str) -> int | None:
        """Return the value of a kernel's enumerator; None where none is known of that name."""
        if name not in self._constants:
            self._constants[name] = self._types.btf.constant(name) if self._types is not None else None
        return self._constants[name]

    @cached_property
    def programs(self) -> Programs:
        kernel = self.user_kernel
        return Programs.of(self.machine, kernel.kernel, kernel.mmu, kernel.vcpus, self.constant, self.forget)

    def program_names_at(self, address: int, is_entry: bool, bits: int) -> NamesAt:
        return self._program_names(scope.Site(address, "", is_entry), bits)

    def program_names_at_return(self, bits: int) -> NamesAt:
        return self._program_names(scope.Site(0, "", returns=True), bits)

    def _program_names(self, site: Probed, bits: int) -> NamesAt:
        found, isa = self._names(site), self.user_kernel.isa
        assert isinstance(found.names, scope.KernelScope), "of this kernel"
        names = user_scope(found.names, bits, isa, self.user_kernel.kernel.offset)
        walker = self.arch.program_walker(bits, site.returns)
        return replace(found, names=names, walker=lambda _: NO_KERNEL_STACK, user_walker=lambda: walker)

    @cached_property
    def _types(self) -> BtfTypes | None:
        try:
            return BtfTypes(self.structures.btf)
        except OptprobeError:
            return None

    @cached_property
    def current(self) -> Current:
        """Return the expressions of the running thread and its CPU."""
        return self.arch.current(self.kernel)

    # the unwinder ----------------------------------------------------------------------------------------------------

    def unwinder(self, read: Callable[[int, int], bytes], quietly: bool = False) -> Unwinder | None:
        """Return an unwinder; None where this kernel's stack cannot be unwound, see `unwind_missing`.
        quietly: use modules as read before, and read by `read` alone.
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
        """Return the address of a probe on the function with its symbol at `function`."""
        known = self._entries.get(function)
        return known if known is not None else self.arch.entry(function, self.text)

    def entries(self, functions: Collection[int]) -> Iterator[int]:
        """Return the `entry` of each, kept for the kernel's own; the first bytes of all are read together."""
        ordered = sorted(function for function in functions if function not in self._entries)
        start, end = self.recovered.text
        found = dict[int, int]()
        memory = self.core.reader([(function, function + HEAD) for function in ordered])
        for function, head in zip(ordered, runs.heads(ordered, HEAD, memory), strict=True):
            at = self.arch.entry_by_head(function, head)
            if at is None and start <= function < end and not self.core.originals.missing:
                at = self.arch.entry_by_head(function, self.core.originals(function, head), original=True)
            found[function] = at if at is not None else self.entry(function)
        # Modules come and go.
        self._entries |= {function: at for function, at in found.items() if start <= function < end}
        return (found[function] if function in found else self._entries[function] for function in functions)
