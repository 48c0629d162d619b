"""One running Linux kernel, put together: its text, its tracer, its stacks, memory for detours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import ArenaContents, restoring_patches
from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi, scope
from gdb_optprobe.guest.linux import bypasses, frame
from gdb_optprobe.guest.linux.arch.base import LinuxArch, LinuxText, Reads, Room, Say, Stacks, StaysLent, Unwinder
from gdb_optprobe.guest.linux.clock import hertz
from gdb_optprobe.guest.linux.current import Current
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.linux.modules import Module
from gdb_optprobe.guest.linux.structures import KernelStructures, Layouts, no_layouts
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.scope import Debug
from gdb_optprobe.guest.scope import Site as Probed
from gdb_optprobe.guest.text import Function, Overlay
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.guest.user_scope import user_scope
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.arena_record import Earlier, facts, look
from gdb_optprobe.probes.names import NamesAt
from gdb_optprobe.probes.original import unpatched
from gdb_optprobe.probes.settings import ArenaRanges, Settings
from gdb_optprobe.probes.site_tracer import SiteTracer

LARGEST_BTF = 1 << 26
NO_TYPES = "before the first optprobe command, load its vmlinux with debug information: symbol-file FILE"
RETURN_HOOKS = ("return_to_handler", "arch_rethook_trampoline", "__kretprobe_trampoline", "kretprobe_trampoline")
DebugAt = Callable[[int, abi.Abi, Callable[[], Expr | None]], Debug | None]
"""Of an address, what debug information tells; the last tells where the frame of the function there begins."""


@dataclass
class Linux:
    """What is known of the guest's kernel, and what of it must be forgotten when the guest has run."""

    recovered: DiscoveredKernel
    machine: Machine
    memory: KernelMemory
    isa: Isa
    kernel: Kernel
    structures: KernelStructures
    core: LinuxText
    text: LoadedText
    arch: LinuxArch
    room: Room | None = None
    tracer: SiteTracer = field(init=False)
    _journal: Journal = field(default_factory=Journal)
    _saved: list[SavedWords] | None = None
    _moment: int = 0
    _took: bool = False
    _earlier: Earlier | None = None
    _covered: Sequence[Patch] | None = None
    _asked: bool = False
    _constants: dict[str, int | None] = field(default_factory=dict)
    unwind_missing: OptprobeError | None = None
    tell: Say = lambda _: None

    def __post_init__(self) -> None:
        self.tracer = SiteTracer(self)

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
        tell: Say = lambda _: None,
    ) -> Linux:
        """`overlay` shows the original bytes where branches of ours stand. layouts: GDB's, of this kernel.

        tell: tells the user a sentence.
        """

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
        return cls(recovered, machine, memory, isa, kernel, structures, core, text, arch, tell=tell)

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
        """Whether this kernel runs, with memory for detours as we made it and last changed it. Raises Unreadable."""
        if not self.recovered.still_there(self.machine):
            return False
        return not self._took or self.room is None or (self.room.stands() and self._journal.stands())

    @property
    def keeps_journal(self) -> bool:
        """Whether `still_there` tells a snapshot that was loaded meanwhile."""
        return self._took and self.room is not None and self._journal.is_open

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
        of = abi.of(self.isa.name)
        return self._names(site, convenience, debug(address, of, lambda: self._frame(address, of)))

    def _frame(self, address: int, of: abi.Abi) -> Expr | None:
        return frame.base(self.own_unwinder, address, of) if self.own_unwinder is not None else None

    def _names(
        self, site: Probed, convenience: Callable[[str], int | None], debug: Debug | None = None
    ) -> NamesAt:
        of = abi.of(self.isa.name)
        names = scope.kernel_scope(self.kernel, self.current, self._types, of, site, convenience, debug)
        cpu = self.current.cpu
        number = None if isinstance(cpu, Missing) else cpu
        return NamesAt(names, self.arch.per_cpu(self.kernel), number, self.reads, hertz(self.kernel))

    def at_return(
        self, address: int, convenience: Callable[[str], int | None], debug: DebugAt = lambda address, abi, frame: None
    ) -> NamesAt | None:
        """What names mean where the function has returned that is entered at `address`; None where none is."""
        if (function := self.text.function(address)) is None or not self._is_entry(address):
            return None
        site = scope.Site(address, self._named(function), returns=True)
        return self._names(site, convenience, debug(address, abi.of(self.isa.name), lambda: None))

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
        left = self.left()
        originals = {text.address: text.original for text in left.texts} if left is not None else {}
        return self.arch.trap_calls(self.kernel, originals)

    @cached_property
    def user_kernel(self) -> UserKernel:
        """What probes on programs need of it. Raises OptprobeError."""
        left = self.left()
        originals = {text.address: text.original for text in left.texts} if left is not None else {}
        return self.arch.user_kernel(self.kernel, self.machine, self.memory.physical, originals)

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

    # detours ---------------------------------------------------------------------------------------------------------

    def new_arena(self, settings: Settings) -> Arena:
        """Memory for detours: the user's, else what the kernel does not use of its own. Raises OptprobeError."""
        if settings.arena is not None:
            self._check_given(settings.arena)
            return given_arena(settings, self.isa)
        earlier = self._look_back()
        if earlier is not None and (not earlier.is_empty or earlier.loan is not None):
            return self._adopted(earlier)
        # What an earlier GDB has begun to give back is given back when it is taken: nothing is changed here.
        self.room = room = self.arch.room(self.machine, self.kernel) if earlier is None else earlier.place
        start, end = room.journal
        self._journal = Journal()
        if start < end:
            self._journal = Journal(self.memory, start, end - start, room.fill)
            self._journal.put(Item.ROOM, 0, facts(room, self.recovered))
        if room.told:
            self.tell(room.told)
        return self._arena(room)

    def _adopted(self, earlier: Earlier) -> Arena:
        self.room = earlier.room(self.machine, self.memory)
        self._journal = earlier.journal(self.memory)
        arena = self._arena(self.room)
        arena.adopt(earlier.left, self.memory, set(self._handlers()))
        if self.left() is None:
            arena.release_data()
            if not arena.dirty():
                arena.reclaim(lambda slots: ())  # no code may write there
        return arena

    def _handlers(self) -> Iterator[int]:
        """Of the kernel's, for traps: before them there may be code of ours."""
        for calls in (self.trap_calls, lambda: self.user_kernel.calls):
            try:
                yield calls().handler
            except OptprobeError:
                continue

    def _arena(self, room: Room) -> Arena:
        return Arena(Ranges(code=room.code, data=(room.data,), fill=room.fill), self.isa.alignment, self._journal)

    def left(self) -> ArenaContents | None:
        """Probes of an earlier GDB, or of a snapshot; None where there are none, or not any more. Raises OptprobeError.
        """
        if self._took:
            return None
        self._asked, self._covered = False, ()
        earlier = self._look_back()
        if earlier is None:
            return None
        left = earlier.left
        texts, _ = restoring_patches(left, self.memory, self.isa)
        self._covered = [text.reverse for text in texts]
        return left if left.probes or left.users or texts else None

    def uncovered(self, address: int, data: bytes) -> bytes:
        """Return `data`, read at `address`, with what the branches of an earlier GDB cover where these still stand."""
        if self._covered is None:
            try:
                self.left()
            except OptprobeError:
                self._covered = ()
        return unpatched(data, address, [patch for patch in self._covered or () if _stands(patch, address, data)])

    def _look_back(self) -> Earlier | None:
        if not self._asked:
            self._earlier = look(self.machine, self.memory, self.kernel, self.arch, self.recovered, self.isa)
            self._asked = True
        return self._earlier

    def _check_given(self, arena: ArenaRanges) -> None:
        """Raises Refused where the user's ranges hold functions of the kernel's."""
        for start, end in (arena.code, arena.data):
            owned = next((at for at in (start, end - 1) if self.text.function(at) is not None), None)
            if owned is not None:
                why = f"{self.text.spell(owned)} is code of the kernel's own"
                raise Refused(Refusal.ARENA_MISSING.because(why=why))

    def take_arena(self) -> None:
        """Make what `new_arena` found ready for use: page tables, say. Another GDB knows of it before."""
        if self.room is None:
            return
        if self.room.borrow is not None:
            self._borrow(self.room.borrow)
            return
        if self._earlier is not None and self._earlier.is_empty and self._earlier.loan is None:
            self._finish(self._earlier)
        self._journal.begin()
        try:
            self.room.take()
        except OptprobeError:
            self._journal.clear()
            raise
        self._took = True
        self.memory.forget()

    def _finish(self, earlier: Earlier) -> None:
        """Give back what an earlier GDB had begun to, and take the same memory anew. Raises OptprobeError."""
        earlier.finish(self.machine, self.memory)
        self.memory.forget()
        self._earlier = None
        room = self.arch.room(self.machine, self.kernel)
        if (room.code, room.data, room.journal) != (earlier.place.code, earlier.place.data, earlier.place.journal):
            raise OptprobeError("the memory for detours of an earlier GDB is not free", "connect anew, then try again")
        self.room = room
        self._journal.put(Item.ROOM, 0, facts(room, self.recovered))

    def lends(self) -> bool:
        """Whether `take_arena` would run the guest, so that its kernel lends memory."""
        return self.room is not None and self.room.borrow is not None

    def _borrow(self, borrow: Callable[[], Room]) -> None:
        """As `take_arena`. Once the kernel has lent it, the journal tells of that before its window appears."""
        self.tell("the guest runs until its kernel has lent memory for detours")
        room = borrow()
        self.forget()
        self._journal.start = room.journal[0]
        self._journal.put(Item.ROOM, 0, facts(room, self.recovered))
        try:
            self._journal.begin()
            room.take()
        except OptprobeError as error:
            self._journal.lose()
            try:
                room.give_back()
            except OptprobeError as stays:
                raise OptprobeError(f"{error.message}; {stays.message}", error.hint or stays.hint) from error
            raise
        self.room, self._took = room, True
        self.memory.forget()

    def give_back_arena(self) -> None:
        """Nothing of ours is left: page tables become what they were. Raises OptprobeError where a loan stays."""
        if self._took and self.room is not None and self.room.loan is not None:
            self._repay(self.room)
            return
        room, self.room, self._took, self._earlier = self.room, None, False, None
        if room is not None:
            room.give_back()
            self._journal.clear()
            self.memory.forget()

    def _repay(self, room: Room) -> None:
        """The guest runs; the journal goes with the memory."""
        try:
            room.give_back()
        except StaysLent as stays:
            self.tell(stays.message)
        self.room, self._took, self._earlier, self._journal = None, False, None, Journal()
        self.forget()


def _stands(patch: Patch, address: int, data: bytes) -> bool:
    """Whether `data`, read at `address`, has all of a patch's bytes that are among it."""
    start, end = max(patch.address, address), min(patch.end, address + len(data))
    return start < end and data[start - address : end - address] == patch.new[start - patch.address :][: end - start]


def given_arena(settings: Settings, isa: Isa) -> Arena:
    """The ranges of `set optprobe arena`. Raises Refused where there are none."""
    if settings.arena is None:
        raise Refused(Refusal.ARENA_MISSING.because(why="this guest is no Linux whose memory is known"))
    return Arena(Ranges(code=(settings.arena.code,), data=(settings.arena.data,)), isa.alignment)
