"""A function that threads run on a real decoder of x86, and a user who probes it.

    threads ──step──► text, branches, detours (Unicorn)      each instruction that is executed, wherever its copy
    a user ──add, delete, disable, enable──► Session           stands, is told to the oracle, which counts by hand
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.guest.saved import Saved
from gdb_optprobe.guest.text import Area, FtraceSite
from gdb_optprobe.handlers.ctype import UNSIGNED_LONG, CType
from gdb_optprobe.handlers.program import Expr, Frame, Register
from gdb_optprobe.handlers.scope import Meaning, Missing, Value
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.names import NamesAt
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import Hit, Landing, OnHit
from gdb_optprobe.probes.target import Target
from tests.detours import fakes

# Sizes of 1 to 7 bytes; every instruction changes what the next ones make of it; flags live across some, not others.
LISTING = """
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
    eb da                   jmp START
"""
START = 0x1000_0000  # Unicorn without page tables has no upper half
SIZE = 0x50000
CODE, DATA, STACKS = START + 0x10000, START + 0x20000, START + 0x30000
NAMES = ("rax", "rcx", "rdx", "rsp", "rip", "eflags")
REGISTERS = tuple(getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in NAMES)


@dataclass
class Point:
    stops: dict[int, list[Point]]
    address: int
    on_hit: OnHit
    stepped: int = 0
    moved: int = 0

    def remove(self) -> None:
        self.stops[self.address].remove(self)


def _nobody(values: Mapping[str, int]) -> None:
    raise AssertionError(f"nothing here sets registers: {values}")


@dataclass
class Guest:
    """Memory that is executed by several threads; the stop points of a debugger that never skips one."""

    original: bytes
    uc: unicorn.Uc = field(init=False)
    threads: list[tuple[int, ...]] = field(default_factory=list)
    stops: dict[int, list[Point]] = field(default_factory=dict)
    executed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uc = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        self.uc.mem_map(START, SIZE)
        self.uc.mem_write(START, self.original)
        self.uc.mem_write(CODE, b"\xcc" * (DATA - CODE))
        self.uc.hook_add(unicorn.UC_HOOK_CODE, lambda _, at, size, data: self.executed.append(at))

    # Machine
    def read(self, address: int, size: int) -> bytes:
        return bytes(self.uc.mem_read(address, size))

    def write(self, address: int, data: bytes) -> None:
        self.uc.mem_write(address, data)
        self.uc.ctl_flush_tb()

    def vcpus(self) -> tuple[Vcpu, ...]:
        return ()

    def saved(self) -> Iterable[Saved]:
        return [Saved(f"thread {n}", 0, array("Q", [t[4]])) for n, t in enumerate(self.threads)]

    # Stops
    def set(self, address: int, on_hit: OnHit, restarts: bool = False) -> Point:
        point = Point(self.stops, address, on_hit)
        self.stops.setdefault(address, []).append(point)
        return point

    def arrived(self, address: int) -> None:
        """Nobody stands on a stop point with its hit not run: the next step runs it."""

    def take_back(self, address: int) -> int:
        return 0

    def land(self, landing: Landing) -> Point:
        raise AssertionError("no program stops")

    def on_resume(self, behind: Callable[[int], int | None], moved: Callable[[], None]) -> None:
        """No program stops."""

    # Tracer
    def hold(self, site: FtraceSite) -> None:
        raise AssertionError("there is no site")

    release = hold

    def start_thread(self) -> None:
        self.threads.append((1, 2, 3, STACKS + 0x1000 * len(self.threads) + 0x800, START, 2))

    def step(self, number: int) -> int:
        """One instruction of a thread; its address, which was that of a copy, of a branch or of a program perhaps."""
        state = self.threads[number]
        pc = state[4]
        for point in list(self.stops.get(pc, ())):
            registers = dict.fromkeys(X86_64.registers, 0) | dict(zip(NAMES, state, strict=True))
            hit = Hit(pc, number, registers, self.read, write=_nobody)
            move = point.on_hit(hit)
            if move is not None:
                pc = move.registers[X86_64.pc]
        for register, value in zip(REGISTERS, state, strict=True):
            self.uc.reg_write(register, value)
        self.executed.clear()
        self.uc.emu_start(pc, 0, count=1)
        self.threads[number] = tuple(self.uc.reg_read(register) for register in REGISTERS)
        return pc


class Registers:
    """`Scope` of a machine where only registers have names."""

    def is_type(self, name: str) -> bool:
        return False

    def type(self, keyword: str, name: str) -> CType | Missing:
        return Missing(f"no type {name}")

    def name(self, name: str) -> Meaning | Missing:
        return Missing(f"no name {name}")

    def dollar(self, name: str) -> Meaning | Missing:
        return Value(Register(name), UNSIGNED_LONG) if name in X86_64.registers else Missing(f"no register {name}")

    def per_cpu_base(self) -> Expr | Missing:
        return Missing("no CPUs")

    def frame(self) -> Frame | Missing:
        return Missing("no stacks")

    def is_mapped(self, address: int, size: int) -> bool:
        return False


class World:
    """names: what names mean, where not only registers do."""

    def __init__(self, names: NamesAt | None = None) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fakes, "START", START)
            self.text = fakes.FakeText(LISTING)
        self.text.area = lambda _: Area.TEXT  # type: ignore[method-assign]
        known = self.text.known
        self.text.function = lambda at: known if START <= at < known.end else None  # type: ignore[method-assign]
        self.text.spell = lambda at: f"{at:#x}"  # type: ignore[method-assign]
        self.insns = {insn.address: insn for insn in X86_64.decode(self.text.data, START)}
        self.addresses = sorted(self.insns)
        self.guest = Guest(self.text.data)
        self.alone = Guest(self.text.data)
        for guest in (self.guest, self.alone):
            for _ in range(2):
                guest.start_thread()
        self.arena = Arena(Ranges(((CODE, DATA),), ((DATA, DATA + 0x1000),), 0xCC))
        target = Target(
            machine=self.guest,  # type: ignore[arg-type]
            isa=X86_64,
            text=self.text,
            stops=self.guest,
            tracer=self.guest,
            new_arena=lambda: self.arena,
            take_arena=lambda: None,
            give_back_arena=lambda: None,
            saved=self.guest.saved,
            stacks_missing="",
            symbol=lambda _: "",
            completions=lambda _: (),
            resolve=lambda location, _: (int(location[1:], 0),),
            breakpoints=frozenset,
            alive=lambda: None,
            scope=lambda _: names or NamesAt(Registers()),
        )
        self.session = Session(target, lambda: Settings(emulation=False), lambda _: None)
        self.detours: dict[Detour, frozenset[int]] = {}
        self.expected: dict[int, int] = {}

    def command(self, what: str, where: int) -> None:
        probes = self.session.registry.probes()
        if what in ("add", "boost"):
            spec = Spec(f"*{self.addresses[where % len(self.addresses)]:#x}", tier="boosted" if what == "boost" else "")
            (view,) = self.session.add(spec)
            self.expected[view.number] = 0
        elif probes:
            number = probes[where % len(probes)].number
            getattr(self.session, what)([number])
        self.session.optimizer.retry()
        self._remember()
        assert self.session.check() == ()

    def _remember(self) -> None:
        for site in self.session.registry.sites():
            new = site.detour
            if new is None or site.placed is None:
                continue
            for old in [old for old in self.detours if old.address < new.end and new.address < old.end]:
                del self.detours[old]
            self.detours[new] = frozenset(insn.address for insn in site.placed.displaced)

    def original(self, pc: int) -> int | None:
        """The instruction whose copy, or itself, stands at `pc`."""
        if pc in self.insns:
            heads = (branch.patch.address for branch in self.session.registry.branches())
            return None if pc in heads else pc
        for detour, copied in self.detours.items():
            if detour.address <= pc < detour.end:
                ends = {original: end for _, end, original in detour.programs}
                return {ends.get(old, at): old for at, old in detour.origins if old in copied}.get(pc)
        raise AssertionError(f"a thread is lost at {pc:#x}")

    def run(self, number: int, steps: int) -> None:
        for _ in range(steps):
            original = self.original(self.guest.threads[number][4])
            self.guest.step(number)
            if original is None:
                continue
            for probe in self.session.registry.probes():
                self.expected[probe.number] += probe.enabled and probe.address == original
            self.alone.step(number)
            assert self.alone.threads[number] is not None
            here, there = self.guest.threads[number], self.alone.threads[number]
            assert here[3] == there[3] and here[:2] == there[:2], "the threads compute something else"

    def leave_detours(self) -> None:
        for number in range(len(self.guest.threads)):
            while self.guest.threads[number][4] not in self.insns:
                self.run(number, 1)

    def end(self) -> None:
        self.session.delete()
        assert self.guest.read(START, len(self.text.data)) == self.text.data
        for number in range(len(self.guest.threads)):
            self.run(number, 60)
        self.session.commit(0)
        assert set(self.guest.read(CODE, DATA - CODE)) == {0xCC}
