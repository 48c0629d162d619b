"""Run the code of programs for aarch64 in Unicorn, and compare all that each leaves with the interpreter.

0xffff800008001000 CODE     code, and behind it whatever was there
                 + 0x10000  in place of what reads memory that may not be there: of POINTED's page alone
0xffff000001230000 DATA     what POINTERS point into                 kept
                 + 0x1000   per-CPU data, from TPIDR_EL1 on          kept
0xffff800000107000 STACK    the stack pointer in its middle          kept from there on
0xffff80000a000000 FAULTS   faults and objects                       as the interpreter says
Programs are those of programs.py, with other names and addresses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import unicorn
from unicorn import arm64_const

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import MASK, Program
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.aarch64 import AARCH64, abi, encodings
from gdb_optprobe.isa.aarch64.codegen import BACKEND, BACKEND_LSE
from gdb_optprobe.isa.aarch64.encodings import Item, branch_if, constant, jump, number, plain, scaled
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Code, Dead, with_pool, words_of
from gdb_optprobe.isa.codegen import Comparison, Label, ProbeReadRoutines

from . import running
from .running import PAGE

CODE, DATA, STACK, FAULTS = 0xFFFF_8000_0800_1000, 0xFFFF_0000_0123_0000, 0xFFFF_8000_0010_7000, 0xFFFF_8000_0A00_0000
ROUTINE, PAD = CODE + 0x1_0000, CODE + 0x1_F000
POINTED, PER_CPU = DATA, DATA + PAGE
FRAME = range(STACK - PAGE, STACK)
LIMIT = 100_000
REGISTERS = {name: getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in (*abi.GENERAL, abi.SP)}
REGISTERS |= {abi.FLAGS: arm64_const.UC_ARM64_REG_NZCV}
SP_EL0, TPIDR_EL1 = (3, 0, 4, 1, 0), (3, 0, 13, 0, 4)
TASK = 0xFFFF_0000_0400_8000
_USABLE = [name for name in abi.GENERAL if name not in abi.RESERVED]
_CAN_BE_DEAD = _USABLE
_SIZES = {CODE: 32 * PAGE, DATA: 2 * PAGE, STACK - PAGE: 2 * PAGE, FAULTS: 33 * PAGE}
EDGES = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 63, MASK)


@dataclass
class Processor:
    """One vCPU at EL1. memory: by address, what is where; all pages are there, and no others."""

    memory: Mapping[int, int]
    executed: int = 0
    _frames: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uc: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.uc.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX)
        self.uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        physical = PAGE
        for at, size in self.memory.items():
            self._frames |= {at + page: physical + page for page in range(0, size, PAGE)}
            physical += size
        self.uc.mem_map(0, physical)
        self.uc.hook_add(unicorn.UC_HOOK_TLB_FILL, self._fill)

    def _fill(self, _: object, address: int, access: int, entry: Any, __: object) -> bool:
        if address & -PAGE not in self._frames:
            return False
        # Pages of the emulator are of 1 KiB.
        entry.paddr = self._frames[address & -PAGE] + (address % PAGE & -1024)
        entry.perms = unicorn.UC_PROT_ALL
        return True

    def set_system(self, register: tuple[int, ...], value: int) -> None:
        """Set a register of the system, by crn, crm, op0, op1, op2 as Unicorn has them."""
        op0, op1, crn, crm, op2 = register
        self.uc.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (crn, crm, op0, op1, op2, value))

    def write(self, at: int, data: bytes) -> None:
        self.uc.mem_write(self._frames[at & -PAGE] + at % PAGE, data)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.uc.mem_read(self._frames[at & -PAGE] + at % PAGE, size))

    def set_registers(self, values: Mapping[str, int]) -> None:
        self.uc.reg_write_batch([(REGISTERS[name], value) for name, value in values.items() if name in REGISTERS])

    def registers(self) -> dict[str, int]:
        return dict(zip(REGISTERS, self.uc.reg_read_batch([*REGISTERS.values()]), strict=True))

    @property
    def pc(self) -> int:
        return int(self.uc.reg_read(arm64_const.UC_ARM64_REG_PC))


@cache
def processor() -> Processor:
    made = Processor(_SIZES)
    made.write(ROUTINE, encodings.encode_items([*read_routine()], ROUTINE))
    return made


@cache
def pristine(at: int) -> bytes:
    """What is in memory before a program, beside its objects."""
    return random.Random(at).randbytes(_SIZES[at])


@dataclass(frozen=True)
class Trial:
    """A program of programs.py, and all else by chance."""

    original: Program
    seed: int

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Of x86-64's registers."""
        usable = random.Random(self.seed).sample(_USABLE, len(_USABLE))
        pointers = dict(zip(running.POINTERS, usable, strict=False))
        others = [*usable[len(pointers) :][:8], "x17", "x18", "x29", "x30", "SP_EL0", abi.PC, abi.SP]
        chosen = random.Random(self.seed + 1).sample(others, len(running.NUMBERS))
        return pointers | dict(zip(running.NUMBERS, chosen, strict=True)) | {running.SP: abi.SP}

    @cached_property
    def per_cpu(self) -> int:
        """Where per-CPU data are, as programs have it."""
        return random.Random(self.seed).choice((running.PER_CPU, 0x12_3456, 0xFFFF_8000_0923_4568, 0x40))

    @cached_property
    def program(self) -> Program:
        return running.translated(self.original, self.names, POINTED, self.per_cpu)

    @cached_property
    def around(self) -> LoweringContext:
        rng = random.Random(self.seed + 2)
        density = rng.choice((0, 0.1, 0.5, 1))
        registers = frozenset(name for name in _CAN_BE_DEAD if rng.random() < density)
        dead = rng.choice((Dead(rng.random() < 0.5, registers), Dead(True, abi.CLOBBERED_BY_TRACER)))
        around = running.surroundings(self.program, dead, FAULTS)
        return replace(around, address=CODE, per_cpu=1, pad=PAD, readers=ProbeReadRoutines(ROUTINE, ROUTINE))

    @cached_property
    def lowered(self) -> Code:
        return lower(self.program, self.around, BACKEND_LSE if self.seed % 2 else BACKEND)

    @property
    def words(self) -> tuple[int, ...]:
        """What the program reads from a pool; nothing in half of the trials, which have none."""
        return words_of([self.lowered]) if self.seed // 2 % 2 else ()

    @cached_property
    def code(self) -> bytes:
        if not self.words:
            return self.lowered(CODE)
        assert AARCH64.pools is not None
        size = len(with_pool([self.lowered], CODE)[0](CODE))
        return with_pool([self.lowered], AARCH64.pools.at(CODE + size))[0](CODE)

    @property
    def is_lowered(self) -> bool:
        """Whether there is native code for it."""
        return True

    @cached_property
    def registers(self) -> Mapping[str, int]:
        rng = random.Random(self.seed + 3)
        found = {name: _number(rng) for name in abi.GENERAL}
        found |= {abi.FLAGS: rng.getrandbits(4) << 28, abi.PC: CODE, abi.SP: STACK, "SP_EL0": TASK}
        return found | {self.names[name]: POINTED + 16 * index for index, name in enumerate(running.POINTERS)}

    @property
    def base(self) -> int:
        """What is added to per-CPU addresses."""
        return PER_CPU - self.per_cpu & MASK

    @cached_property
    def memory(self) -> Mapping[int, bytes]:
        """Before the program, but for code."""
        found = {at: bytearray(pristine(at)) for at in (DATA, STACK - PAGE)}
        found[FAULTS] = bytearray(_SIZES[FAULTS])
        for at, data in self.objects.items():
            found[FAULTS][at - FAULTS : at - FAULTS + len(data)] = data
        return {at: bytes(data) for at, data in found.items()}

    @property
    def objects(self) -> Mapping[int, bytes]:
        return running.objects(self.program, FAULTS)

    def differences(self) -> Iterator[str]:
        """What is not as the interpreter says, or not as it was."""
        machine = processor()
        machine.uc.ctl_flush_tb()
        machine.write(CODE, self.code)
        end = CODE + len(self.code)
        assert AARCH64.pools is not None
        machine.write(end, AARCH64.pools.behind(end, self.words))
        for at, data in self.memory.items():
            machine.write(at, data)
        machine.set_registers(self.registers)
        machine.set_system(TPIDR_EL1, self.base)
        machine.set_system(SP_EL0, TASK)
        assert end + 16 + 8 * len(self.words) < ROUTINE
        # Unicorn ends at one address alone.
        machine.write(PAD, encodings.encode_items([encodings.FarBranch(end)], PAD))
        stops = [False]
        hook = machine.uc.hook_add(unicorn.UC_HOOK_CODE, lambda *_: stops.__setitem__(0, True), begin=PAD, end=PAD + 3)
        try:
            if self.code:
                machine.uc.emu_start(CODE, end, count=LIMIT)
        except unicorn.UcError as error:
            yield f"{error} at {machine.pc:#x}"
            return
        finally:
            machine.uc.hook_del(hook)
        yield from self._compared(machine, stops[0])

    def _compared(self, machine: Processor, stops: bool) -> Iterator[str]:
        if self.code and machine.pc != CODE + len(self.code):
            yield f"it ended at {machine.pc:#x}"
        dead = self.around.dead if self.program.stop is None else Dead()
        left = machine.registers()
        for name, now in left.items():
            lost = dead.flags if name == abi.FLAGS else name in dead.registers
            if not lost and now != self.registers[name]:
                yield f"{name}: {now:#x} for {self.registers[name]:#x}"
        after = {at: machine.read(at, len(data)) for at, data in self.memory.items()}
        kept = {DATA: 0, STACK - PAGE: PAGE}
        for at, start in kept.items():
            if after[at][start:] != self.memory[at][start:]:
                yield f"memory at {at:#x} changed"

        def read(address: int, size: int) -> bytes:
            return running.read(self.memory, address, size)

        def peeked(address: int, size: int) -> bytes:
            if not POINTED <= address <= POINTED + PAGE - size:
                raise Unreadable(address, size)
            return read(address, size)

        found = running.Left(left, after, 0, {}, stops)
        clock = running.clock_of(self.program, found, FAULTS)
        hit = interpreter.Hit(self.registers, read, self.base, clock, probe_read=peeked)
        yield from self.wrong_results(found, hit)

    def wrong_results(self, left: running.Left, hit: interpreter.Hit) -> Iterator[str]:
        """What objects have that is not as the interpreter says."""
        yield from running.wrong_objects(self.program, left, interpreter.run(self.program, hit), FAULTS)


