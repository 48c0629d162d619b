"""The routine that looks a program's page up, on Unicorn: the page that page tables say, or that there is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import leaf_entry, paging
from gdb_optprobe.guest.linux.arch.aarch64.paging import ACCESSED, DS, USER
from gdb_optprobe.isa.user import ABSENT, OTHER
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
CHANGED = (11, 12, 13, 14, 15)


class LeafEngine(Engine):
    """Runs the routine in place of the one that reads, with the tables where its linear map shows them."""

    def __init__(self, made: Tables) -> None:
        super().__init__(made)
        self.uc.mem_write(CODE_AT, leaf_entry.routine(made.linear, RECORDS))
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
    user = made.linear.user
    if address >> user.bits:
        return OTHER
    page = paging.translate(made.read_physical, user, made.roots[0], address)
    if page is None:
        return ABSENT
    if page.size != PAGE or not page.entry & USER or page.entry & leaf_entry.SPECIAL:
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
        leaf_entry.routine(replace(linear, user=replace(linear.user, granule=16)), RECORDS)
