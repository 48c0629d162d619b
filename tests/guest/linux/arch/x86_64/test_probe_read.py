"""The routine that reads what may not be there, on Unicorn: it touches nothing that page tables do not map as RAM."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64 import probe_read
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from tests.guest.linux.arch.mapped import MASK, PAGE, Pages, contents, expected
from tests.guest.linux.arch.x86_64.tables import Tables

SEEDS = int(os.environ.get("OPTPROBE_PROGRAMS", "300")) // 40
CODE, STACK = 0xFFFF_FFFF_8100_0000, 0xFFFF_C900_0000_1000
CODE_AT, STACK_AT, ROOT = 0xC_0000, 0xD_0000, 0x20_0000  # the first two where nothing is ever read
RAM = 0x4000_0000
VIDEO = 0xA_0000
DIRECTS = (
    Direct(0xFFFF_8880_0000_0000, 1 << 46),
    Direct(0xFFFF_9A3D_4000_0000, 11 << 40),
    Direct(0xFF11_0000_0000_0000, 1 << 55, la57=True),
)
_REGISTERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*abi.GENERAL, abi.FLAGS)}


def guest(seed: int) -> tuple[Tables, list[int]]:
    """Tables at random, and addresses that they map."""
    chosen = random.Random(seed)
    made = Tables(chosen.choice(DIRECTS), ROOT, contents)
    bits = 56 if made.direct.la57 else 47
    frames = [RAM + PAGE * chosen.randrange(1 << 19) for _ in range(12)]
    frames += [frame + PAGE for frame in frames] + [VIDEO, VIDEO + PAGE, (1 << 46) - PAGE, made.direct.size]
    for frame in frames:
        if chosen.random() < 0.8:
            made.map(made.direct.start + frame & MASK, frame, chosen.choice((1, 1, 1, 2, 3)))
    mapped = [made.direct.start + frame & MASK for frame in frames]
    for _ in range(40):
        upper = chosen.random() < 0.5
        address = chosen.randrange(1 << bits) & -PAGE | (MASK << bits & MASK if upper else 0)
        if made.direct.start <= address < made.direct.start + made.direct.size:
            continue
        made.map(address, chosen.choice(frames), chosen.choice((1, 1, 1, 2, 3)), user=chosen.random() < 0.7 or upper)
        if chosen.random() < 0.7:
            made.map(address + PAGE & MASK, chosen.choice(frames), 1, user=chosen.random() < 0.7)
        mapped += [address, address + PAGE & MASK]
    return made, mapped


def addresses(mapped: list[int], chosen: random.Random) -> Iterator[int]:
    """At the edges of pages, within them, and anywhere."""
    edges = (-9, -8, -7, -3, -1, 0, 1, 5, 100, PAGE - 8, PAGE - 7)
    for page in mapped:
        yield page + chosen.choice((*edges, chosen.randrange(PAGE))) & MASK
    for _ in range(10):
        yield chosen.getrandbits(64)
        yield chosen.choice(mapped) ^ 1 << chosen.randrange(64)
    yield from (0, 1, MASK, MASK - 3, 1 << 47, (1 << 47) - 3, MASK << 47 & MASK, (MASK << 47) - 3 & MASK)


class Engine:
    """A processor with a guest's tables, and of RAM what its direct map shows."""

    def __init__(self, made: Tables) -> None:
        self.made, self.routine = made, probe_read.routine(made.direct)
        self.pages = Pages(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        self.uc = self.pages.uc
        self.pages.map(CODE, CODE_AT, self.routine.code.ljust(PAGE, b"\xcc"))
        self.pages.map(STACK - PAGE, STACK_AT, bytes(PAGE))
        for at, content in made.pages.items():
            self.pages.map(made.direct.start + at, at, bytes(content))

    def run(self, address: int, size: int, text: bool, registers: dict[str, int]) -> dict[str, int]:
        """Raises UcError where something is touched that is not mapped RAM."""
        uc = self.uc
        self.pages.map_readable(self.made, address, self.made.direct.start)
        uc.mem_write(STACK_AT + PAGE - 64, (CODE + PAGE - 1).to_bytes(8, "little"))
        registers |= {"rax": address, "r10": size, "rsp": STACK - 64}
        for name, value in registers.items():
            uc.reg_write(_REGISTERS[name], value)
        uc.reg_write(x86_const.UC_X86_REG_CR3, ROOT | 0xFFF)
        self.pages.executed = 0
        readers = self.routine.at(CODE)
        uc.emu_start(readers.text if text else readers.bytes, CODE + PAGE - 1, count=2000)
        return {name: uc.reg_read(number) for name, number in _REGISTERS.items()}

    def caller(self, address: int) -> tuple[int, int]:
        """PC and stack pointer of who called the routine, as an unwinder finds them from within."""
        registers = {"rip": address, "rsp": self.uc.reg_read(x86_const.UC_X86_REG_RSP)}
        while (at := registers["rip"] - CODE) < len(self.routine.code):
            registers = dict(BACKEND.caller(self.routine.code, at, registers, self._on_stack))
        return registers["rip"], registers["rsp"]

    def _on_stack(self, address: int, size: int) -> bytes:
        return bytes(self.uc.mem_read(STACK_AT + address - (STACK - PAGE), size))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_read_is_what_page_tables_say_and_nothing_else_is_touched(seed: int) -> None:
    made, mapped = guest(seed)
    engine = Engine(made)
    chosen = random.Random(seed)
    found = set()
    for address in addresses(mapped, chosen):
        size, text = chosen.randint(1, 8), chosen.random() < 0.4
        before = {name: chosen.getrandbits(64) for name in abi.GENERAL}
        before["eflags"] = chosen.choice((0x202, 0x2, 0x202 | abi.ARITHMETIC_FLAGS))
        after = engine.run(address, size, text, before)
        word, got = expected(made, address, size, text)
        assert (min(after["r10"], size), after["rax"] & (1 << 8 * size) - 1) == (got, word), f"{address:#x}, {size}"
        kept = {name for name in before if name not in ("rax", "r10", "r11", "rsp", "eflags")}
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert after["rsp"] == STACK - 56
        assert (after["eflags"] ^ before["eflags"]) & ~abi.ARITHMETIC_FLAGS == 0
        found.add(0 if got == 0 else 1 if got < size else 2)
    assert found >= {0, 2}
    assert not engine.pages.changed(frozenset((STACK_AT,)))


def test_a_kernel_pointer_into_a_large_page_costs_about_fifty_instructions() -> None:
    made = Tables(DIRECTS[0], ROOT, contents)
    made.map(made.direct.start + RAM, RAM, 2)
    engine = Engine(made)
    engine.run(made.direct.start + RAM + 0x123, 4, False, {"eflags": 0x202})
    assert engine.pages.executed <= 58


@pytest.mark.parametrize("offset", [0x123, PAGE - 3, PAGE - 5])
@pytest.mark.parametrize("text", [False, True])
def test_from_every_instruction_the_caller_is_found(offset: int, text: bool) -> None:
    """In a page, in two of which the second is not there, and in two."""
    made = Tables(DIRECTS[0], ROOT, contents)
    made.map(made.direct.start + RAM, RAM, 2)
    for page in (0, PAGE) if offset == PAGE - 5 else (0,):
        made.map(0xFFFF_C900_0000_0000 + page, RAM + 2 * page, 1)
    engine = Engine(made)
    unwound = set()
    engine.pages.each = lambda at: unwound.add(engine.caller(at))
    engine.run(0xFFFF_C900_0000_0000 + offset, 8, text, {"eflags": 0x202})
    assert unwound == {(CODE + PAGE - 1, STACK - 56)}


def test_of_the_user_only_what_the_user_may_read() -> None:
    made = Tables(DIRECTS[0], ROOT, contents)
    made.map(made.direct.start + RAM, RAM, 2)
    made.map(0x40_0000, RAM, 1, user=True)
    made.map(0x50_0000, RAM, 1, user=False)
    assert (made.place(0x40_0008), made.place(0x50_0008)) == (RAM + 8, None)


def test_neither_devices_nor_holes_nor_video_memory_are_ram() -> None:
    made = Tables(DIRECTS[0], ROOT, contents)
    made.map(made.direct.start, 0, 2)
    made.map(0xFFFF_C900_0000_0000, 0xFEC0_0000, 1)
    made.map(0xFFFF_C900_0000_1000, VIDEO, 1)
    made.map(0xFFFF_C900_0000_2000, 0x5000, 1)
    found = [made.place(0xFFFF_C900_0000_0000 + PAGE * number) for number in range(3)]
    assert found == [None, None, 0x5000]
    assert made.place(made.direct.start + VIDEO) is None
