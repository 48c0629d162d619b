"""The walk to a program's page, on Unicorn: the page that page tables say, or that there is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import leaf_entry, paging
from gdb_optprobe.guest.linux.arch.aarch64.paging import ACCESSED, DS, TABLE, USER, VALID
from gdb_optprobe.isa.aarch64 import encodings
from gdb_optprobe.isa.aarch64.abi import LR
from gdb_optprobe.isa.codegen import Label
from tests.guest.linux.arch.aarch64.test_probe_read import (
    CODE_AT,
    LINEAR,
    RAM,
    SEEDS,
    STACK_AT,
    TABLES,
    TCR,
    TTBR0,
    Engine,
    Tables,
    addresses,
    tables,
)
from tests.guest.linux.arch.mapped import MASK, PAGE

RECORDS = 0xFFFF_FC00_0000_0000
ABSENT, OTHER = 0, 1
"""In place of a record."""
CHANGED = (11, 12, 13, 14, 15)


class LeafEngine(Engine):
    """Runs the routine in place of the one that reads, with the tables where its linear map shows them."""

    def __init__(self, made: Tables) -> None:
        super().__init__(made)
        absent, other, back = Label(), Label(), encodings.plain("ret", n=LR)
        code, apart = leaf_entry.walk(made.linear, RECORDS)(absent, other)
        ends = [absent, *encodings.constant("x15", ABSENT), back, other, *encodings.constant("x15", OTHER), back]
        self.uc.mem_write(CODE_AT, encodings.encode_items([*code, back, *ends, *apart]))
        for at in range(TABLES, made.end, PAGE):
            self.pages.show(LINEAR - RAM + at, at)

    def look(self, address: int, chosen: random.Random) -> dict[int, int]:
        """Registers by number."""
        before = [chosen.getrandbits(64) for _ in range(31)]
        after = self.run(address, 8, before)
        assert all(after[n] == before[n] for n in range(31) if n not in CHANGED)
        return dict(enumerate(after))


def record(made: Tables, address: int) -> int:
    """By page tables."""
    page = paging.translate(made.read_physical, made.linear.user, made.roots[0], address)
    if page is None:
        return ABSENT
    if page.size != PAGE or page.entry & leaf_entry.SPECIAL:
        return OTHER
    return RECORDS + page.physical // PAGE * 64 & MASK


WIDE_TCR = TCR & ~0x3F_003F | 12 << 16 | 12 | DS
"""52 bits, with LPA2."""


@pytest.mark.parametrize("tcr", [TCR, WIDE_TCR])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_record_of_a_page_is_what_page_tables_say(seed: int, tcr: int) -> None:
    made, mapped = tables(seed, tcr)
    chosen = random.Random(seed)
    special, far = (chosen.randrange(1 << made.linear.user.bits) & -PAGE for _ in range(2))
    made.map(special, RAM, 12, ACCESSED | USER | leaf_entry.SPECIAL)
    if made.linear.user.wide:
        made.map(far, chosen.randrange(1 << 52), 12, ACCESSED | USER)
    engine, found = LeafEngine(made), set()
    # An address-space identifier is above the root's address, and CnP below it.
    engine.set(TTBR0, made.roots[0] | chosen.getrandbits(16) << 48 | chosen.getrandbits(1))
    for address in addresses([*mapped, special, far], chosen):
        if address >> made.linear.user.bits:
            continue  # no instruction was run there
        registers = engine.look(address, chosen)
        wanted = record(made, address)
        assert registers[15] == wanted, hex(address)
        if wanted > OTHER:
            physical = registers[14] - (LINEAR - RAM)
            assert made.memory[physical] == registers[13]
        found.add(min(wanted, 2))
    assert found == {ABSENT, OTHER, 2}
    assert not engine.pages.changed(frozenset((CODE_AT, STACK_AT)))


def test_other_tables_are_refused() -> None:
    linear = Tables().linear
    with pytest.raises(OptprobeError, match="4 KiB"):
        leaf_entry.walk(replace(linear, user=replace(linear.user, granule=16)), RECORDS)


@pytest.mark.parametrize("level", range(4))
def test_an_entry_that_is_not_valid_is_followed_nowhere(level: int) -> None:
    """One that the kernel has made invalid, a block's or a page's, and one of a page that was moved away."""
    made, address = Tables(), 0x7F12_3456_7000
    made.map(address, RAM, 12, ACCESSED | USER)
    place = made.roots[0]
    for shift in made.linear.user.shifts[:level]:
        place = made.memory[place + 8 * (address >> shift & 511)] & -PAGE & (1 << 48) - 1
    place += 8 * (address >> made.linear.user.shifts[level] & 511)
    last = TABLE if level == 3 else 0
    chosen = random.Random(level)
    for entry in (0, 1 << 58 | 0xDEAD_0000 | last, chosen.getrandbits(58) & ~(VALID | TABLE)):
        made.memory[place] = entry
        assert LeafEngine(made).look(address, chosen)[15] == ABSENT
    made.memory[place] = RAM | VALID | (TABLE if level == 3 else 0)
    assert LeafEngine(made).look(address, chosen)[15] == (OTHER if level != 3 else RECORDS + RAM // PAGE * 64 & MASK)

