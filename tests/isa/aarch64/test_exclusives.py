"""Where nothing may run between a load-exclusive and its store-exclusive."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64, exclusives
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Hazard
from tests.examples import samples
from tests.isa.aarch64.kernel import functions

START = 0xFFFF_8000_0810_0000
LDXR, ADD, STXR, AGAIN = 0xC85F7C01, 0x91000421, 0xC8027C01, 0x35FFFFA2  # again: cbnz w2, .-12
CMP, RET, NOP, WFE = 0xEB03003F, 0xD65F03C0, 0xD503201F, 0xD503205F


def inside(*words: int) -> list[int]:
    """Return which words are, by index."""
    insns = AARCH64.decode(to_bytes(*words), START)
    found = exclusives.reserved({insn.address: insn for insn in insns})
    return sorted((address - START) // 4 for address in found)


def test_from_behind_the_load_to_the_store() -> None:
    assert inside(NOP, LDXR, ADD, STXR, AGAIN, RET) == [2, 3]


def test_the_way_out_is_outside() -> None:
    """cmpxchg: a comparison that fails leaves without a store."""
    assert inside(LDXR, CMP, 0x54000081, STXR, 0x35FFFF82, NOP, RET) == [1, 2, 3]


def test_a_load_without_a_store() -> None:
    assert inside(LDXR, ADD, RET, NOP) == []


def test_a_wait_for_a_store_of_another_cpu_ends_it_too() -> None:
    assert inside(LDXR, CMP, 0x54000041, WFE, RET) == [1, 2, 3]


@pytest.mark.parametrize(
    ("load", "store"),
    [
        (0x085F7C01, 0x08027C01),  # ldxrb stxrb
        (0x485F7C01, 0x48027C01),
        (0x885FFC01, 0x8802FC01),  # ldaxr stlxr
        (0xC87F0C01, 0xC8220C01),  # ldxp stxp
        (0x887F8C01, 0x88228C01),  # ldaxp stlxp of 32 bits
    ],
)
def test_each_size(load: int, store: int) -> None:
    assert inside(load, ADD, store) == [1, 2]


@pytest.mark.parametrize("word", [0xC8DFFC01, 0xC8A27C01, 0x48227C04, 0xF8220001, 0xC89FFC01])
def test_what_is_atomic_by_itself_begins_nothing_and_ends_nothing(word: int) -> None:
    """ldar, cas, casp, ldadd, stlr."""
    assert inside(word, ADD, STXR, RET) == []
    assert inside(LDXR, word, STXR) == [1, 2]


def test_what_is_forbidden_and_why() -> None:
    words = (LDXR, STXR, 0xD4210000, 0xD4200000, 0xD4000001, 0xD69F03E0, NOP, RET)  # brk #0x800, brk #0, svc, eret
    insns = AARCH64.decode(to_bytes(*words), START)
    found = AARCH64.forbidden({insn.address: insn for insn in insns})
    reasons = {1: Hazard.RESERVED, 2: Hazard.TRAP, 4: Hazard.SYSTEM, 5: Hazard.SYSTEM}
    assert found == {START + 4 * index: why for index, why in reasons.items()}


def test_pairs_of_the_kernel() -> None:
    """They are short, and every store is in one."""
    pairs = 0
    for code in random.Random(1).sample(functions(), samples(2_000)):
        insns = {insn.address: insn for insn in AARCH64.decode(code, START)}
        found = exclusives.reserved(insns)
        for address, load in found.items():
            assert abs(address - load.address) < 64, f"{address:#x} in the pair of {load.address:#x}"
        for insn in insns.values():
            if insn.text.startswith(("stxr", "stlxr", "stxp", "stlxp")):
                assert insn.address in found
                pairs += 1
    assert pairs > 20
