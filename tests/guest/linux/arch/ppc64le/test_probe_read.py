"""The routine that reads what may not be there, on Unicorn: it touches nothing that page tables do not map as RAM."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator

import pytest
import unicorn
from unicorn import ppc_const

from gdb_optprobe.guest.linux.arch.ppc64le import probe_read, radix
from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import LINEAR_MAP, Linear
from gdb_optprobe.guest.linux.arch.ppc64le.reads import place
from gdb_optprobe.isa.ppc64le import probe_read as convention
from tests.guest.linux.arch.mapped import MASK, PAGE, Pages, contents, expected

SEEDS = int(os.environ.get("OPTPROBE_PROGRAMS", "300")) // 40
PROCESSES, ROOT, TABLES, RAM, HOLE = 0x10_0000, 0x20_0000, 0x100_0000, 0x4000_0000, 0x2000_0000_0000
CODE, STACK, PACA = 0x9000_0000, 0x9001_0000, 0x9002_0000
CODE_AT, STACK_AT, PACA_AT = 0x1000, 0x2000, 0x3000
PID, SOFT = 5, 0x932
MSR, EE = 1 << 63 | 1 << 1 | 1, 1 << 15
GENERAL = [getattr(ppc_const, f"UC_PPC_REG_{number}") for number in range(32)]
CHANGED = (0, 8, 9, 10, 11, 12)


class Tree:
    """Tables in physical memory, of pages of 64 or 4 KiB."""

    def __init__(self, smallest: int) -> None:
        indexes = (13, 9, 9, 5 if smallest == 16 else 9)
        self.linear = Linear(ROOT, PROCESSES, indexes, SOFT)
        self.memory: dict[int, int] = {}
        self.roots = {3: ROOT, 0: ROOT + 0x1_0000}
        self.end = TABLES
        self.set(PROCESSES + 16 * PID, self.roots[0] | 13)

    def set(self, at: int, entry: int) -> None:
        self.memory[at] = entry

    def table(self, page: int) -> bytes:
        return struct.pack(">512Q", *(self.memory.get(page + at, 0) for at in range(0, PAGE, 8)))

    def read_physical(self, address: int, size: int) -> bytes:
        """Big-endian entries; tables are not read but in words."""
        if address < RAM:
            assert size == 8
            return self.memory.get(address, 0).to_bytes(8, "big")
        return contents(address & -PAGE)[address % PAGE : address % PAGE + size]

    def map(self, address: int, physical: int, shift: int, rights: int) -> None:
        """A page of 1 << shift bytes; nothing where a larger one is."""
        table, at = self.roots[address >> 62], 52
        for index in self.linear.indexes:
            at -= index
            place = table + 8 * (address >> at & (1 << index) - 1)
            entry = self.memory.get(place, 0)
            if at <= shift:
                self.set(place, radix.VALID | radix.LEAF | physical & -(1 << at) | 0x180 | rights)
                return
            if entry & radix.LEAF:
                return
            if not entry:
                entry = radix.VALID | self.end | (self.linear.indexes[3] if at == 21 else 9)
                self.end += 0x1000
                self.set(place, entry)
            table = entry & radix.NEXT_TABLE

    def place(self, address: int) -> int | None:
        return place(self.read_physical, PID, address, self.linear)


def tree(seed: int) -> tuple[Tree, list[int]]:
    """At random, and addresses that it maps."""
    chosen = random.Random(seed)
    made = Tree(chosen.choice((12, 16)))
    smallest = 16 if made.linear.indexes[3] == 5 else 12
    frames = [RAM + 0x1_0000 * chosen.randrange(1 << 14) for _ in range(12)]
    frames += [frame + PAGE for frame in frames] + [HOLE, 1 << 50]
    mapped = [LINEAR_MAP + frame for frame in frames if frame < 1 << 50]
    for frame in frames:
        if chosen.random() < 0.8 and frame < 1 << 50:
            made.map(LINEAR_MAP + frame, frame, chosen.choice((smallest, smallest, 21, 30)), 0xE)
    for _ in range(40):
        upper = chosen.random() < 0.5
        address = chosen.randrange(1 << 52) & -PAGE | (0xC008_0000_0000_0000 if upper else 0)
        rights = chosen.choice((0xE, 0xC)) if upper else chosen.choice((6, 6, 6, 4, 2, 0xE))
        made.map(address, chosen.choice(frames), chosen.choice((smallest, smallest, 21, 30)), rights)
        if chosen.random() < 0.7:
            made.map(address + (1 << smallest), chosen.choice(frames), smallest, rights)
        mapped += [address, address | (1 << smallest) - PAGE, address + (1 << smallest)]
    return made, mapped


def addresses(mapped: list[int], chosen: random.Random) -> Iterator[int]:
    """At the edges of pages, within them, and anywhere."""
    edges = (-9, -8, -7, -3, -1, 0, 1, 5, 100, PAGE - 8, PAGE - 7)
    for page in mapped:
        yield page + chosen.choice((*edges, chosen.randrange(PAGE))) & MASK
    for _ in range(10):
        yield chosen.getrandbits(64)
        yield chosen.choice(mapped) ^ 1 << chosen.randrange(64)
    yield from (0, 1, MASK, MASK - 3, 1 << 52, (1 << 52) - 3, 0xC << 60, (0xC << 60) - 3, 0xC010 << 48)


class Engine:
    """A processor with a guest's tables, and of RAM what its linear map shows."""

    def __init__(self, made: Tree) -> None:
        self.made, self.routine = made, probe_read.routine(made.linear)
        self.pages = Pages(unicorn.UC_ARCH_PPC, unicorn.UC_MODE_PPC64 | unicorn.UC_MODE_BIG_ENDIAN)
        self.uc = self.pages.uc
        self.pages.map(CODE, CODE_AT, self.routine.code.ljust(PAGE, b"\0"))
        self.pages.map(STACK - PAGE, STACK_AT, bytes(PAGE))
        self.pages.map(PACA, PACA_AT, bytes(PAGE))
        for page in (PROCESSES, *range(ROOT, ROOT + 0x2_0000, PAGE), *range(TABLES, made.end, PAGE)):
            self.pages.map(LINEAR_MAP + page, page, made.table(page))

    def run(
        self,
        address: int,
        size: int,
        registers: list[int],
        msr: int,
        masked: int,
        each: Callable[[int], None] = lambda at: None,
    ) -> tuple[list[int], int]:
        """Registers and MSR. each: called at every instruction of the routine.

        Raises UcError where something is touched that is not mapped RAM.
        """
        uc = self.uc
        self.pages.map_readable(self.made, address, LINEAR_MAP)
        uc.mem_write(PACA_AT + SOFT, bytes([masked]))
        registers[1], registers[11], registers[12], registers[13] = STACK - 512, address, size, PACA
        # SPR 48, by an instruction: mtspr 48, r3.
        uc.mem_write(CODE_AT + PAGE - 8, struct.pack("<2I", 0x7C70_0BA6, 0x4800_0000))
        uc.reg_write(ppc_const.UC_PPC_REG_MSR, MSR)
        uc.reg_write(GENERAL[3], PID)
        uc.emu_start(CODE + PAGE - 8, CODE + PAGE - 4, count=1)
        for number, value in zip(GENERAL, registers, strict=True):
            uc.reg_write(number, value)
        uc.reg_write(ppc_const.UC_PPC_REG_LR, CODE + PAGE - 4)
        uc.reg_write(ppc_const.UC_PPC_REG_MSR, msr)
        self.pages.executed = 0
        self.pages.each = each
        uc.emu_start(CODE, CODE + PAGE - 4, count=2000)
        return [uc.reg_read(number) for number in GENERAL], uc.reg_read(ppc_const.UC_PPC_REG_MSR)

    def caller(self, address: int) -> tuple[int, int, int]:
        """PC, stack pointer and LR of who called the routine, as an unwinder finds them from within."""
        numbers = {"r0": GENERAL[0], "r1": GENERAL[1], "lr": ppc_const.UC_PPC_REG_LR}
        registers = {name: self.uc.reg_read(number) for name, number in numbers.items()} | {"pc": address}
        while 0 <= (at := registers["pc"] - CODE) < len(self.routine.code):
            registers = dict(convention.caller(self.routine.code, at, registers, self._on_stack))
        return registers["pc"], registers["r1"], registers["lr"]

    def _on_stack(self, address: int, size: int) -> bytes:
        return bytes(self.uc.mem_read(STACK_AT + address - (STACK - PAGE), size))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_read_is_what_page_tables_say_and_nothing_else_is_touched(seed: int) -> None:
    made, mapped = tree(seed)
    engine, chosen = Engine(made), random.Random(seed)
    found = set()
    for address in addresses(mapped, chosen):
        size, msr, masked = chosen.randint(1, 8), MSR | chosen.choice((0, EE)), chosen.choice((0, 1, 3))
        before = [chosen.getrandbits(64) for _ in range(32)]
        after, msr_after = engine.run(address, size, before, msr, masked)
        word, got = expected(made, address, size)
        assert (min(after[12], size), after[11] & (1 << 8 * size) - 1) == (got, word), f"{address:#x}, {size}"
        assert all(after[n] == before[n] for n in range(32) if n not in CHANGED or n == 0)
        assert msr_after == msr
        found.add(0 if got == 0 else 1 if got < size else 2)
    assert found >= {0, 2}
    assert not engine.pages.changed(frozenset((CODE_AT, STACK_AT, PACA_AT)))


@pytest.mark.parametrize("offset", [0x123, PAGE - 3, PAGE - 5])
def test_from_every_instruction_the_caller_is_found(offset: int) -> None:
    """In a page, in two of which the second is not there, and in two."""
    made = Tree(12)
    made.map(LINEAR_MAP + RAM, RAM, 21, 0xE)
    for page in (0, PAGE) if offset == PAGE - 5 else (0,):
        made.map(0xC008_0000_0000_0000 + page, RAM + 2 * page, 12, 0xE)
    engine = Engine(made)
    unwound: set[tuple[int, int, int]] = set()
    engine.run(0xC008_0000_0000_0000 + offset, 8, [77] * 32, MSR | EE, 0, lambda at: unwound.add(engine.caller(at)))
    assert unwound == {(CODE + PAGE - 4, STACK - 512, 77)}


def test_a_kernel_pointer_into_a_large_page_costs_about_sixty_instructions() -> None:
    made = Tree(16)
    made.map(LINEAR_MAP + RAM, RAM, 21, 0xE)
    engine = Engine(made)
    engine.run(LINEAR_MAP + RAM + 0x123, 4, [0] * 32, MSR | EE, 0)
    assert engine.pages.executed <= 70
