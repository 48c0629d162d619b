"""Tracepoints: where one is, which functions are registered on it, and how the kernel registers another.

    struct tracepoint  │ name │ key │ … │ iterator │ … │ funcs ─┼──► {func, data, prio} … {0}
The kernel is asked to register a function: it allocates, patches jumps and static calls, and other users of the
tracepoint come and go beside it. After a function is taken off, a CPU may still be about to call it, or be in it, until
every grace period has passed that tracepoints use (kernel/tracepoint.c).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from struct import Struct
from typing import Protocol

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.linux import event_fields, module_tracepoints
from gdb_optprobe.guest.linux.event_fields import EventFormat
from gdb_optprobe.guest.linux.event_name import RAW_SYSCALLS, SYSCALLS, EventName
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel, Symbols
from gdb_optprobe.guest.linux.module_tracepoints import ModuleTracepoint
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.native_call import Runner
from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.isa.base import Code, ReadMemory
from gdb_optprobe.isa.calling import Calling

REGISTER, UNREGISTER = "tracepoint_probe_register", "tracepoint_probe_unregister"
SYMBOL, ITERATOR = "__tracepoint_", "__traceiter_"
TABLE = "__start___tracepoints_ptrs", "__stop___tracepoints_ptrs"
HOLD, RELEASE = "try_module_get", "module_put"
"""References to a module, which is not unloaded meanwhile: perf and BPF hold one of each event's."""
WAITS = (
    ("synchronize_srcu", "tracepoint_srcu"),
    ("synchronize_rcu_tasks_trace", ""),
    ("synchronize_rcu", ""),
)
"""What waits for a grace period that some kernel uses for tracepoints, with the symbol of its argument."""
MUST_WAIT = "synchronize_rcu"
WAITING = ("kcompactd", "khugepaged")
"""Kernel threads that wake up in an idle guest too, and that no grace period waits for (mm/compaction.c)."""
POINTER = Struct("<i")
"""Of __tracepoints_ptrs: relative to itself (include/linux/tracepoint.h)."""
ROW = 24
"""Bytes of a struct tracepoint_func."""
MOST_FUNCTIONS = 64
MOST_TOGETHER = 256
"""Of one name with wildcards: the guest makes a call for each."""
TOO_MANY = "name fewer: those of one system, tracepoint:sched:*"
LONGEST_NAME = 128
MOST_ARGUMENTS = 6
"""Words that are passed in registers on every ISA, that of the registered data among them."""


@dataclass(frozen=True, slots=True)
class HandlerCode:
    """Code of a function for a tracepoint.

    probed: offset of the instruction for a probe. frame: see HandlerText.add.
    """

    data: bytes
    probed: int
    frame: int = 0


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """address: of its structure. module: the address of the struct module that it goes with; 0 for the kernel's own."""

    name: str
    address: int
    module: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of the kernel's. takes, gives: addresses of words, see isa.calling.Calling."""

    function: int
    arguments: tuple[int, ...] = ()
    takes: int | None = None
    gives: int | None = None


class ModuleCode(Protocol):
    """A module that is loaded: the part of loaded_text.ModuleCode that is asked here."""

    @property
    def module(self) -> Module: ...

    @property
    def symbols(self) -> Symbols: ...


class TracepointArch(Protocol):
    """What differs by ISA."""

    calling: Calling
    vcpus: Vcpus

    def handler(self) -> HandlerCode:
        """Return the code of one that leaves the arguments where they are."""

    def fields_handler(self, made: EventFormat, missed: int, address: int) -> HandlerCode:
        """Return the code, for its address, of one that has the fields assigned. missed: address of what counts those
        events that had no room. Raises OutOfReach.
        """

    def gates(self, made: EventFormat) -> Sequence[tuple[int, Code]]:
        """Return the functions that are replaced where the fields are assigned, each with the code instead."""

    def called(self, target: int, read: ReadMemory) -> int:
        """Return the function to which a call of `target` leads: code of a module may do it by a veneer."""

    def caller(self, registers: Mapping[str, int], frame: int, read: ReadMemory) -> Mapping[str, int]:
        """Return the registers of a handler's caller, where the handler is probed. Raises Unreadable."""

    def why_not(self, kernel: Kernel) -> str:
        """Return why no function of the arena can be registered in this kernel, in words; "" where one can."""

    def why_not_at(self, kernel: Kernel, address: int) -> str:
        """Return why none that is at `address` can."""


def too_many(event: EventName, number: int) -> str:
    """Return why a name means too many tracepoints for each to have a handler, in words; "" where it does not."""
    if number <= MOST_TOGETHER:
        return ""
    return f"{event} is {number} tracepoints, and no more than {MOST_TOGETHER} are registered together"


