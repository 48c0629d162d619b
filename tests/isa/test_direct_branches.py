"""What is found among words without decoding them is what decoding finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64 import direct_branches as of_aarch64
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le import direct_branches as of_ppc64le
from gdb_optprobe.isa.record import Isa

START = 0xFFFF_8000_0801_0000
Finder = Callable[[bytes, int], Iterator[tuple[int, int]]]
FINDERS: list[tuple[Isa, Finder]] = [
    (AARCH64, of_aarch64.direct_branches),
    (PPC64LE, of_ppc64le.direct_branches),
]


@pytest.mark.parametrize(("isa", "find"), FINDERS, ids=lambda one: getattr(one, "name", ""))
@given(words=st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64))
def test_every_direct_branch_is_found(isa: Isa, find: Finder, words: list[int]) -> None:
    code = b"".join(word.to_bytes(4, "little") for word in words)
    found = dict(find(code, START))
    for at in range(0, len(code), 4):
        for insn in isa.decode(code[at : at + 4], START + at)[:1]:
            if insn.target is not None:
                assert found[insn.address] == insn.target, insn.text


@pytest.mark.parametrize(("isa", "find"), FINDERS, ids=lambda one: getattr(one, "name", ""))
@given(low=st.integers(0, (1 << 24) - 1), high=st.integers(0, 255))
def test_each_kind_of_branch_has_its_target(isa: Isa, find: Finder, low: int, high: int) -> None:
    code = (high << 24 | low).to_bytes(4, "little")
    insns = isa.decode(code, START)
    if insns and insns[0].target is not None:
        assert list(find(code, START)) == [(START, insns[0].target)]