def differences(trials: Sequence[Trial]) -> Iterator[tuple[Trial, str]]:
    """The trials where the code did anything else, and what."""
    for trial in trials:
        if found := "; ".join(trial.differences()):
            yield trial, found


def read_routine() -> Iterator[Item]:
    """The routine of isa/aarch64/probe_read.py, of the page at POINTED; what is lost is lost."""
    some, fault, out = Label(), Label(), Label()
    yield from constant("x12", POINTED)
    yield from (plain("sub", "x12", "x16", "x12"), *constant("x13", PAGE), plain("subs", "xzr", "x12", "x13"))
    yield branch_if(Comparison.GE, fault)
    yield from (plain("sub", "x14", "x13", "x12"), number("subsi", "xzr", "x14", 8))
    yield from (branch_if(Comparison.LT, some), scaled("ldr", "x16", "x16", 0, 8), *constant("x15", 8), jump(out))
    yield some
    yield from constant("x12", POINTED + PAGE - 8)
    yield from (scaled("ldr", "x16", "x12", 0, 8), *constant("x13", 64), plain("orr", "x15", "xzr", "x14"))
    yield from (encodings.shifted("sub", "x13", "x13", "x14", 3), plain("lsr", "x16", "x16", "x13"))
    yield from (encodings.shifted("sub", "x13", "xzr", "x13", 0), *constant("x12", MASK))
    yield from (plain("lsl", "x12", "x12", "x13"), plain("orr", "x16", "x16", "x12"), jump(out))
    yield fault
    yield from (*constant("x16", MASK), *constant("x15", 0))
    yield out
    yield from (word for name in ("x12", "x13", "x14") for word in constant(name, 0x123))
    yield from (number("subsi", "xzr", "x12", 0x123), plain("ret", n="x30"))
    assert to_bytes(plain("ret", n="x30")) == bytes.fromhex("c0035fd6")


def _number(rng: random.Random) -> int:
    edge = rng.choice(EDGES)
    return rng.choice((edge, -edge & MASK, rng.getrandbits(64), rng.getrandbits(6)))
