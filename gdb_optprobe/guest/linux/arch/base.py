"""What Linux does differently on each ISA: one record, `LinuxArch`, listed in registry.py.

    find, settle, notes    where the kernel is mapped
    kernel                 its memory, symbols and structures
    text, modular          its code, and its modules'
    entry, entered         where a function is probed; whether calls enter it there
    stacks                 where PCs are saved
    room, places, window   memory for detours
    current, per_cpu       the running thread and CPU
    reads                  memory that may not be mapped (probe_read)
    trap_calls             where the kernel handles traps
    user_kernel            what probes on programs need
    unwinder               from a frame to its caller
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.lasting_text import LastingText, ShelvedText
from gdb_optprobe.guest.linux.boot import Beginning
from gdb_optprobe.guest.linux.clock import ClockRate, LogClock
from gdb_optprobe.guest.linux.current import Current
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import Kernel, Structures, Symbols
from gdb_optprobe.guest.linux.kernel_discovery import Finder
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch
from gdb_optprobe.guest.linux.syscall_events import SyscallAbi
from gdb_optprobe.guest.linux.tracepoints import TracepointArch
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine, Memory, Readable, Vcpu
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.symbols import SymbolTable
from gdb_optprobe.guest.text import Function, IdleSites, Overlay, Place, Text
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.stack_walk import Walker
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.calling import Calling
from gdb_optprobe.isa.codegen import ProbeReadCode
from gdb_optprobe.isa.record import Isa

Say = Callable[[str], None]
"""Tells the user of work that takes seconds."""


class Facts(Protocol):
    """What is known of a kernel, and kept while the session lasts."""

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        """Return the bitfields of a structure, by name: (first bit, number of bits). Raises OptprobeError."""

    def fact(self, name: str) -> object:
        """Return what `learn` was given; None where nothing was."""

    def learn(self, name: str, value: object) -> None:
        """Keep a value until the session ends."""


ModuleAt = Callable[[int], Module | None]


def nowhere(_: int) -> Module | None:
    """No module's text."""
    return None


class LinuxText(Text, Protocol):
    """The text of a kernel, with its tracer's sites."""

    originals: OriginalText

    @property
    def ftrace(self) -> FtraceSites: ...

    def forget(self) -> None:
        """Drop what was read: the guest has run, or a probe's branch was written or removed."""

    def own_kprobes(self) -> Collection[int]:
        """See guest.Guest."""

    def place(self, address: int) -> Place | None:
        """See guest.Guest; None outside of the kernel's own text."""

    def steady(self, places: Sequence[tuple[int, int]]) -> Sequence[bytes | None]:
        """See guest.Guest."""

    def code(self, places: Sequence[Place]) -> Sequence[bytes | None]:
        """See guest.Guest."""

    def read_ahead(self) -> None:
        """See guest.Guest."""

    def reader(self, spans: Sequence[tuple[int, int]]) -> Readable:
        """Return what these more places, ascending, are read from."""

    def lasting(self) -> LastingText | None:
        """See guest.Guest.lasting_text."""

    def shelved(self) -> ShelvedText | None:
        """See guest.Guest.shelved_text."""

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """See guest.Guest."""


class Stacks(Protocol):
    def saved(self) -> Iterable[SavedWords]:
        """Return all memory that may hold a saved PC now. Raises OptprobeError where some cannot be enumerated now."""

    def hides(self) -> bool:
        """Return whether a thread that exits may have return addresses on a stack that `saved` does not list."""


@dataclass(frozen=True, slots=True)
class Loan:
    """Memory that the kernel has lent: its address and size."""

    area: int
    size: int


class StillLent(OptprobeError):
    """The memory holds no detours any more, but the kernel did not take it back."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for detours: virtual ranges (start, end), the code's as many as there are. `fill` is the byte that unused
    code memory holds.

    take:      makes it ready for use.
    give_back: undoes `take`, once nothing is left in it.
    is_in_place: whether what `take` wrote is still there: it is gone after a reset of the guest.
    mapping:   what `take` changes and `give_back` undoes.
    journal:   memory like the code's, see detours/journal.py; empty where there is too little.
    borrow:    set where the kernel has to lend the memory first: runs the guest and returns the room, lent. notice: the
               sentence that announces this to the user.
    loan, repay: what was lent, and for a room of `LinuxArch.places` what gives it back, see `give_back`.
    as_found:  for a room of `places`, the code ranges as `LinuxArch.room` finds them where they hold no detours.
    """

    code: tuple[tuple[int, int], ...]
    data: tuple[int, int]
    fill: int
    take: Callable[[], None] = lambda: None
    give_back: Callable[[], None] = lambda: None
    is_in_place: Callable[[], bool] = lambda: True
    mapping: tuple[PhysicalPatch, ...] = ()
    journal: tuple[int, int] = (0, 0)
    borrow: Callable[[], Room] | None = None
    notice: str = ""
    loan: Loan | None = None
    repay: Callable[[Loan, Sequence[PhysicalPatch]], None] | None = None
    as_found: Callable[[], tuple[tuple[int, int], ...]] | None = None


