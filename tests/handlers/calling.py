"""Entries and trampolines in Unicorn: calls of many stacks, interrupted anywhere by calls deeper on the same stack."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import unicorn
from unicorn import arm64_const, ppc_const, x86_const

from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.lower_kernel_returns import (
    PadExit,
    PlacedCallTable,
    ProbedFunction,
    Trampoline,
    lower_debugger_check,
    lower_entry,
    lower_trampoline,
)
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE
from gdb_optprobe.isa.aarch64 import abi as arm
from gdb_optprobe.isa.aarch64.return_codegen import RETURN_BACKEND as A64
from gdb_optprobe.isa.aarch64.return_codegen import RETURN_BACKEND_LSE as A64_LSE
from gdb_optprobe.isa.base import Code, Dead, joined
from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le import abi as power
from gdb_optprobe.isa.ppc64le.return_codegen import RETURN_BACKEND as POWER
from gdb_optprobe.isa.record import Isa, counting, with_own_pool
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.return_codegen import RETURN_BACKEND as X86
from gdb_optprobe.maps.call_table import CallTable, CallTableLayout

PAGE = 4096
MOST = 3_000_000  # instructions
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Side:
    """An instruction set as Unicorn has it, and where things are. Code is at `code`, of one page.

    numbers: of the registers that callers rely on, by name. link: with the return address, where that is no memory.
    place:   where a call's return address is kept, from its stack pointer. popped: bytes, by the return.
    below:   bytes below the stack pointer that calls of an interrupt leave alone. frame: the smallest.
    random:  bits of the flags that may be anything; zero: those of CR0.
    others:  two registers that a caller does not rely on. reads_flags: whether programs do.
    page:    bytes of a page, in the emulator's TLB.
    """

    name: str
    isa: Isa
    returning: ReturnBackend
    engine: tuple[int, int]
    numbers: Mapping[str, int] = field(repr=False)
    code: int
    stacks: int
    callers: int
    tables: tuple[int, ...]
    place: int
    popped: int
    below: int
    frame: int
    random: int
    zero: int
    link: int | None = None
    pc: int = 0
    base: int | None = None
    others: tuple[str, str] = ("rsi", "rdx")
    reads_flags: bool = True
    page: int = PAGE

    @property
    def entry(self) -> int:
        return self.code + self.isa.alignment

    @property
    def left(self) -> int:
        return self.code + 0xC00

    @property
    def trampoline(self) -> int:
        return self.left + 4

    @property
    def pad(self) -> int:
        return self.left - 0x10

    @property
    def hooks(self) -> tuple[int, int]:
        """Where the guest's own tracers have calls return to."""
        return self.callers, self.callers + 4

    @property
    def counter(self) -> int:
        return self.tables[0] & -PAGE | 0x1_F000

    def lost(self, dead: Dead) -> dict[str, int]:
        """By register, the bits that need not be what they were."""
        fields = {number for number, name in enumerate(power.CR_FIELDS) if name in dead.registers}
        flags = self.zero if dead.flags else 0
        flags |= abi.CF if "carry" in dead.registers else sum(0xF << 28 - 4 * number for number in fields)
        return {**dict.fromkeys(dead.registers, MASK), self.isa.flags: flags}


