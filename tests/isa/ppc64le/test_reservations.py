"""Where nothing may run between a load-and-reserve and its store-conditional."""

from __future__ import annotations

import random

from gdb_optprobe.isa.base import Hazard
from gdb_optprobe.isa.ppc64le import PPC64LE, reservations
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from tests.examples import samples

from .kernel import kernel

START = 0xC000_0000_0010_0000
LDARX, ADD, STDCX, AGAIN = 0x7D2018A8, 0x7D244A14, 0x7D2019AD, 0x40C2FFF4
CMPD, BLR, NOP = 0x7C292000, 0x4E800020, 0x60000000


def inside(*words: int) -> list[int]:
    """Which words are, by index."""
    insns = PPC64LE.decode(to_bytes(*words), START)
    found = reservations.reserved({insn.address: insn for insn in insns})
    assert all(load.text.split()[0] in ("ldarx", "lwarx") for load in found.values())
    return sorted((address - START) // 4 for address in found)


def test_from_behind_the_load_to_the_store() -> None:
    assert inside(NOP, LDARX, ADD, STDCX, AGAIN, BLR) == [2, 3]


def test_the_way_out_is_outside() -> None:
    """cmpxchg: a comparison that fails leaves without a store."""
    assert inside(LDARX, CMPD, 0x40820010, STDCX, 0x40C2FFF0, NOP, BLR) == [1, 2, 3]


def test_a_load_without_a_store() -> None:
    assert inside(LDARX, ADD, BLR, NOP) == []


def test_a_second_load_begins_another() -> None:
    assert inside(LDARX, ADD, LDARX, STDCX, BLR) == [3]


def test_a_store_elsewhere_in_the_function() -> None:
    assert inside(LDARX, 0x4800000C, NOP, BLR, ADD, STDCX, BLR) == [1, 4, 5]


def test_no_end_in_a_call() -> None:
    assert inside(LDARX, 0x48000101, STDCX, BLR) == []


def test_pairs_of_the_kernel() -> None:
    """They are short, and every store is in one."""
    found, rng, pairs = kernel(), random.Random(1), 0
    chosen = rng.sample(found.functions, samples(3_000))
    for start, size in chosen:
        code = found.function(start, size)
        reserved = reservations.reserved(code)
        for address, load in reserved.items():
            assert abs(address - load.address) < 200, f"{address:#x} in the pair of {load.address:#x}"
        stores = [i for i in code.values() if i.text.startswith(("stwcx.", "stdcx.", "sthcx.", "stbcx."))]
        assert all(store.address in reserved for store in stores)
        pairs += len(stores)
    assert pairs > len(chosen) // 15


def test_what_is_forbidden_and_why() -> None:
    """Traps on a condition too; a breakpoint may be somebody's."""
    words = (0x44000002, 0x7C000164, 0x4C000024, 0x7C832008, 0x0FE00000, 0x7FE00008, LDARX, ADD, STDCX, AGAIN, BLR)
    code = {insn.address: insn for insn in PPC64LE.decode(to_bytes(*words), START)}
    found = {(address - START) // 4: hazard for address, hazard in PPC64LE.forbidden(code).items()}
    assert found == {
        **dict.fromkeys((0, 1, 2), Hazard.SYSTEM),
        **dict.fromkeys((3, 4), Hazard.TRAP),
        **dict.fromkeys((7, 8), Hazard.RESERVED),
    }