NOWHERE = 0
"""The place of a block that serves where the kernel has it, while it does not."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of the kernel's functions."""

    function: int
    arguments: tuple[int, ...] = ()


class Allocator(Protocol):
    """The kernel's functions that lend blocks."""

    def allocate(self, order: int, low: int, high: int) -> Call:
        """Return the call that returns a block for a place inside [low, high), or 0. Raises OptprobeError."""

    def free(self, order: int) -> Call:
        """Return the call that takes a block back, which is an argument before the others. Raises OptprobeError."""


class Window(Protocol):
    """Where blocks of pages that the kernel lends appear to detours, one in each place: as data, or as code.

    block: the address at which the kernel has it. order: it has 2**order pages.
    orders: that can be mapped, greatest first. whole: that is asked for first where less would do.
    calling, vcpus: see native_call. kernel: with what is known of its threads. allocator: lends the blocks.
    range: where code is, whatever asks for it, but that of modules; (0, 0) where blocks are data.
    flushes: the kernel's function that flushes all translations; "" where `unmap` leaves none that are wrong.
    """

    @property
    def calling(self) -> Calling: ...

    @property
    def vcpus(self) -> Vcpus: ...

    @property
    def kernel(self) -> Kernel: ...

    @property
    def allocator(self) -> Allocator: ...

    @property
    def range(self) -> tuple[int, int]: ...

    @property
    def orders(self) -> Sequence[int]: ...

    @property
    def whole(self) -> int: ...

    @property
    def flushes(self) -> str: ...

    def size(self, order: int) -> int:
        """Return the bytes of data that a block is."""

    def places(self, low: int, high: int) -> Sequence[int]:
        """Return places inside [low, high), nearest to the arena's data first, each below the one before.

        Where a block serves at the kernel's own address of it, the place is NOWHERE until `map` returns it.
        """

    def is_place(self, place: int, order: int) -> bool:
        """Return whether such a block may be there."""

    def table(self) -> int | None:
        """Return the physical address of the table with the entries of all places; None where none is written.

        Raises OptprobeError.
        """

    def is_free(self, place: int) -> bool:
        """Return whether nothing is mapped there. Raises OptprobeError."""

    def inside(self, low: int, high: int) -> tuple[int, int]:
        """Return where inside [low, high) a block is looked for; it is empty where there is no place."""

    def journal(self, place: int, order: int) -> tuple[int, int]:
        """Return what a block that is mapped there has for a journal, behind its `size`; it is empty where it has none.
        """

    def protects(self, order: int, block: int) -> Sequence[Call]:
        """Return calls that make a block what it is to be, before `map`. Raises OptprobeError."""

    def unprotects(self, order: int, block: int) -> Sequence[Call]:
        """Return calls that undo those, however many of them were made."""

    def map(self, place: int, order: int, block: int) -> int:
        """Map a block, prove it by use, and return its place. Raises OptprobeError with nothing mapped."""

    def is_mapped(self, place: int, order: int, block: int) -> bool:
        """Return whether `map` has mapped it, false where nothing is. Raises OptprobeError where something else is."""

    def unmap(self, place: int) -> int:
        """Undo `map` and return the block's place then; translations may be cached until the kernel flushes them."""


class Reads(Protocol):
    """Reads of memory that may not be mapped."""

    @property
    def routine(self) -> ProbeReadCode: ...

    def read(self, registers: Mapping[str, int], address: int, size: int) -> bytes:
        """Return what the routine would read on a vCPU with these registers. Raises Unreadable."""


class Unwinder(Protocol):
    """Find a frame's caller, by registers with GDB's names. how: by what data, in words."""

    @property
    def how(self) -> str: ...

    def knows(self, pc: int) -> bool:
        """Return whether this unwinder covers the code at `pc`."""

    def caller(self, registers: Mapping[str, int], exact: bool) -> tuple[Mapping[str, int], bool] | None:
        """Return the caller's registers and whether its PC is the next instruction (no return address); None at the
        end.
        end.

        exact: the same of the frame that is given.
        """

    def over(self, read: ReadMemory) -> Unwinder:
        """Return this unwinder for a stack that `read` reads."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The code that an interrupt has interrupted, or an exception, while the kernel handles it.

    registers: the address of its pt_regs; None: an interrupt's, where the kernel keeps that.
    """

    registers: Expr | None = None


@dataclass(frozen=True, slots=True)
class WalkedFrom:
    """Where a hit begins to walk its stack. address: of the probed instruction.

    frame: where that is a function that the kernel calls for a tracepoint: the bytes that it has on the stack there.
    interrupted: the stack is that of this code instead.
    returned: the function there has returned to this address.
    """

    address: int
    frame: int | None = None
    interrupted: Interrupted | None = None
    returned: Expr | None = None