INTEL = Side(
    "x86_64",
    X86_64,
    X86,
    (unicorn.UC_ARCH_X86, unicorn.UC_MODE_64),
    {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*abi.GENERAL, abi.FLAGS)},
    code=0xFFFF_FFFF_9BA3_D000,
    stacks=0xFFFF_C900_0010_0000,
    callers=0xFFFF_FFFF_8100_0000,
    tables=(0xFFFF_FFFF_7FE0_0018, 0xFFFF_FFFF_9200_0000),
    place=0,
    popped=8,
    below=5 * 8,
    frame=8,
    random=abi.ARITHMETIC_FLAGS,
    zero=abi.COUNTER_FLAGS,
    pc=x86_const.UC_X86_REG_RIP,
)
IBM = Side(
    "ppc64le",
    PPC64LE,
    POWER,
    (unicorn.UC_ARCH_PPC, unicorn.UC_MODE_PPC64 | unicorn.UC_MODE_BIG_ENDIAN),
    {
        **{name: getattr(ppc_const, f"UC_PPC_REG_{number}") for number, name in enumerate(power.GENERAL)},
        power.FLAGS: ppc_const.UC_PPC_REG_CR, power.CTR: ppc_const.UC_PPC_REG_CTR,
        power.XER: ppc_const.UC_PPC_REG_XER,
    },
    code=0xC000_0000_01A3_D000,
    stacks=0xC000_0000_0710_0000,
    callers=0xC000_0000_0010_0000,
    tables=(0xC000_0000_0200_0018, 0xC000_0000_0300_0000),
    place=power.LR_SAVE,
    popped=0,
    below=power.RED_ZONE,
    frame=power.HEADER,
    random=0xFFFF_FFFF,
    zero=0xF000_0000,
    link=ppc_const.UC_PPC_REG_LR,
    pc=ppc_const.UC_PPC_REG_PC,
    others=("r4", "r5"),
)
ARM = Side(
    "aarch64",
    AARCH64,
    A64,
    (unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM),
    {
        **{name: getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in arm.GENERAL if name != arm.LR},
        arm.SP: arm64_const.UC_ARM64_REG_SP, arm.FLAGS: arm64_const.UC_ARM64_REG_NZCV,
    },
    code=0xFFFF_8000_09A3_D000,
    stacks=0xFFFF_8000_0710_0000,
    callers=0xFFFF_8000_0800_0000,
    tables=(0xFFFF_8000_0A00_0FE8, 0xFFFF_8000_0B00_1FE8),
    place=8,
    popped=0,
    below=0,
    frame=16,
    random=arm.NZCV,
    zero=arm.NZCV,
    link=arm64_const.UC_ARM64_REG_LR,
    pc=arm64_const.UC_ARM64_REG_PC,
    others=("x1", "x2"),
    reads_flags=False,
    page=1024,
)
_WITH_TOC = replace(IBM, name="ppc64le_toc", base=0xC000_0000_01FF_8000)
_WITH_ATOMICS = replace(ARM, name="aarch64_lse", isa=AARCH64_LSE, returning=A64_LSE)
SIDES = {side.name: side for side in (INTEL, IBM, _WITH_TOC, ARM, _WITH_ATOMICS)}
_LITTLE_ENDIAN = 1 << 63 | 1


