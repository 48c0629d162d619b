"""What runs before the kernel's entry code saves registers, in Unicorn: where it goes, and what it changes.

Unicorn runs at EL1, and has ESR_EL1 and ELR_EL1. A hook stands for `eret`: it says where that would continue.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import arm64_const

from gdb_optprobe.guest.linux.arch.aarch64.trap_entry import TRAPPING
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable, lower_trap_handler
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import GENERAL, SP
from gdb_optprobe.isa.aarch64.encodings import plain
from gdb_optprobe.isa.aarch64.fields import to_bytes, word_of
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.trapping import Entry
from gdb_optprobe.maps.trap_table import KERNEL_KEY, TrapTableLayout

CODE, KERNELS, TABLE, STACK, TEXT = range(0x10_0000, 0x60_0000, 0x10_0000)
SIZE, FRAME = 0x1_0000, 336
NUMBERS = {name: getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in (*GENERAL, SP)}
ESR = (5, 2, 3, 0, 0)  # by crn, crm, op0, op1, op2
ELR = (4, 0, 3, 0, 1)
DETOUR = 0xFFFF_8000_0820_0040
LAYOUT = TrapTableLayout(64, KERNEL_KEY)
DISPLACED = Insn(KERNELS - 4, to_bytes(0xA900_07E0), "", Flow.NEXT)  # stp x0, x1, [sp]
ENTRY = Entry(KERNELS, DISPLACED, frame=FRAME)
UNDEFINED, PAGE_FAULT, BRK = 0x0200_0000, 0x9600_0007, 0xF200_0004
GONE = to_bytes(0xAA1E_03E9)  # mov x9, x30
ERET = plain("eret")


@dataclass(frozen=True)
class After:
    """Whether the kernel's own continues, and where it is that `eret` returns to. executed: instructions."""

    kernels: bool
    saved: int
    executed: int


def trapped(detours: Mapping[int, int], at: int, there: bytes = AARCH64.trap, syndrome: int = UNDEFINED) -> After:
    """A trap at `at`, where `there` stands by now. Asserts that nothing else was changed."""
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    for page in (CODE, KERNELS, TABLE, STACK, TEXT):
        machine.mem_map(page, SIZE)
    code = lower_trap_handler(PlacedTrapTable(LAYOUT, TABLE), ENTRY, TRAPPING)(CODE)
    table = bytes(LAYOUT.encode({(key,): detour for key, detour in detours.items()}))
    rng = random.Random(at)
    stack = rng.randbytes(0x1000)
    for where, data in ((CODE, code), (TABLE, table), (TEXT + at % SIZE, there), (STACK, stack)):
        machine.mem_write(where, data)
    sp = STACK + 0x400
    before = {name: rng.getrandbits(64) for name in GENERAL} | {SP: sp}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    machine.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (*ESR, syndrome))
    machine.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (*ELR, at))
    executed: list[int] = []
    ends: list[int] = []

    def step(_: object, address: int, *__: object) -> None:
        executed.append(address)
        if address == KERNELS or word_of(machine.mem_read(address, 4)) == ERET:
            ends.append(address)
            machine.emu_stop()

    machine.hook_add(unicorn.UC_HOOK_CODE, step)
    machine.emu_start(CODE, 0, count=2000)
    kernels = ends == [KERNELS]
    after = {name: machine.reg_read(number) for name, number in NUMBERS.items()}
    assert after == before | {SP: sp if kernels else sp + FRAME}
    assert bytes(machine.mem_read(TABLE, LAYOUT.size)) == table
    now = bytes(machine.mem_read(STACK, len(stack)))
    assert (now[:0x400], now[0x400 + FRAME :]) == (stack[:0x400], stack[0x400 + FRAME :])
    if kernels:
        assert now[0x400:0x410] == b"".join(before[name].to_bytes(8, "little") for name in ("x0", "x1"))
    return After(kernels, machine.reg_read(arm64_const.UC_ARM64_REG_CP_REG, ELR), len(executed))


def test_a_trap_at_a_probe_continues_in_its_detour() -> None:
    after = trapped({TEXT: DETOUR}, TEXT)
    assert (after.kernels, after.saved) == (False, DETOUR) and after.executed <= 27


@pytest.mark.parametrize("seed", range(8))
def test_among_others(seed: int) -> None:
    chosen = random.Random(seed)
    places = chosen.sample(range(TEXT, TEXT + 0x1000, 4), 32)
    detours = {at: DETOUR + 4 * chosen.getrandbits(20) for at in places}
    for at in places[:8]:
        after = trapped(detours, at)
        assert (after.kernels, after.saved) == (False, detours[at])
    other = next(at for at in range(TEXT, TEXT + 0x1000, 4) if at not in detours)
    after = trapped(detours, other)
    assert (after.kernels, after.saved) == (True, other)


def test_a_search_continues_behind_the_end_of_the_table() -> None:
    end = LAYOUT.size - LAYOUT.slot_size
    last, next_one, *_ = (at for at in range(TEXT, TEXT + 0x10000, 4) if LAYOUT.home((at,)) == end)
    assert trapped({last: 4, next_one: DETOUR}, next_one).saved == DETOUR


def test_an_undefined_instruction_of_another_kind_is_the_kernels() -> None:
    after = trapped({TEXT: DETOUR}, TEXT + 8)
    assert (after.kernels, after.saved) == (True, TEXT + 8)


@pytest.mark.parametrize("syndrome", [PAGE_FAULT, BRK])
def test_another_exception_at_that_address_is_the_kernels_soon(syndrome: int) -> None:
    after = trapped({TEXT: DETOUR}, TEXT, syndrome=syndrome)
    assert (after.kernels, after.saved) == (True, TEXT) and after.executed <= 8


def test_where_our_trap_is_gone_the_instruction_is_run() -> None:
    after = trapped({TEXT: 0}, TEXT, there=GONE)
    assert (after.kernels, after.saved) == (False, TEXT)


@pytest.mark.parametrize("word", [0xD440_0000, 0xD45E_0000, 0x0000_0000, 0x0000_FFFF])
def test_where_another_undefined_instruction_is_by_now_it_is_the_kernels(word: int) -> None:
    assert trapped({TEXT: 0}, TEXT, there=to_bytes(word)).kernels
