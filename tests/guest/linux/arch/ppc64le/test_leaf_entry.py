"""The routine that looks a user's page up, on Unicorn: the page that page tables say, or that there is none."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.guest.linux.arch.ppc64le import leaf_entry, radix
from gdb_optprobe.guest.linux.arch.ppc64le.mmu import RECORDS
from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import LINEAR_BITS, LINEAR_MAP
from gdb_optprobe.isa.codegen import Label
from gdb_optprobe.isa.ppc64le import encodings
from tests.guest.linux.arch.ppc64le.test_probe_read import (
    CODE_AT,
    EE,
    HOLE,
    MSR,
    PACA_AT,
    PID,
    RAM,
    SEEDS,
    STACK_AT,
    Engine,
    Tree,
    addresses,
    tree,
)

ABSENT, OTHER = leaf_entry.ABSENT, leaf_entry.OTHER
CHANGED = (6, 7, 8, 9, 10)
SPECIAL = 0x400


class LeafEngine(Engine):
    """Runs the routine in place of the one that reads."""

    def __init__(self, made: Tree, is_walk: bool = False) -> None:
        super().__init__(made)
        code = walk(made) if is_walk else leaf_entry.routine(made.linear, RECORDS)
        self.uc.mem_write(CODE_AT, code)

    def look(self, address: int, chosen: random.Random) -> dict[int, int]:
        """Registers by number."""
        before = [chosen.getrandbits(64) for _ in range(32)]
        after, msr = self.run(address, 8, before, MSR | chosen.choice((0, EE)), 0)
        assert all(after[n] == before[n] for n in range(32) if n not in CHANGED) and msr & ~EE == MSR
        return dict(enumerate(after))


def walk(made: Tree) -> bytes:
    """What a trap's dispatcher has in its midst, as a routine."""
    absent, other, back = Label(), Label(), encodings.plain("blr")
    items: list[encodings.Item] = [*leaf_entry.walk(made.linear, RECORDS)(absent, other), back]
    for label, result in ((absent, ABSENT), (other, OTHER)):
        items += [label, encodings.number("addi", "r10", "r0", result), back]
    return encodings.encode_items(items)


def record(made: Tree, address: int) -> int:
    """By page tables."""
    if address >> 52:
        return OTHER
    page = radix.translate(made.read_physical, made.roots[0], address)
    if page is None:
        return ABSENT
    if page.size != made.linear.page or page.entry & (leaf_entry.PRIVILEGED | SPECIAL) or page.physical >> LINEAR_BITS:
        return OTHER
    return RECORDS + page.physical // page.size * 64


@pytest.mark.parametrize("is_walk", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_page_is_the_one_that_page_tables_say(seed: int, is_walk: bool) -> None:
    made, mapped = tree(seed)
    engine, chosen = LeafEngine(made, is_walk), random.Random(seed)
    found = set()
    for address in addresses(mapped, chosen):
        if is_walk and address >> 52:
            continue  # no instruction was run there
        after = engine.look(address, chosen)
        assert after[10] == record(made, address), f"{address:#x}"
        found.add(min(after[10], 2))
        page = radix.translate(made.read_physical, made.roots[0], address) if not address >> 52 else None
        if after[10] not in (ABSENT, OTHER):
            assert page is not None and after[9] == LINEAR_MAP | page.at
            assert after[8] == int.from_bytes(page.entry.to_bytes(8, "big"), "little")
    assert found == {ABSENT, OTHER, 2}
    assert not engine.pages.changed(frozenset((CODE_AT, STACK_AT, PACA_AT)))


@pytest.mark.parametrize("entry", [SPECIAL, leaf_entry.PRIVILEGED])
def test_a_page_without_a_record_or_of_the_kernels_is_another(entry: int) -> None:
    made = Tree(16)
    made.map(0x1001_0000, RAM, 16, 6 | entry)
    assert LeafEngine(made).look(0x1001_0130, random.Random(1))[10] == OTHER


def test_a_process_that_is_no_more_and_a_device() -> None:
    made = Tree(16)
    made.map(0x1001_0000, 1 << LINEAR_BITS, 16, 6)
    assert LeafEngine(made).look(0x1001_0000, random.Random(1))[10] == OTHER
    made.map(0x1002_0000, HOLE, 16, 6)
    made.set(0x10_0000 + 16 * PID, 0)
    assert LeafEngine(made).look(0x1002_0000, random.Random(1))[10] == OTHER