@dataclass
class World:
    """One vCPU, and a function that is probed.

    traced:   it has a tracer's site. programs: at its return, with their objects behind the counter.
    parts:    at its entry.
    flags:    where in a slot each of these says that it leaves to a pad, and before that a debugger looks.
    at_pad:   the slot's register there, each time that somebody came. looked: the programs behind which one may have.
    executed: instructions. passed: their addresses, and the stack pointer before each, where asked for.
    """

    side: Side
    layout: CallTableLayout = field(default_factory=CallTableLayout)
    traced: bool = True
    seed: int = 0
    number: int = 0
    programs: tuple[Program, ...] = ()
    parts: tuple[EntryPart, ...] = ()
    flags: tuple[int, ...] = ()
    counted: bool = True
    executed: int = 0
    at_pad: list[int] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    passed: list[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        side = self.side
        self.layout = replace(self.layout, homing=side.returning.homing)
        self.chosen = random.Random(self.seed)
        self.dead = side.isa.dead_at_entry() if self.traced else Dead()
        self.dead_after = side.isa.dead_at_return() if self.traced else Dead()
        self.table = side.tables[self.number]
        self.machine: Any = unicorn.Uc(*side.engine)
        if side.engine == ARM.engine:
            self.machine.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX)
        self.machine.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        self._frames: dict[int, int] = {}
        self._looks: dict[int, int] = {}
        places = [(side.code, 1), (side.stacks, 64), (side.counter, 1), (self.table & -PAGE, 31)]
        for start, pages in places:
            first = 1 + len(self._frames)
            self._frames |= {start + PAGE * page: PAGE * (first + page) for page in range(pages)}
        self.machine.mem_map(0, (1 + len(self._frames)) * PAGE)
        self.machine.hook_add(unicorn.UC_HOOK_TLB_FILL, self._fill)
        self.machine.hook_add(unicorn.UC_HOOK_CODE, self._count)
        if side.engine == IBM.engine:
            self.machine.reg_write(ppc_const.UC_PPC_REG_MSR, _LITTLE_ENDIAN)
        code = self._entry(ProbedFunction(side.trampoline, (side.code, side.code + PAGE), hidden=side.hooks))
        assert self.end < side.pad
        self.write(side.pad, side.returning.end)
        self.write(side.entry, code)
        self.write(side.left, side.returning.end)
        self.write(side.trampoline, self._whole())
        self.write(self.table, self.layout.initial())

    def _entry(self, way: ProbedFunction) -> bytes:
        """Set where the code of an entry starts and ends; return what is at `side.entry`."""
        before = EntryState(self.dead, base=self.side.base)
        code = lower_entry(self._table, way, before, self.side.returning, self.parts)(self.side.entry)
        self.start, self.end = self.side.entry, self.side.entry + len(code)
        return code

    @property
    def _table(self) -> PlacedCallTable:
        return PlacedCallTable(self.layout, self.table)

    @cached_property
    def made(self) -> Trampoline:
        reads = {name for program in self.programs for name in program.registers}
        before = EntryState(self.dead_after, frozenset((*reads, self.side.isa.convention.result)), base=self.side.base)
        leaving = PadExit(self.flags, self.side.pad) if self.flags else None
        return lower_trampoline(self._table, before, self.side.returning, leaving, self.counted)

    def _whole(self) -> bytes:
        side, made = self.side, self.made
        around = LoweringContext(side.entry, dead=made.dead, base=side.base, kept=made.kept)
        codes: list[Code] = [counting(side.isa, side.counter, made.dead, side.base)]
        at = side.counter + 8
        for program in self.programs:
            objects = tuple(range(at, at + 8 * len(program.objects), 8))
            at += 8 * len(objects)
            codes.append(lower(program, replace(around, objects=objects), side.isa.codegen))
        before = EntryState(made.dead, base=side.base, kept=made.kept)
        for number, flag in enumerate(self.flags, 1):
            codes[number] = joined((codes[number], lower_debugger_check(before, side.returning, flag)))
        whole = with_own_pool(side.isa, made.code(codes))(side.trampoline)
        places = [*made.places(codes, side.trampoline)][1 : 1 + len(self.flags)]
        for number, (start, end) in enumerate(places):
            code = whole[start - side.trampoline : end - side.trampoline]
            self._looks[side.isa.decode(code, start)[-1].address] = number
        return whole

    def _count(self, _: object, address: int, *__: object) -> None:
        self.executed += 1
        if self.passed is not None:
            self.passed.append((address, int(self.machine.reg_read(self.side.numbers[self.side.isa.sp]))))
        assert self.executed < MOST, "it runs in circles"
        if address in self._looks:
            self.looked.append(self._looks[address])
        if address == self.side.pad:
            self.at_pad.append(int(self.machine.reg_read(self.side.numbers[self.side.returning.slot])))

    def _fill(self, _: object, address: int, access: int, entry: Any, __: object) -> bool:
        """Callers are not there: a return to one ends the run."""
        frame = self._frames.get(address & -PAGE)
        if frame is not None:
            entry.paddr, entry.perms = frame + (address % PAGE & -self.side.page), unicorn.UC_PROT_ALL
        return frame is not None

    def write(self, at: int, data: bytes) -> None:
        assert at % PAGE + len(data) <= PAGE or at == self.table
        self.machine.mem_write(self._frames[at & -PAGE] + at % PAGE, data)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.machine.mem_read(self._frames[at & -PAGE] + at % PAGE, size))

    def instances(self) -> CallTable:
        return self.layout.decode(self.read(self.table, self.layout.size))

    def word(self, at: int) -> int:
        return int.from_bytes(self.read(at, 8), "little")

    def count(self) -> int:
        """How often the program at the return ran."""
        return self.word(self.side.counter)

    def returns_to(self, sp: int) -> int:
        """Where the call with the stack pointer `sp` has its return address."""
        return self.word(sp + self.side.place)

    # what a context does -------------------------------------------------------------------------------------------

    def enter(
        self, sp: int, back: int, interrupted: bool = False, registers: Mapping[str, int] | None = None
    ) -> bool:
        """A call with the stack pointer `sp` that returns to `back`; whether it is seen. registers: its arguments."""
        side = self.side
        before = registers or self.registers(sp)
        self._set(before)
        self.write(sp + side.place, back.to_bytes(8, "little"))
        if side.link is not None:
            self.machine.reg_write(side.link, back)
        self._run(self.start, self.end, sp, interrupted)
        self._check(before, self.dead)
        if side.link is not None:
            self.write(sp + side.place, self.machine.reg_read(side.link).to_bytes(8, "little"))
        return self.returns_to(sp) == side.trampoline

    def leave(self, sp: int, interrupted: bool = False, registers: Mapping[str, int] | None = None) -> int:
        """The call returns; where to. registers: what it leaves."""
        side, target = self.side, self.returns_to(sp)
        before = registers or self.registers(sp)
        self._set(before)
        if side.link is not None:
            self.machine.reg_write(side.link, target)
        self._run(side.left, None, sp, interrupted)
        assert target == side.trampoline
        self._check({**before, side.isa.sp: sp + side.popped}, self.dead_after)
        return int(self.machine.reg_read(side.pc))

    def registers(self, sp: int) -> dict[str, int]:
        """At random."""
        side = self.side
        values = {name: self.chosen.getrandbits(64) for name in side.numbers} | {side.isa.sp: sp}
        values[side.isa.flags] = self.chosen.getrandbits(32) & side.random | 2 * (side is INTEL)
        values |= {"xer": self.chosen.choice((0, 0xE000_0000))} if "xer" in values else {}
        return values | ({"r2": side.base} if side.base is not None else {})

    def _set(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self.machine.reg_write(self.side.numbers[name], value)

    def _check(self, before: Mapping[str, int], dead: Dead) -> None:
        after = {name: int(self.machine.reg_read(number)) for name, number in self.side.numbers.items()}
        lost = self.side.lost(dead)
        changed = {name for name in before if (before[name] ^ after[name]) & ~lost.get(name, 0) & MASK}
        assert not changed, {name: (hex(before[name]), hex(after[name])) for name in changed}

    def _run(self, start: int, end: int | None, sp: int, interrupted: bool) -> None:
        side = self.side
        if not interrupted:
            self._go(start, end, 0)
            return
        self._go(start, end, self.chosen.randrange(1, 40))
        at = int(self.machine.reg_read(side.pc))
        if at != end and not side.callers <= at < side.callers + PAGE:
            context = self.machine.context_save()
            below = int(self.machine.reg_read(side.numbers[side.isa.sp])) - side.below
            self.call(below - side.frame * self.chosen.randrange(1, 6), depth=2)
            self.machine.context_restore(context)
            self._go(at, end, 0)

    def _go(self, start: int, end: int | None, count: int) -> None:
        side = self.side
        try:
            if count:  # code that was translated before would run on
                self.machine.ctl_flush_tb()
            self.machine.emu_start(start, side.code if end is None else end, count=count)
        except unicorn.UcError:
            at = int(self.machine.reg_read(side.pc))
            assert end is None and (count or side.callers <= at < side.callers + PAGE), hex(at)

    def call(self, sp: int, depth: int) -> None:
        """A whole call, and calls within it."""
        back = self.caller()
        seen = self.enter(sp, back)
        if depth:
            self.call(sp - self.side.frame * self.chosen.randrange(1, 6), depth - 1)
        if seen:
            assert self.leave(sp) == back
        else:
            assert self.returns_to(sp) == back

    def caller(self) -> int:
        """Somewhere to return to."""
        return self.side.callers + self.chosen.randrange(8, PAGE, 4)

    def stack(self) -> int:
        """A stack pointer where some thread may call."""
        return self.side.stacks + 0x2000 * self.chosen.randrange(1, 16) + 0x1E50
