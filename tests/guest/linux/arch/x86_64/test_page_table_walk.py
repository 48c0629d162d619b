"""The routine that finds where a user's memory may be written, on Unicorn: only what page tables let the user write."""

from __future__ import annotations

import random

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64 import page_table_walk, paging
from gdb_optprobe.isa.x86_64 import abi
from tests.guest.linux.arch.mapped import PAGE, Pages
from tests.guest.linux.arch.x86_64.tables import Tables
from tests.guest.linux.arch.x86_64.test_probe_read import CODE, CODE_AT, ROOT, SEEDS, STACK, STACK_AT, addresses, guest

_REGISTERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*abi.GENERAL, abi.FLAGS)}
SAVED_DIRTY = 1 << 58
NEEDED = (paging.DIRTY, 9), (paging.WRITABLE, 9), (SAVED_DIRTY, 5)
"""Bits of leaves, and in how many of ten they are set."""


def bits_at_random(made: Tables, mapped: list[int], chosen: random.Random) -> None:
    for address in mapped:
        found = paging.translate(made.read_physical, ROOT, address, la57=made.direct.la57)
        if found is None:
            continue
        entry = found.entry
        for bit, tenths in NEEDED:
            entry = entry | bit if chosen.randrange(10) < tenths else entry & ~bit
        page, at = found.entry_address & -PAGE, found.entry_address % PAGE
        made.pages[page][at : at + 8] = entry.to_bytes(8, "little")


def expected(made: Tables, address: int, size: int, shared: bool) -> int | None:
    """Where in the direct map it is, by the tables; None where it may not be written."""
    if address >> (56 if made.direct.la57 else 47) or address % PAGE + size > PAGE:
        return None
    user = _leaf(made, address, shared)
    if user is None or not user.user or user.frame_of(address) >= made.direct.size:
        return None
    at = made.direct.start + user.frame_of(address)
    kernels = _leaf(made, at, shared)
    return at if kernels is not None and kernels.writable else None


def _leaf(made: Tables, address: int, shared: bool) -> paging.Mapping | None:
    found = paging.translate(made.read_physical, ROOT, address, la57=made.direct.la57)
    if found is None or not (shared or found.writable):
        return None
    return found if found.entry & (paging.DIRTY | (SAVED_DIRTY if shared else 0)) else None


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_may_be_written_is_what_page_tables_say(seed: int, shared: bool) -> None:
    """shared: of pages that forks share, entries are not writable, and dirty by another bit in newer kernels."""
    made, mapped = guest(seed)
    chosen = random.Random(seed)
    bits_at_random(made, mapped, chosen)
    code = page_table_walk.routine(made.direct, shared)
    pages = Pages(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    pages.map(CODE, CODE_AT, code.ljust(PAGE, b"\xcc"))
    pages.map(STACK - PAGE, STACK_AT, bytes(PAGE))
    for at, content in made.pages.items():
        pages.map(made.direct.start + at, at, bytes(content))
    found = 0
    for address in addresses(mapped, chosen):
        size = chosen.choice((4, 8))
        before = {name: chosen.getrandbits(64) for name in abi.GENERAL} | {"eflags": 0x2}
        before |= {"rax": address, "rsi": size, "rsp": STACK - 64}
        pages.uc.mem_write(STACK_AT + PAGE - 64, (CODE + PAGE - 1).to_bytes(8, "little"))
        for name, value in before.items():
            pages.uc.reg_write(_REGISTERS[name], value)
        pages.uc.reg_write(x86_const.UC_X86_REG_CR3, ROOT | 0xFFF)
        pages.uc.emu_start(CODE, CODE + PAGE - 1, count=2000)
        after = {name: pages.uc.reg_read(number) for name, number in _REGISTERS.items()}
        place = expected(made, address, size, shared)
        assert (None if after["eflags"] & abi.CF else after["rax"]) == place, f"{address:#x}"
        kept = set(abi.GENERAL) - {"rax", "rdx", "r8", "r9", "r10", "r11", "rsp"}
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        found += place is not None
    assert found