@dataclass(frozen=True)
class Tracepoints:
    """The tracepoints of the kernel, and of modules.

    forget: drops what may have changed while the guest ran. say: tells the user.
    parameters: returns how many words of arguments a function has, 0 where that is not known.
    modules: returns those that are loaded.
    """

    kernel: Kernel
    machine: Machine
    arch: TracepointArch
    forget: Callable[[], None]
    say: Callable[[str], None]
    parameters: Callable[[str], int]
    modules: Callable[[], Iterable[ModuleCode]] = tuple

    def check(self) -> None:
        """Raise OptprobeError where nothing can be registered in this kernel."""
        if why := self.arch.why_not(self.kernel):
            raise NoSuchKernel(why)
        for name in (REGISTER, UNREGISTER, MUST_WAIT):
            self.kernel.address(name)
        self.kernel.offset("tracepoint", "funcs")

    def find(self, event: EventName) -> Tracepoint:
        """Return the tracepoint of an event. Raises OptprobeError."""
        self.check()
        name = event.event
        symbols = self.kernel.symbols
        address = symbols.address(SYMBOL + name)
        if address is None and symbols.address(ITERATOR + name) is not None:
            self.kernel.address(SYMBOL + name)
        if address is None and (of_module := self._of_module(event)) is not None:
            return Tracepoint(name, of_module.address, of_module.module.address)
        if address is None:
            raise OptprobeError(f"this kernel has no tracepoint {name}", self._similar(name))
        called = until_zero(self.kernel.memory.read(self._word(address, "name"), LONGEST_NAME))
        iterator = symbols.address(ITERATOR + name)
        if called != name or (iterator is not None and self._word(address, "iterator") != iterator):
            raise NoSuchKernel(f"the structure at {address:#x} is not the tracepoint {name}")
        if event.system and not event.is_raw:
            event_fields.check_system(self.kernel, name, event.system)
        return Tracepoint(name, address)

    def matching(self, event: EventName) -> Sequence[EventName]:
        """Return the events that a name means, each of one tracepoint, ascending; none where no one matches wildcards.

        System calls are not among them: functions serve those. Raises OptprobeError.
        """
        self.check()
        if not event.is_glob:
            self.find(event)
            return (event,)
        names = [name for name in self._names() if fnmatchcase(name, event.event)]
        of_modules = [(one.system, one.name) for one in self._in_modules() if fnmatchcase(one.name, event.event)]
        if event.is_raw and not event.system:
            return [replace(event, event=name) for name in sorted({*names, *(name for _, name in of_modules)})]
        found = sorted({*((event_fields.system_of(self.kernel, name), name) for name in names), *of_modules})
        return [
            replace(event, system=system, event=name)
            for system, name in found
            if system not in ("", SYSCALLS, RAW_SYSCALLS) and fnmatchcase(system, event.system)
        ]

    def event_format(self, event: EventName, tracepoint: Tracepoint | None = None) -> EventFormat:
        """Return how the fields of an event are assigned, that of `tracepoint` if given. Raises OptprobeError."""
        found, name = tracepoint or self.find(event), event.event
        if found.module:
            call, symbols, words = self._module_event(event, found)
        else:
            call, symbols = self.kernel.address(f"{event_fields.EVENT}{name}"), self.kernel.symbols
            words = self.parameters(ITERATOR + name)
        made = event_fields.find(self.kernel, call, name, event.system, found.address, symbols)
        if words not in range(1, MOST_ARGUMENTS + 1):
            message = f"the fields of {event} are assigned from arguments that are not all in registers"
            raise NoSuchKernel(message, f"rawtracepoint:{name} has the arguments")
        return made

    def _module_event(self, event: EventName, of: Tracepoint) -> tuple[int, Symbols, int]:
        """Return where a module's event is, the module's symbols, and how many words of arguments its functions have.

        Raises OptprobeError.
        """
        for code in self.modules():
            one = self._at(code, of)
            if one is None:
                continue
            if not one.event:
                raise NoSuchKernel(f"the tracepoint {event.event} of the module {code.module.name} has no event")
            arguments = module_tracepoints.arguments(self.kernel, code.module, one.address)
            if arguments is None:
                raise NoSuchKernel(f"how many arguments {event.event} has is not known: no BPF program can be on it")
            return one.event, code.symbols, 1 + arguments  # the first one is the registered data
        raise NoSuchKernel(f"the module of {event} is not loaded")

    def functions(self, of: Tracepoint) -> Sequence[tuple[int, int]]:
        """Return the functions that are registered, each with its data. Raises OptprobeError."""
        at = self._word(of.address, "funcs")
        found = [*self._rows(at)] if at else []
        if len(found) > MOST_FUNCTIONS:
            raise NoSuchKernel(f"the functions of the tracepoint {of.name} have no end")
        return found

    def _rows(self, at: int) -> Iterator[tuple[int, int]]:
        for row in range(at, at + ROW * (MOST_FUNCTIONS + 1), ROW):
            if not (function := self.kernel.word(row)):
                return
            yield function, self.kernel.word(row + 8)

    def is_there(self, of: Tracepoint) -> bool:
        """Return whether a module's tracepoint is still where it was."""
        return any(self._at(code, of) is not None for code in self.modules())

    def _at(self, code: ModuleCode, of: Tracepoint) -> ModuleTracepoint | None:
        """Return that tracepoint of a module's; None where it is another module's, or not there any more."""
        if code.module.address != of.module:
            return None
        found = module_tracepoints.of_module(self.kernel, code.module)
        return next((one for one in found if (one.name, one.address) == (of.name, of.address)), None)

    def _of_module(self, event: EventName) -> ModuleTracepoint | None:
        """Return the tracepoint of a module that an event names; of two modules, that of the first."""
        named = (one for one in self._in_modules() if one.name == event.event)
        return next((one for one in named if event.is_raw or event.system in ("", one.system)), None)

    def _in_modules(self) -> Iterator[ModuleTracepoint]:
        return (one for code in self.modules() for one in module_tracepoints.of_module(self.kernel, code.module))

    def hold(self, of: Tracepoint, gives: int) -> Call:
        """Return the call that keeps a module from being unloaded, where it is true. gives: where the result is put."""
        return Call(self.kernel.address(HOLD), (of.module,), gives=gives)

    def release(self, takes: int) -> Call:
        """Return the call that lets it be unloaded again. takes: the word that has the address of its struct module."""
        return Call(self.kernel.address(RELEASE), takes=takes)

    def register(self, of: Tracepoint, function: int) -> Call:
        return Call(self.kernel.address(REGISTER), (of.address, function, 0))

    @property
    def register_at(self) -> int:
        """Return an address of the text near which handlers are to be."""
        return self.kernel.address(REGISTER)

    def unregister(self, of: Tracepoint, function: int) -> Call:
        return Call(self.kernel.address(UNREGISTER), (of.address, function, 0))

    def waits(self) -> Sequence[Call]:
        """Return the calls after which no CPU uses a function that was taken off. Raises OptprobeError."""
        symbols = self.kernel.symbols
        found = []
        for name, argument in WAITS:
            function = symbols.address(name)
            given = symbols.address(argument) if argument else None
            if function is not None and (given is not None or not argument):
                found.append(Call(function, (given,) if given is not None else ()))
        return found

    def reach(self, avoid: Callable[[int], bool], timeout: float) -> Runner:
        """Run the guest until a thread is where it may call functions that sleep. Raises CallFailed."""
        runner = Runner(
            self.machine, self.arch.calling, SafePoints(self.machine, self.kernel, self.arch.vcpus, avoid, WAITING)
        )
        try:
            runner.reach(timeout)
        finally:
            self.forget()
        return runner

    def _word(self, tracepoint: int, member: str) -> int:
        return self.kernel.word(tracepoint + self.kernel.offset("tracepoint", member))

    def _similar(self, name: str) -> str:
        try:
            near = difflib.get_close_matches(name, self._names(), 3)
        except Unreadable:
            near = []
        listed = "the guest has a list: /sys/kernel/tracing/available_events"
        return f"did you mean {', '.join(near)}?" if near else listed

    def _names(self) -> Sequence[str]:
        """Return the names of the kernel's tracepoints. Raises OptprobeError."""
        start, end = self.kernel.range(*TABLE)
        places = sorted(at + distance & MASK for at, (distance,) in self.kernel.rows(start, end, POINTER))
        symbols = (self.kernel.symbols.at(at) for at in places)
        named = [one.name.removeprefix(SYMBOL) for one in symbols if one is not None and one.name.startswith(SYMBOL)]
        return named or self._names_in_memory(places)

    def _names_in_memory(self, places: Sequence[int]) -> Sequence[str]:
        """Return the names of tracepoints at ascending places, of a kernel without symbols of data."""
        if not places:
            return []
        memory, member = self.kernel.memory, self.kernel.offset("tracepoint", "name")
        words = runs.heads([at + member for at in places], 8, memory)
        texts = runs.heads(sorted(int.from_bytes(word, "little") for word in words), LONGEST_NAME, memory)
        return [name for name in map(until_zero, texts) if name]
