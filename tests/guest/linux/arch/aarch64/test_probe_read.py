"""The routine that reads what may not be there, on Unicorn: it touches nothing that page tables do not map as RAM."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import unicorn
from unicorn import arm64_const

from gdb_optprobe.guest.linux.arch.aarch64 import probe_read
from gdb_optprobe.guest.linux.arch.aarch64.paging import ACCESSED, TABLE, USER, VALID, Regime
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import Linear
from gdb_optprobe.isa.aarch64 import abi
from gdb_optprobe.isa.aarch64 import probe_read as convention
from tests.guest.linux.arch.mapped import MASK, PAGE, Pages, contents, expected

SEEDS = int(os.environ.get("OPTPROBE_PROGRAMS", "300")) // 40
TABLES, RAM, HOLE = 0x100_0000, 0x4000_0000, 0x4_0000_0000
LINEAR, MODULES = 0xFFFF_0000_0000_0000, 0xFFFF_8000_0000_0000
CODE, STACK = 0xFFFF_8000_0900_0000, 0xFFFF_8000_0901_0000
CODE_AT, STACK_AT = 0x1000, 0x2000
TCR = 16 | 16 << 16 | 2 << 30 | 3 << 37 | 2 << 32  # 48 bits, 4 KiB, TBI, physical addresses of 40 bits
# By crn, crm, op0, op1, op2.
PAR, DAIF = (7, 4, 3, 0, 0), (4, 2, 3, 3, 1)
TTBR0, TTBR1, TCR_EL1, SCTLR = (2, 0, 3, 0, 0), (2, 0, 3, 0, 1), (2, 0, 3, 0, 2), (1, 0, 3, 0, 0)
SCR_EL3, HCR_EL2 = (1, 1, 3, 6, 0), (1, 1, 3, 4, 0)
GENERAL = [getattr(arm64_const, f"UC_ARM64_REG_X{number}") for number in range(31)]
CHANGED = (12, 13, 14, 15, 16, 30)
IRQ, FIQ = 1 << 7, 1 << 6


class Tables:
    """Page tables in physical memory, and in them a linear map: the first RAM is at its start."""

    def __init__(self, tcr: int = TCR) -> None:
        self.memory: dict[int, int] = {}
        self.end = TABLES
        self.roots = self._new(), self._new()
        regime, user = Regime.of(tcr), Regime.of_user(tcr)
        assert regime is not None and user is not None
        self.linear = Linear(LINEAR - RAM & MASK, regime, user)

    def _new(self) -> int:
        self.end += PAGE
        return self.end - PAGE

    def map(self, address: int, physical: int, shift: int, flags: int) -> None:
        """A page of 1 << shift bytes; nothing where a larger one is."""
        table, user = self.roots[address >> 63], self.linear.user
        for level, at in enumerate(user.shifts):
            place = table + 8 * (address >> at & user.entries(level) - 1)
            entry = self.memory.get(place, 0)
            if at <= shift:
                upper = (physical >> 50 & 3) << 8 if user.wide else 0
                lower = physical & -(1 << at) & (1 << 50) - 1
                self.memory[place] = lower | upper | flags | VALID | (TABLE if at == 12 else 0)
                return
            if entry and not entry & TABLE:
                return
            if not entry:
                entry = self.memory[place] = self._new() | TABLE | VALID
            table = entry & -PAGE

    def read_physical(self, address: int, size: int) -> bytes:
        if address < RAM:
            assert size == 8
            return self.memory.get(address, 0).to_bytes(8, "little")
        return contents(address & -PAGE)[address % PAGE : address % PAGE + size]

    def place(self, address: int) -> int | None:
        return probe_read.place(self.read_physical, self.roots, address, self.linear)


def tables(seed: int, tcr: int = TCR) -> tuple[Tables, list[int]]:
    """At random, and addresses that it maps."""
    chosen = random.Random(seed)
    made = Tables(tcr)
    frames = [RAM + PAGE * chosen.randrange(1 << 17) for _ in range(12)]
    frames += [frame + PAGE for frame in frames] + [HOLE, HOLE << 4, (1 << 40) - PAGE]
    mapped = [LINEAR - RAM + frame for frame in frames]
    for frame in frames:
        if chosen.random() < 0.8 and frame < HOLE:
            made.map(LINEAR - RAM + frame, frame, chosen.choice((12, 12, 21, 30)), ACCESSED)
    for _ in range(40):
        upper = chosen.random() < 0.5
        address = chosen.randrange(1 << (47 if upper else 48)) & -PAGE | (MODULES if upper else 0)
        flags = chosen.choice((ACCESSED, ACCESSED | USER, ACCESSED | USER, USER))
        shift = chosen.choice((12, 12, 21, 30))
        made.map(address, chosen.choice(frames), shift, flags)
        if chosen.random() < 0.7:
            made.map(address + PAGE, chosen.choice(frames), 12, flags)
        mapped += [address, address + PAGE]
    return made, mapped


def addresses(mapped: list[int], chosen: random.Random) -> Iterator[int]:
    """At the edges of pages, within them, with tags, and anywhere."""
    edges = (-9, -8, -7, -3, -1, 0, 1, 5, 100, PAGE - 8, PAGE - 7)
    for page in mapped:
        yield page + chosen.choice((*edges, chosen.randrange(PAGE))) & MASK
    for _ in range(10):
        yield chosen.getrandbits(64)
        yield chosen.choice(mapped) ^ 1 << chosen.randrange(64)
    yield from (0, 1, MASK, MASK - 3, 1 << 48, (1 << 48) - 3, 1 << 55, LINEAR - 3, MODULES - 3, 1 << 56)


class ArmPages(Pages):
    """Pages of the emulator are of 1 KiB."""

    def show(self, address: int, physical: int) -> None:
        """Show memory that is there at an address."""
        self._frames[address] = physical

    def _fill(self, _: object, address: int, access: int, entry: Any, __: object) -> bool:
        if address & -PAGE not in self._frames:
            return False
        entry.paddr = self._frames[address & -PAGE] + (address % PAGE & -1024)
        entry.perms = unicorn.UC_PROT_ALL
        return True


class Engine:
    """A processor with a guest's tables, and of RAM what its linear map shows."""

    def __init__(self, made: Tables) -> None:
        self.made, self.routine = made, probe_read.routine(made.linear)
        self.pages = ArmPages(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.uc = self.pages.uc
        self.pages.map(CODE, CODE_AT, self.routine.code.ljust(PAGE, b"\0"))
        self.pages.map(STACK - PAGE, STACK_AT, bytes(PAGE))
        self.uc.mem_map(TABLES, made.end - TABLES)
        for at, entry in made.memory.items():
            self.uc.mem_write(at, struct.pack("<Q", entry))
        self.set(SCR_EL3, 1 << 10 | 1)
        self.set(HCR_EL2, 1 << 31)
        for register, value in ((TTBR0, made.roots[0]), (TTBR1, made.roots[1]), (TCR_EL1, TCR), (SCTLR, 1)):
            self.set(register, value)

    def set(self, register: tuple[int, ...], value: int) -> None:
        self.uc.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (*register, value))

    def get(self, register: tuple[int, ...]) -> int:
        return int(self.uc.reg_read(arm64_const.UC_ARM64_REG_CP_REG, register))

    def run(
        self, address: int, size: int, registers: list[int], each: Callable[[int], None] = lambda at: None
    ) -> list[int]:
        """The general registers, and sp. Raises UcError where something is touched that is not mapped RAM."""
        self.pages.map_readable(self.made, address, LINEAR - RAM)
        registers[15], registers[16], registers[30] = size, address, CODE + PAGE - 4
        self.uc.reg_write_batch(list(zip(GENERAL, registers, strict=True)))
        self.uc.reg_write(arm64_const.UC_ARM64_REG_SP, STACK - 512)
        self.pages.executed, self.pages.each = 0, each
        self.uc.emu_start(CODE, CODE + PAGE - 4, count=200)
        return [*self.uc.reg_read_batch(GENERAL), self.uc.reg_read(arm64_const.UC_ARM64_REG_SP)]

    def caller(self, address: int) -> tuple[int, int, int]:
        """PC, stack pointer and x30 of who called the routine, as an unwinder finds them from within."""
        values = dict(zip(abi.GENERAL, self.uc.reg_read_batch(GENERAL), strict=True))
        registers = values | {abi.SP: self.uc.reg_read(arm64_const.UC_ARM64_REG_SP), abi.PC: address}
        while 0 <= (at := registers[abi.PC] - CODE) < len(self.routine.code):
            registers = dict(convention.caller(self.routine.code, at, registers, self._on_stack))
        return registers[abi.PC], registers[abi.SP], registers[abi.LR]

    def _on_stack(self, address: int, size: int) -> bytes:
        return bytes(self.uc.mem_read(STACK_AT + address - (STACK - PAGE), size))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_read_is_what_page_tables_say_and_nothing_else_is_touched(seed: int) -> None:
    made, mapped = tables(seed)
    engine, chosen = Engine(made), random.Random(seed)
    found = set()
    for address in addresses(mapped, chosen):
        size, daif = chosen.randint(1, 8), chosen.choice((0, IRQ, FIQ))
        before = [chosen.getrandbits(64) for _ in range(31)]
        engine.set(DAIF, daif)
        engine.set(PAR, 0x1234_5000)
        after = engine.run(address, size, before)
        word, got = expected(made, address, size)
        assert (min(after[15], size), after[16] & (1 << 8 * size) - 1) == (got, word), f"{address:#x}, {size}"
        assert all(after[n] == before[n] for n in range(31) if n not in CHANGED)
        assert (engine.get(DAIF), engine.get(PAR), after[31]) == (daif, 0x1234_5000, STACK - 512)
        found.add(0 if got == 0 else 1 if got < size else 2)
    assert found >= {0, 2}
    assert not engine.pages.changed(frozenset((CODE_AT, STACK_AT)))


