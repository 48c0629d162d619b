"""What runs before the kernel's trap handler, in Unicorn: where it goes; it changes nothing but the saved PC."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.trap_entry import TRAPPING
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable, lower_trap_handler
from gdb_optprobe.isa.trapping import Entry
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.maps.trap_table import KERNEL_KEY, TrapTableLayout

CODE, KERNELS, CALLER, TABLE, FRAME, STACK, TEXT = range(0x10_0000, 0x80_0000, 0x10_0000)
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.GENERAL}
DETOUR = 0xFFFF_FFFF_8200_0040
KERNEL, USER = 0x10, 0x33


@dataclass(frozen=True)
class After:
    """Where it went, and what the saved PC is."""

    to: int
    saved: int
    executed: int


def trapped(detours: Mapping[int, int], at: int, there: bytes = X86_64.trap, cs: int = KERNEL) -> After:
    """A trap at `at`, where `there` stands by now. Asserts that nothing else was changed."""
    layout = TrapTableLayout(64, KERNEL_KEY)
    table = bytes(layout.encode({(key,): detour for key, detour in detours.items()}))
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, KERNELS, CALLER, TABLE, FRAME, STACK, TEXT):
        machine.mem_map(page, 0x1_0000)
    executed: list[int] = []
    machine.hook_add(unicorn.UC_HOOK_CODE, lambda _, address, *__: executed.append(address))
    code = lower_trap_handler(PlacedTrapTable(layout, TABLE), Entry(KERNELS), TRAPPING)(CODE)
    frame = random.Random(at).randbytes(128) + at.to_bytes(8, "little") + cs.to_bytes(8, "little")
    for where, data in ((CODE, code), (TABLE, table), (FRAME, frame), (TEXT + at % 0x1000, there)):
        machine.mem_write(where, data)
    machine.mem_write(STACK + 0x800, CALLER.to_bytes(8, "little"))
    before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL} | {"rsp": STACK + 0x800, "rdi": FRAME}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    ends: list[int] = []

    def end(_: object, address: int, *__: object) -> None:
        if address in (KERNELS, CALLER):
            ends.append(address)
            machine.emu_stop()

    machine.hook_add(unicorn.UC_HOOK_CODE, end)
    machine.emu_start(CODE, 0, count=500)
    kept = (*abi.CALLEE_SAVED, "rdi")
    assert {name: machine.reg_read(NUMBERS[name]) for name in kept} == {name: before[name] for name in kept} | {
        "rsp": STACK + 0x800 + 8 * (ends == [CALLER])
    }
    found = bytes(machine.mem_read(FRAME, len(frame)))
    assert found[:128] + found[136:] == frame[:128] + frame[136:]
    assert bytes(machine.mem_read(TABLE, layout.size)) == table
    return After(ends[0], int.from_bytes(found[128:136], "little"), len(executed) - 1)


def test_who_traps_at_a_probe_goes_on_in_its_detour() -> None:
    assert trapped({TEXT: DETOUR}, TEXT) == After(CALLER, DETOUR, 14)


@pytest.mark.parametrize("seed", range(20))
def test_among_others(seed: int) -> None:
    chosen = random.Random(seed)
    places = chosen.sample(range(TEXT, TEXT + 0x1000), 32)
    detours = {at: chosen.getrandbits(63) + 1 for at in places}
    for at in places[:8]:
        after = trapped(detours, at)
        assert (after.to, after.saved) == (CALLER, detours[at])
    other = next(at for at in range(TEXT, TEXT + 0x1000) if at not in detours)
    after = trapped(detours, other)
    assert (after.to, after.saved) == (KERNELS, other)


def test_a_trap_that_is_not_ours_is_the_kernels() -> None:
    after = trapped({TEXT: DETOUR}, TEXT + 8)
    assert (after.to, after.saved) == (KERNELS, TEXT + 8)


def test_a_program_of_the_users_may_trap_at_any_address() -> None:
    after = trapped({TEXT: DETOUR}, TEXT, cs=USER)
    assert (after.to, after.saved) == (KERNELS, TEXT)


def test_where_our_trap_has_gone_the_instruction_is_run() -> None:
    after = trapped({TEXT: 0}, TEXT, there=b"\x55")
    assert (after.to, after.saved) == (CALLER, TEXT)


def test_where_somebody_elses_trap_stands_by_now_it_is_the_kernels() -> None:
    after = trapped({TEXT: 0}, TEXT)
    assert (after.to, after.saved) == (KERNELS, TEXT)
