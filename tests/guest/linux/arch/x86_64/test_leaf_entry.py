"""The walk to a user's page and its record, on Unicorn: what page tables say; nothing else is touched."""

from __future__ import annotations

import random

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64 import leaf_entry, paging
from gdb_optprobe.isa.codegen import EntryState, Label
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.codegen import X86Emitter
from tests.guest.linux.arch.mapped import MASK, PAGE, Pages
from tests.guest.linux.arch.x86_64.tables import Tables
from tests.guest.linux.arch.x86_64.test_probe_read import CODE, CODE_AT, ROOT, SEEDS, STACK, STACK_AT, addresses, guest

RECORDS = 0xFFFF_EA00_1234_0000
ABSENT, OTHER = 0, 1
"""In place of a record."""
_REGISTERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*abi.GENERAL, abi.FLAGS)}


def special_at_random(made: Tables, mapped: list[int], chosen: random.Random) -> None:
    """Some pages have no record."""
    for address in mapped:
        found = paging.translate(made.read_physical, ROOT, address, la57=made.direct.la57)
        if found is not None and chosen.random() < 0.2:
            page, at = found.entry_address & -PAGE, found.entry_address % PAGE
            made.pages[page][at : at + 8] = (found.entry | leaf_entry.SPECIAL).to_bytes(8, "little")


def expected(made: Tables, address: int) -> tuple[int, int, int] | int:
    """The record, where the entry is, and the entry; or what is told in place of a record."""
    found = paging.translate(made.read_physical, ROOT, address, la57=made.direct.la57)
    if found is None:
        return ABSENT
    frame = found.entry & paging.ADDRESS
    if found.level != 1 or found.entry & leaf_entry.SPECIAL or frame >= made.direct.size:
        return OTHER
    return RECORDS + (frame >> 12) * 64 & MASK, made.direct.start + found.entry_address & MASK, found.entry


def routine(made: Tables) -> bytes:
    """What a trap's dispatcher has in its midst, as a routine."""
    emit = X86Emitter(EntryState())
    labels = Label(), Label()
    leaf_entry.walk(made.direct, RECORDS)(emit, *labels)
    emit.raw(b"\xc3")
    for label, result in zip(labels, (ABSENT, OTHER), strict=True):
        emit.bind(label)
        emit.constant("rcx", result)
        emit.raw(b"\xc3")
    return emit.finish(CODE)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_record_of_a_page_is_found_by_the_page_tables(seed: int) -> None:
    made, mapped = guest(seed)
    chosen = random.Random(seed)
    special_at_random(made, mapped, chosen)
    pages = Pages(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    pages.map(CODE, CODE_AT, routine(made).ljust(PAGE, b"\xcc"))
    pages.map(STACK - PAGE, STACK_AT, bytes(PAGE))
    for at, content in made.pages.items():
        pages.map(made.direct.start + at, at, bytes(content))
    kinds = set()
    for address in addresses(mapped, chosen):
        if paging.translate(made.read_physical, ROOT, address, la57=made.direct.la57) is None and address >> 47:
            continue  # no PC of a program's
        before = {name: chosen.getrandbits(64) for name in abi.GENERAL} | {"eflags": 0x2}
        before |= {"rax": address, "rsp": STACK - 64}
        pages.uc.mem_write(STACK_AT + PAGE - 64, (CODE + PAGE - 1).to_bytes(8, "little"))
        for name, value in before.items():
            pages.uc.reg_write(_REGISTERS[name], value)
        pages.uc.reg_write(x86_const.UC_X86_REG_CR3, ROOT | 0xFFF)
        pages.uc.emu_start(CODE, CODE + PAGE - 1, count=2000)
        after = {name: pages.uc.reg_read(number) for name, number in _REGISTERS.items()}
        wanted = expected(made, address)
        got = (after["rcx"], after["r9"], after["r10"]) if isinstance(wanted, tuple) else after["rcx"]
        assert got == wanted, f"{address:#x}"
        kept = set(abi.GENERAL) - {"rcx", "r9", "r10", *leaf_entry.REGISTERS.lost, "rsp"}
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        kinds.add(type(wanted) if isinstance(wanted, tuple) else wanted)
    assert {tuple, ABSENT} <= kinds