@pytest.mark.parametrize("offset", [0x123, PAGE - 3, PAGE - 5])
def test_from_every_instruction_the_caller_is_found(offset: int) -> None:
    """In a page, in two of which the second is not there, and in two."""
    made = Tables()
    made.map(LINEAR, RAM, 21, ACCESSED)
    for page in (0, PAGE) if offset == PAGE - 5 else (0,):
        made.map(MODULES + page, RAM + 2 * page, 12, ACCESSED)
    engine = Engine(made)
    unwound: set[tuple[int, int, int]] = set()
    engine.run(MODULES + offset, 8, [77] * 31, lambda at: unwound.add(engine.caller(at)))
    assert unwound == {(CODE + PAGE - 4, STACK - 512, 77)}


@pytest.mark.parametrize(("address", "most"), [(LINEAR + 0x123, 20), (MODULES + 0x123, 40), (0x123, 40)])
def test_a_pointer_costs_few_instructions(address: int, most: int) -> None:
    """The kernel's own, to its linear map and elsewhere, and a program's."""
    made = Tables()
    made.map(LINEAR, RAM, 21, ACCESSED)
    for at in (MODULES, 0):
        made.map(at, RAM, 12, ACCESSED | USER)
    engine = Engine(made)
    assert engine.run(address, 4, [0] * 31)[15] == 8
    assert engine.pages.executed <= most


@pytest.mark.parametrize(
    ("bits", "inside", "outside"),
    [
        (48, (LINEAR, MODULES - 1), (LINEAR - 1, MODULES, MASK, 0)),
        (39, (-1 << 39, (-1 << 38) - 1), ((-1 << 39) - 1, -1 << 38)),
        (52, (-1 << 52, MODULES - 1), ((-1 << 52) - 1, MODULES)),
    ],
)
def test_the_linear_map_ends_where_modules_begin(bits: int, inside: tuple[int], outside: tuple[int]) -> None:
    kernels, programs = (Regime(12, bits, bits == 52, start & MASK) for start in (-1 << bits, 0))
    linear = Linear(0, kernels, programs)
    assert all(linear.has(address & MASK) for address in inside)
    assert not any(linear.has(address & MASK) for address in outside)
