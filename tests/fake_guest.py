"""One guest for tests: a real Session runs on it, without a machine.

    FakeGuest ── machine   memory, two threads that run on Unicorn; every write of GDB's is recorded
              ├─ text      functions that were given as bytes
              ├─ stops     breakpoints of a debugger that never steps over one unseen
              ├─ tracer    one byte of memory for each site
              └─ arena     found, taken, adopted and given back by the code that does it in a Linux guest

GDB dies by `FakeGuest.after`: another guest that holds the same memory with only the first of the recorded writes done.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property, partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import unicorn
from unicorn import x86_const

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.base import LinuxArch, Room
from gdb_optprobe.guest.linux.arch.x86_64.trap_entry import TRAPPING
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest.machine import Memory, Vcpu
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.saved_pcs import SavedWords, Stack
from gdb_optprobe.guest.text import Area, EnteredFunction, FtraceSite, Function, IdleSites, Jump, Mark, Whole
from gdb_optprobe.handlers.ctype import UNSIGNED_LONG, CType
from gdb_optprobe.handlers.ir import Expr, Frame, Register
from gdb_optprobe.handlers.scope import Meaning, Missing, Rvalue
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.trapping import Entry
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.arena_source import ArenaSource
from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.stops import Caller, Hit, OnHit, ProbeStop
from gdb_optprobe.probes.target import Command, NoModules, Target, Ticks
from tests.detours.fakes import code
from tests.guest.linux import fake_kernel

START = 0x1000_0000  # Unicorn without page tables has no upper half
SIZE = 0x80000
CODE, JOURNAL, DATA, STACKS = START + 0x10000, START + 0x20000, START + 0x28000, START + 0x70000
RECORDS, TABLES = START + 0xE000, START + 0xF000
"""Where the tracer notes what it must keep off, and where the page tables of the arena are."""
STACK_SIZE, THREADS = 0x1000, 2
FILL = 0xCC
MAPPED = PhysicalPatch(TABLES, bytes(8), b"\1".ljust(8, b"\0"))
PC, SP = X86_64.registers.index("rip"), X86_64.registers.index("rsp")
FRAME = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi")
"""Of struct pt_regs on x86-64, in order; behind them orig_rax and what the processor pushes."""


@dataclass(frozen=True)
class Cpu:
    """What threads run on. uc: Unicorn's architecture and mode. numbers: of the ISA's registers, in its order.

    initial: values of a thread's registers at its start, where not 0.
    """

    isa: Isa
    uc: tuple[int, int]
    numbers: tuple[int, ...]
    initial: Mapping[str, int]

    @cached_property
    def pc(self) -> int:
        return self.isa.registers.index(self.isa.pc)

    @cached_property
    def sp(self) -> int:
        return self.isa.registers.index(self.isa.sp)


X86_CPU = Cpu(
    X86_64,
    (unicorn.UC_ARCH_X86, unicorn.UC_MODE_64),
    tuple(getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in X86_64.registers),
    {"rax": 1, "rcx": 2, "rdx": 3, "eflags": 2},
)


@dataclass(frozen=True, slots=True)
class Body:
    """A function's code. tracer: where in it the guest's tracer has a site, of five bytes. entry: of a trap."""

    name: str
    address: int
    data: bytes
    tracer: int | None = None
    entry: bool = False


class FakeText:
    """See guest.text.Text. The functions are as they were given, whatever is written into them."""

    def __init__(self, isa: Isa, bodies: Sequence[Body]) -> None:
        self.isa, self.bodies = isa, bodies
        self.functions = [self._function(body) for body in bodies]

    def _function(self, body: Body) -> Function:
        insns = {insn.address: insn for insn in self.isa.decode(body.data, body.address)}
        jumps = [insn for insn in insns.values() if insn.flow in (Flow.JUMP, Flow.BRANCH) and insn.target]
        whole = Whole(insns, True, tuple(Jump(insn.address, insn.target or 0, insn.flow.value) for insn in jumps))
        return Function(body.name, body.address, body.address + len(body.data), insns, lambda: whole)

    def area(self, address: int) -> Area:
        inside = next((body for body in self.bodies if body.address <= address < body.address + len(body.data)), None)
        if inside is None:
            return Area.TEXT if START <= address < RECORDS else Area.NOT_TEXT
        return Area.ENTRY if inside.entry else Area.TEXT

    def function(self, address: int) -> Function | None:
        return next((known for known in self.functions if known.start <= address < known.end), None)

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        return ()

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        size = self.isa.branch_size
        at = {body.address + body.tracer: body for body in self.bodies if body.tracer is not None}
        sites = [FtraceSite(address, size, False, body.data[body.tracer :][:size]) for address, body in at.items()]
        return [site for site in sites if site.address < end and start < site.end]

    def spell(self, address: int) -> str:
        return f"{address:#x}"

    def forget(self) -> None:
        """Nothing is kept of what the guest may change."""


class FakeMachine:
    """See guest.machine.Machine: memory, and threads that run on it. writes: GDB's, in order."""

    def __init__(self, memory: bytes, threads: Iterable[tuple[int, ...]] = (), cpu: Cpu = X86_CPU) -> None:
        self.cpu = cpu
        self.memory = bytearray(memory)
        self.threads = list(threads)
        self.writes: list[tuple[int, bytes]] = []
        self._uc: Any = None
        self._most = 1
        self._held: tuple[int, ...] = ()
        self._live: Memory | None = None

    @property
    def runs(self) -> bool:
        return self._live is not None

    @contextmanager
    def reading(self, live: Memory) -> Iterator[None]:
        self._live = live
        try:
            yield
        finally:
            self._live = None

    def read(self, address: int, size: int) -> bytes:
        if self._live is not None:
            return self._live.read(address, size)
        at = address - START
        if at < 0 or at + size > SIZE:
            raise Unreadable(address, size)
        return bytes(self.memory[at : at + size])

    def write(self, address: int, data: bytes) -> None:
        if self.runs:
            raise NeedsStop("memory of a guest that runs is not written")
        self.read(address, len(data))
        self.writes.append((address, bytes(data)))
        self.memory[address - START : address - START + len(data)] = data
        if self._uc is not None:
            self._uc.ctl_flush_tb()

    read_physical, write_physical = read, write

    def vcpus(self) -> tuple[Vcpu, ...]:
        return ()

    def selected(self) -> Vcpu:
        raise AssertionError("threads are not vCPUs here")

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        raise AssertionError(f"there is no vCPU {vcpu}")

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None:
        raise AssertionError(f"there is no vCPU {vcpu}")

    def translates_pages(self) -> bool:
        return True

    def step_out(self, pc: str, ranges: Sequence[tuple[int, int]]) -> None:
        """No thread is a vCPU."""

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        return None

    def physical(self, address: int) -> int:
        return address

    def forget(self) -> None:
        """Nothing is kept of what the guest may change."""

    def saved(self) -> Iterator[SavedWords]:
        """Registers and stacks of the threads."""
        for number, state in enumerate(self.threads):
            top = STACKS + STACK_SIZE * (number + 1)
            sp = state[self.cpu.sp]
            words = array("Q", self.read(sp, (top - sp) & -8))
            yield SavedWords(f"thread {number}", 0, array("Q", state))
            stack = Stack(top - STACK_SIZE, top, number + 1, f"thread{number}")
            yield SavedWords(f"thread {number}", sp, words, stack)

    def start_thread(self, pc: int) -> None:
        isa = self.cpu.isa
        state = {**dict.fromkeys(isa.registers, 0), **self.cpu.initial, isa.pc: pc}
        state[isa.sp] = STACKS + STACK_SIZE * len(self.threads) + 0x800
        self.threads.append(tuple(state.values()))

    def run_one(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """Run one instruction, with these registers."""
        return self.run_until_at(state, 0, 1)

    def run_until_at(self, state: tuple[int, ...], address: int, most: int) -> tuple[int, ...]:
        """Run until the PC is `address`, or before what cannot be run; some instructions at most."""
        if self._uc is None:
            self._uc = unicorn.Uc(*self.cpu.uc)
            held = (ctypes.c_ubyte * SIZE).from_buffer(self.memory)
            self._uc.mem_map_ptr(START, SIZE, unicorn.UC_PROT_ALL, ctypes.addressof(held))
        if state is not self._held:
            self._uc.reg_write_batch(tuple(zip(self.cpu.numbers, state, strict=True)))
        self._held = ()
        if most != self._most:
            self._uc.ctl_flush_tb()  # blocks that were translated with another end
            self._most = most
        try:
            self._uc.emu_start(state[self.cpu.pc], address, count=most)
        except unicorn.UcError as error:
            if error.errno != unicorn.UC_ERR_INSN_INVALID or most == 1:
                raise
        self._held = tuple(self._uc.reg_read_batch(self.cpu.numbers))
        return self._held


@dataclass
class FakeStop:
    stops: dict[int, list[FakeStop]]
    address: int
    on_hit: OnHit
    stepped: int = 0
    moved: int = 0

    def remove(self) -> None:
        self.stops[self.address].remove(self)


class FakeStops:
    """See probes.stops.Stops: of a debugger that steps over no breakpoint without its hit."""

    def __init__(self) -> None:
        self.points: dict[int, list[FakeStop]] = {}

    def set(self, address: int, on_hit: OnHit, restarts: bool = False) -> FakeStop:
        point = FakeStop(self.points, address, on_hit)
        self.points.setdefault(address, []).append(point)
        return point

    def stop_at_probe(self, stop: ProbeStop) -> FakeStop:
        raise AssertionError("no program stops")

    def arrived(self, address: int) -> None:
        """The next step runs the hit of a thread that is at `address`."""

    def passed(self, address: int) -> None:
        """The next step does not run the hit of a thread that is at `address`."""

    def take_back(self, address: int) -> int:
        return 0

    def on_resume(self, behind: Callable[[int], int | None], moved: Callable[[], None]) -> None:
        """No program stops."""


class FakeTracer:
    """See probes.target.Tracer: a byte of memory for each site, 1 where the tracer is kept off."""

    def __init__(self, machine: FakeMachine, text: FakeText) -> None:
        self._machine = machine
        sites = text.ftrace_sites(START, START + SIZE)
        self.records = {site.address: RECORDS + number for number, site in enumerate(sites)}

    def hold(self, site: FtraceSite) -> None:
        self._machine.write(self.records[site.address], b"\1")

    def release(self, site: FtraceSite) -> None:
        self._machine.write(self.records[site.address], b"\0")

    def hold_all(self, addresses: Sequence[int]) -> None:
        records = [self.records[address] for address in addresses]
        patch.apply_in_runs([Patch(at, b"\0", b"\1") for at in records], self._machine)

    def release_all(self, addresses: Sequence[int]) -> None:
        records = [self.records[address] for address in addresses]
        held = [at for at in records if self._machine.read(at, 1) == b"\1"]
        patch.apply_in_runs([Patch(at, b"\1", b"\0") for at in held], self._machine)

    def give_back(self) -> None:
        """No site stays disabled."""

    @property
    def kept_off(self) -> Collection[int]:
        return ()

    def forget(self, site: FtraceSite) -> None:
        """No text is unloaded."""

    def passed_over(self) -> Sequence[int]:
        return ()


class Registers:
    """`Scope` of a machine where only registers have names."""

    def __init__(self, isa: Isa = X86_64) -> None:
        self._isa = isa

    def is_type(self, name: str) -> bool:
        return False

    def type(self, keyword: str, name: str) -> CType | Missing:
        return Missing(f"no type {name}")

    def name(self, name: str) -> Meaning | Missing:
        return Missing(f"no name {name}")

    def dollar(self, name: str) -> Meaning | Missing:
        return Rvalue(Register(name), UNSIGNED_LONG) if name in self._isa.registers else Missing(f"no register {name}")

    def per_cpu_base(self) -> Expr | Missing:
        return Missing("no CPUs")

    def frame(self) -> Frame | Missing:
        return Missing("no stacks")

    def is_mapped(self, address: int, size: int) -> bool:
        return False


def _lend_nothing(*_: object) -> None:
    raise OptprobeError("this guest's kernel lends no memory")


def _probe_no_programs(*_: object) -> None:
    raise OptprobeError("no programs run here")


def _set_nothing(values: Mapping[str, int]) -> None:
    raise AssertionError(f"nothing here sets registers: {values}")


@dataclass
class FakeModule(NoModules):
    """A module that comes and goes: one body of the guest's. load: how often it was loaded; 0: it is not there."""

    body: Body
    load: int = 0
    listeners: list[Callable[[int], None]] = field(default_factory=list)

    def identity(self, address: int) -> object:
        inside = self.body.address <= address < self.body.address + len(self.body.data)
        return self.load or None if inside else None

    def loaded_state(self) -> object:
        return self.load

    def location(self, address: int) -> str:
        return f"module:{self.body.name}" if self.identity(address) is not None else ""

    def find(self, location: str) -> Sequence[int]:
        is_ours = location.rpartition(":")[2] == self.body.name
        return (self.body.address,) if self.load and is_ours else ()

    def loading_text(self, module: int) -> tuple[int, int]:
        return self.body.address, self.body.address + len(self.body.data)

    def on_load(self, call: Callable[[int], None]) -> FakeStop:
        self.listeners.append(call)
        return FakeListener({}, 0, lambda _: None, heard=(self.listeners, call))


@dataclass
class FakeListener(FakeStop):
    heard: tuple[list[Callable[[int], None]], Callable[[int], None]] = field(kw_only=True)

    def remove(self) -> None:
        self.heard[0].remove(self.heard[1])


@dataclass
class OneArena:
    """See ArenaSource: an arena that is always there."""

    arena: Arena

    @property
    def code(self) -> Sequence[tuple[int, int]]:
        return self.arena.ranges.code

    def find(self) -> Arena:
        return self.arena

    def take(self) -> None:
        """It is ready for use."""

    def lends(self) -> bool:
        return False

    def give_back(self) -> None:
        """It stays."""

    def left(self) -> ArenaContents | None:
        return None

    def finish(self) -> bool:
        return False

    def is_in_place(self) -> bool:
        return True

    @property
    def keeps_journal(self) -> bool:
        return False


@dataclass
class FakeGuest(Guest):
    """arena: where no journal is kept; else it is found as in a Linux guest. traps: where a trap is handled, see Body.

    names: what names mean, where not only registers do. settings: of the session. module: see FakeModule.
    breakpoints: the user's. cpu: what threads run on, where they do.
    """

    bodies: Sequence[Body]
    isa: Isa = X86_64
    arena: Arena | None = None
    traps: TrapCalls | None = None
    names: NamesAt | None = None
    settings: Settings = field(default_factory=Settings)
    memory: bytes = b""
    threads: Sequence[tuple[int, ...]] = ()
    forgotten: bool = False
    module: FakeModule | None = None
    breakpoints: frozenset[int] = frozenset()
    cpu: Cpu = X86_CPU
    machine: FakeMachine = field(init=False)
    text: FakeText = field(init=False)
    stops: FakeStops = field(default_factory=FakeStops, init=False)
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.machine = FakeMachine(self.memory or self._memory(), self.threads, self.cpu)
        self.text = FakeText(self.isa, self.bodies)
        self.tracer = FakeTracer(self.machine, self.text)
        self.arena_source: ArenaSource = LinuxArena(self._linux(), lambda: self.settings)
        if self.arena is not None:
            self.arena_source = OneArena(self.arena)

    def _memory(self) -> bytes:
        memory = bytearray(SIZE)
        for body in self.bodies:
            memory[body.address - START : body.address - START + len(body.data)] = body.data
        memory[CODE - START : DATA - START] = bytes([FILL]) * (DATA - CODE)
        if self.arena is None:
            memory[DATA - START : STACKS - START] = bytes([FILL]) * (STACKS - DATA)
        return bytes(memory)

    def _linux(self) -> LinuxGuest:
        place = Room(((CODE, JOURNAL),), (DATA, STACKS), FILL, journal=(JOURNAL, DATA))
        take = partial(physical_patch.apply, (MAPPED,), self.machine)
        give_back = partial(physical_patch.undo, (MAPPED,), self.machine)
        room = Room(place.code, place.data, FILL, take, give_back, mapping=(MAPPED,), journal=place.journal)
        arch = SimpleNamespace(
            loaded=(0, 0), room=lambda machine, kernel: room, places=lambda machine, kernel: (place,),
            trap_calls=lambda kernel, originals: self.trap_calls(), user_kernel=_probe_no_programs,
            window=_lend_nothing, code_window=_lend_nothing,
        )
        recovered = SimpleNamespace(build="fake", text=(START, RECORDS), is_same_kernel=lambda machine: True)
        kernel = fake_kernel.kernel(cast(Any, self.machine), {})
        ours: Any = self
        return LinuxGuest(
            cast(Any, recovered), ours.machine, ours.machine, self.isa, kernel, ours, ours.text, ours.text,
            cast(LinuxArch, arch), _is_booting=False,
        )  # fmt: skip

    def trap_calls(self) -> TrapCalls:
        if self.traps is None:
            raise OptprobeError("this guest's handler of traps is not known")
        return self.traps

    stacks_missing = ""

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        sites = (site for at in sorted(addresses) for site in self.text.ftrace_sites(at, at + 1) if site.address == at)
        found = [site for site in sites if self.machine.read(site.address, site.size) == site.idle]
        return IdleSites([site.address for site in found], found[0].idle) if found else IdleSites()

    def functions_entered(self, sites: Sequence[int]) -> Sequence[EnteredFunction]:
        wanted = frozenset(sites)
        at = [body for body in self.bodies if body.tracer is not None and body.address + body.tracer in wanted]
        return [EnteredFunction(body.address + (body.tracer or 0), body.name, body.address, body.data) for body in at]

    def moment(self) -> int:
        return self.steps

    def saved(self) -> Iterator[SavedWords]:
        return self.machine.saved()

    def has_hidden_stacks(self) -> bool:
        return False

    def symbol(self, address: int) -> str:
        return ""

    def names_at(self, address: int) -> NamesAt:
        return self.names or NamesAt(Registers(self.isa))

    def names_at_return(self, address: int) -> NamesAt | None:
        return self.names_at(address) if any(body.address == address for body in self.bodies) else None

    @property
    def target(self) -> Target:
        return Target(
            guest=self,
            debugger=FakeDebugger(self),
            stops=cast(Any, self.stops),
            tracer=self.tracer,
            arena_source=self.arena_source,
            modules=self.module or NoModules(),
        )

    def session(self) -> Session:
        """Return a session of a GDB that has just connected."""
        return Session(self.target, lambda: self.settings)

    def copy(self) -> FakeGuest:
        """Return a guest in the same state, without the debugger's breakpoints."""
        return FakeGuest(
            self.bodies, self.isa, None, self.traps, self.names, self.settings,
            bytes(self.machine.memory), tuple(self.machine.threads),
        )  # fmt: skip

    def after(self, writes: Sequence[tuple[int, bytes]]) -> FakeGuest:
        """Return a copy in which a GDB has written this and died."""
        found = self.copy()
        for address, data in writes:
            found.machine.write(address, data)
        found.machine.writes.clear()
        return found

    def read_text(self) -> bytes:
        """Return all that is not the arena's: text, the tracer's records, page tables."""
        return self.machine.read(START, CODE - START)

    # threads ---------------------------------------------------------------------------------------------------------

    def start_threads(self, pc: int) -> None:
        for _ in range(THREADS):
            self.machine.start_thread(pc)

    def step(self, number: int) -> int:
        """Run one instruction of a thread, or its trap; return its address, which a hit may have moved."""
        self.steps += 1
        state = self.machine.threads[number]
        pc = state[self.cpu.pc]
        for point in list(self.stops.points.get(pc, ())):
            registers = dict(zip(self.cpu.isa.registers, state, strict=True))
            hit = Hit(pc, number, registers, self.machine.read, write=_set_nothing)
            move = point.on_hit(hit)
            if move is not None:
                for at, data in move.writes:
                    self.machine.write(at, data)
                state = tuple((registers | dict(move.registers)).values())
                pc = state[self.cpu.pc]
        traps = self.traps is not None and self.machine.read(pc, 1) == self.traps.trap
        self.machine.threads[number] = self._trap(number, state) if traps else self.machine.run_one(state)
        return pc

    def run_to(self, number: int, address: int, most: int = 4000) -> Mapping[str, int]:
        """Run a thread until it comes to `address`, at least one instruction; return its registers."""
        for _ in range(most):
            self.step(number)
            if not any(self.stops.points.values()) and self.machine.threads[number][self.cpu.pc] != address:
                self.machine.threads[number] = self.machine.run_until_at(self.machine.threads[number], address, most)
            if self.machine.threads[number][self.cpu.pc] == address:
                return dict(zip(self.cpu.isa.registers, self.machine.threads[number], strict=True))
        raise AssertionError(f"thread {number} does not come to {address:#x}")

    def _trap(self, number: int, state: tuple[int, ...]) -> tuple[int, ...]:
        """Return the registers with which a thread continues after a trap, as x86-64's entry code has them."""
        assert self.traps is not None
        values = dict(zip(X86_64.registers, state, strict=True))
        (call,) = self.traps.calls
        frame = (state[SP] - 0x200) & -16
        kernel_mode = 0x10, 0x18
        words = [values[name] for name in FRAME]
        words += [0, values["rip"], kernel_mode[0], values["eflags"], values["rsp"], kernel_mode[1]]
        self.machine.memory[frame - START : frame - START + 8 * len(words)] = array("Q", words).tobytes()
        inside = dict.fromkeys(X86_64.registers, 0x5555) | {
            "rdi": frame, "rsp": frame - 0x40, "rip": call.address, "eflags": 2
        }  # fmt: skip
        registers = tuple(inside.values())
        while registers[PC] != call.end:
            registers = self.machine.run_one(registers)
        found = array("Q", self.machine.read(frame, 8 * len(words)))
        after = values | dict(zip(FRAME, found, strict=False))
        after |= {"rip": found[16], "eflags": found[18], "rsp": found[19]}
        return tuple(after.values())


def fail_at_write(number: int, write: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
    """Return `write`, of which the call with this number, from 0, fails instead."""
    calls = count()

    def written(address: int, data: bytes) -> None:
        if next(calls) == number:
            raise OptprobeError("the connection does not answer")
        write(address, data)

    return written


@dataclass(frozen=True)
class FakeDebugger:
    """See probes.target.Debugger."""

    guest: FakeGuest

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        if location.startswith("*") and (not glob or location.startswith("*0x")):
            return (int(location[1:].removeprefix("_stext+"), 0) + START * location.startswith("*_stext+"),)
        module = self.guest.module
        if module is not None and (found := module.find(location)):
            return tuple(found)
        bodies = [body for body in self.guest.bodies if module is None or body is not module.body]
        found = [body.address for body in bodies if (fnmatch(body.name, location) if glob else body.name == location)]
        if not found:
            raise OptprobeError(f"no function named {location}")
        return tuple(found)

    def breakpoints(self) -> frozenset[int]:
        return self.guest.breakpoints

    def callers(self, hit: Hit) -> Sequence[Caller]:
        return ()

    def run(self, seconds: float | None, until: Command | None = None, ticks: Ticks | None = None) -> None:
        """The time is up at once, after one tick."""
        if ticks is not None:
            ticks.act()

    def live_memory(self, spans: Sequence[tuple[int, int]]) -> tuple[LiveMemory | None, str]:
        return None, "a fake guest has no process"

    def begin(self, command: str) -> Command:
        raise OptprobeError("a fake guest runs no commands")

    def guard(self) -> None:
        """Nothing dies here but by `FakeGuest.after`."""

    def is_same_guest(self) -> bool:
        return not self.guest.forgotten

    def forget(self) -> None:
        self.guest.forgotten = True


def trap_calls(call: Body, handler: Body) -> TrapCalls:
    """Return where a guest's traps are handled: `call` begins with the call of `handler`."""
    (insn, *_) = X86_64.decode(call.data, call.address)
    assert insn.target == handler.address
    ways_in = ((call.address, insn.end),)
    entry = Entry(handler.address)
    return TrapCalls(handler.address, (insn,), entry, ways_in, trap=X86_64.trap, trapping=TRAPPING)


LOOP, PLAIN, TRACED, SHORT, MEETING, TRAP, HANDLER = (START + 0x1000 * number for number in range(7))
"""Functions of `program`."""


def program() -> FakeGuest:
    """Return a guest of which the threads call functions of all sorts again and again.

    PLAIN has instructions of 1 to 7 bytes, each of which changes what the next ones make of it. TRACED has a tracer's
    site, so its callers rely on what the ABI gives them alone. SHORT has no room for a branch. At MEETING is an
    instruction that no test probes.
    """
    loop = b""
    for part in (PLAIN, PUSH_RCX, TRACED, POP_RCX, SHORT, MEETING):
        loop += part if isinstance(part, bytes) else _call(LOOP + len(loop), part)
    bodies = (
        Body("loop", LOOP, loop + bytes((0xEB, 256 - len(loop) - 2))),
        Body("plain", PLAIN, code(PLAIN_LISTING)),
        Body("traced", TRACED, code(TRACED_LISTING), tracer=0),
        Body("short", SHORT, code(SHORT_LISTING)),
        Body("crowding", SHORT + 4, code("c3  ret")),
        Body("meeting", MEETING, code("90  nop\nc3  ret")),
        Body("asm_exc", TRAP, _call(TRAP, HANDLER) + code("f4  hlt"), entry=True),
        Body("exc", HANDLER, code("0f 1f 44 00 00  nopl\nf4  hlt"), entry=True),
    )
    guest = FakeGuest(bodies, traps=trap_calls(bodies[-2], bodies[-1]))
    guest.start_threads(LOOP)
    return guest


def _call(at: int, to: int) -> bytes:
    return b"\xe8" + (to - at - 5).to_bytes(4, "little", signed=True)


PUSH_RCX, POP_RCX = b"\x51", b"\x59"
PLAIN_LISTING = """
    50                      push %rax
    48 01 c8                add %rcx,%rax
    48 8d 44 40 07          lea 7(%rax,%rax,2),%rax
    59                      pop %rcx
    48 ff c1                inc %rcx
    a8 01                   test $1,%al
    74 0a                   je L
    48 01 c1                add %rax,%rcx
    48 81 f1 55 aa 00 00    xor $0xaa55,%rcx
    f8                      clc (L)
    51                      push %rcx
    48 11 c8                adc %rcx,%rax
    5a                      pop %rdx
    48 01 d0                add %rdx,%rax
    c3                      ret
"""
TRACED_LISTING = """
    0f 1f 44 00 00          nopl (the site)
    48 01 c8                add %rcx,%rax
    48 8d 44 40 07          lea 7(%rax,%rax,2),%rax
    c3                      ret
"""
SHORT_LISTING = """
    48 ff c0                inc %rax
    c3                      ret
"""