class LinuxArch(Finder, Protocol):
    """clock: variables that may say how fast it runs. loaded: from where to where modules can be.

    tracepoints: None where no function of the arena can be registered on one.
    event_costs: what a hit of Linux's own kprobe and uprobe events takes, in instructions of the guest, by the kind of
    the probe: docs/internals/figures.md, of a stock 6.1.
    first_reads: memory (start, size) that a kernel reads once it is in place, before it starts, and nothing reads
    before it; none where probes cannot wait for that.
    beginning: where it has patched its own text from then on.
    page_faults: see guest.Guest.
    """

    isa: Isa
    first_reads: Sequence[tuple[int, int]]
    beginning: Beginning
    clock: Sequence[ClockRate]
    loaded: tuple[int, int]
    syscalls: SyscallAbi
    tracepoints: TracepointArch | None
    event_costs: Mapping[str, int]
    page_faults: Sequence[tuple[str, str]]

    def names(self, memory: Memory, symbols: SymbolTable) -> Symbols:
        """Return `symbols`, with names of data that are found in another way where the kernel's table has none."""

    def kernel(self, memory: Memory, symbols: Symbols, structures: Structures) -> Kernel:
        """Return the kernel. symbols: as `names` returned them."""

    def log_clock(self, kernel: Kernel) -> LogClock | None: ...

    def text(self, kernel: Kernel, overlay: Overlay, shelf: Shelf | None, say: Say) -> LinuxText: ...

    def modular(self, kernel: Kernel, text: LinuxText) -> LoadedText:
        """Return `text` with the text of loaded modules added."""

    def entry(self, function: int, text: Text) -> int:
        """Return the address at which to probe the function with its symbol at `function`."""

    def entry_by_head(self, function: int, head: bytes, original: bool = False) -> int | None:
        """Return the same where the first bytes in memory show it; else None. They may be patched, unless `original`.
        """

    def entered(self, function: Function, unwinder: Unwinder | None) -> bool:
        """Return whether `function` is only entered at its start by calls, and returns to its caller.

        Asked of code without a tracer's site: assembly has places with names that no code calls.
        """

    def pointer_thunks(self, kernel: Kernel) -> Mapping[int, str]:
        """Return the code that goes to the address in a register, in place of a call or jump through it: the register,
        by address.
        """

    def per_cpu(self, kernel: Kernel) -> int | None:
        """See isa.codegen.EntryState."""

    def stacks(self, kernel: Kernel, machine: Machine, registers: Sequence[str]) -> Stacks: ...

    def stacks_missing(self, kernel: Kernel) -> str:
        """Return why not all stacks can be enumerated, in words; "" when they can."""

    def room(self, machine: Machine, kernel: Kernel) -> Room:
        """Return memory for detours, without changing the guest. Raises OptprobeError."""

    def places(self, machine: Machine, kernel: Kernel) -> Iterable[Room]:
        """Yield every place where `room` may have found memory before, whatever it holds now. Raises OptprobeError.

        The code's ranges are the widest; what was found of them is in the journal.
        """

    def window(self, machine: Machine, kernel: Kernel) -> Window:
        """Return where more data can appear. Raises OptprobeError where nothing can."""

    def code_window(self, machine: Machine, kernel: Kernel) -> Window:
        """Return where more code can appear. Raises OptprobeError where none can."""

    def current(self, kernel: Kernel) -> Current:
        """Return the expressions for the running thread and its CPU."""

    def outside(self, kernel: Kernel, machine: Machine, vcpu: Vcpu) -> int | None:
        """Return Linux's number of the CPU where a vCPU has a program's registers: `current` does not hold of these.

        None where it has the kernel's. Raises OptprobeError where the number is not known.
        """

    def reads(self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None]) -> Reads:
        """Return how memory that may not be mapped is read. Raises OptprobeError where this kernel gives no way to do
        it.
        physical: translates by the kernel's page tables.
        """

    def trap_calls(self, kernel: Kernel, originals: Originals) -> TrapCalls:
        """Return where the kernel handles traps. Raises OptprobeError."""

    def user_kernel(
        self, kernel: Kernel, machine: Machine, physical: Callable[[int], int | None], originals: Originals
    ) -> UserKernel:
        """Return what probes on programs need. Raises OptprobeError where the guest's programs cannot be probed.
        physical: see `reads`.
        """

    def walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        """Return how a hit there finds its callers. Raises OptprobeError where it cannot."""

    def walked_code(self, unwinder: Unwinder, address: int) -> int | None:
        """Return what stack_walk.CODE has for an address that a hit's walker did not know; None where that is nothing.
        """

    def user_walker(self, kernel: Kernel, unwinder: Unwinder, place: WalkedFrom) -> Walker:
        """Return how a hit there finds the frames of the program that its thread runs, and none where it runs none.

        Raises OptprobeError where it cannot.
        """

    def program_walker(self, bits: int, returned: bool) -> Walker:
        """Return how a hit in a program of so many bits finds its callers, by the program's own registers.

        returned: where a function has just returned to.
        """

    def unwinder(
        self, kernel: Kernel, text: LinuxText, facts: Facts, read: ReadMemory, module: ModuleAt = nowhere
    ) -> Unwinder:
        """Return an unwinder of the kernel's stack. Raises OptprobeError where it cannot be unwound.
        module: finds the module of an address in its text.
        """
