"""Branches and counts in bulk are those that are made one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE
from gdb_optprobe.isa.base import Code, OutOfReach, joined
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa, counting, with_own_pool
from gdb_optprobe.isa.x86_64 import X86_64

BASE = 0xFFFF_FFFF_8100_0000
DATA = {
    X86_64: BASE + (1 << 24),
    PPC64LE: 0xC000_0000_0200_0000,
    AARCH64: 0xFFFF_8000_0900_0000,
    AARCH64_LSE: 0xFFFF_8000_0900_0000,
    AARCH64.earlier[0]: 0xFFFF_8000_0900_0000,
}
TEXT = {
    X86_64: BASE,
    PPC64LE: 0xC000_0000_0010_0000,
    AARCH64: 0xFFFF_8000_0800_0000,
    AARCH64_LSE: 0xFFFF_8000_0800_0000,
    AARCH64.earlier[0]: 0xFFFF_8000_0800_0000,
}
FAR = 1 << 33
each_isa = pytest.mark.parametrize("isa", [X86_64, PPC64LE, AARCH64, AARCH64_LSE, *AARCH64.earlier])
PLACES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16)), max_size=20)


def with_branch(isa: Isa, count: Code, end: int) -> Code:
    return with_own_pool(isa, joined((count, lambda at: isa.branch(at, end))))


@each_isa
@given(places=PLACES)
def test_branches(isa: Isa, places: list[tuple[int, int]]) -> None:
    sources = [TEXT[isa] + 4 * one for one, _ in places]
    targets = [TEXT[isa] + 4 * other for _, other in places]
    assert isa.branches(sources, targets) == list(map(isa.branch, sources, targets))


@each_isa
@pytest.mark.parametrize("to", [FAR, -FAR])
def test_one_branch_too_far_is_an_error(isa: Isa, to: int) -> None:
    near = TEXT[isa]
    with pytest.raises(OutOfReach):
        isa.branches([near, near], [near + 64, near + to])


@each_isa
@pytest.mark.parametrize("flags", [False, True])
@given(ends=st.lists(st.integers(0, 1 << 16), min_size=1, max_size=20))
def test_counts(isa: Isa, flags: bool, ends: list[int]) -> None:
    """Each is the program that counts, what is moved, the branch back, and bytes that trap."""
    dead, at, step, moved = replace(isa.dead_at_entry(), flags=flags), TEXT[isa] + 0x10_0000, 64, b""
    counters = [DATA[isa] + 8 * number for number in range(len(ends))]
    back = [TEXT[isa] + 4 * end for end in ends]
    found = isa.counts(at, step, counters, back, dead, moved)
    assert len(found) == step * len(ends)
    for number, (counter, end) in enumerate(zip(counters, back, strict=True)):
        place, part = at + step * number, found[step * number :][:step]
        code = with_branch(isa, counting(isa, counter, dead), end)(place)
        padding = isa.breakpoint * ((step - len(code)) // len(isa.breakpoint))
        assert part == code + padding
