"""Tests of the layout of copies: most instructions move as they are, and are laid out by a shorter way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Insn, OutOfReach, Unrelocatable
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.relocation import Relocation
from gdb_optprobe.isa.x86_64 import X86_64

HERE = 0xFFFF_FFFF_8100_1230
THERE = HERE + 0x10_0000
BEYOND = HERE - (1 << 40)
X86 = ("90", "53", "4155", "0f1f4000", "b906000000", "31c0", "4889e5", "c3")
ARM = ("d503201f", "a9bf7bfd", "91000420", "f9400001", "d65f03c0", "d503233f")
PPC = ("60000000", "7c0802a6", "38600001", "fbe1fff8", "4e800020", "7c832378")


def layouts(isa: Isa) -> tuple[Relocation, Relocation]:
    """Return how `isa` lays copies out, and the same by the way that serves all."""
    found = isa.relocate.__self__  # type: ignore[attr-defined]
    assert isinstance(found, Relocation)
    return found, replace(found, moves_as_it_is=lambda _: False)


def insns(isa: Isa, words: Sequence[str]) -> list[Insn]:
    codes = [bytes.fromhex(word) for word in words]
    return isa.decode(b"".join(code if isa is X86_64 else code[::-1] for code in codes), HERE)


@pytest.mark.parametrize(
    ("isa", "words"),
    [(X86_64, X86), (PPC64LE, PPC), (AARCH64, ARM)],
    ids=lambda each: getattr(each, "name", ""),
)
def test_what_moves_as_it_is_is_laid_out_as_all_else(isa: Isa, words: Sequence[str]) -> None:
    short, long = layouts(isa)

    @given(st.lists(st.sampled_from(words), min_size=1, max_size=6), st.sets(st.integers(0, 5)))
    def check(some: list[str], probed: set[int]) -> None:
        moved = insns(isa, some)
        assert all(isa.moves_as_it_is(insn) for insn in moved)
        before = {moved[at].address: lambda to: isa.branch(to, HERE) for at in probed if at < len(moved)}
        assert short.relocate(moved, THERE, before) == long.relocate(moved, THERE, before)

    check()


def out_of_reach(_: int) -> bytes:
    raise OutOfReach(HERE, BEYOND)


@pytest.mark.parametrize("program", [None, out_of_reach], ids=["branch back", "program"])
def test_what_is_out_of_reach_is_refused_alike(program: Callable[[int], bytes] | None) -> None:
    moved = insns(X86_64, ("53", "4155"))
    before = {moved[1].address: program} if program is not None else {}
    refused = []
    for way in layouts(X86_64):
        with pytest.raises(Unrelocatable) as caught:
            way.relocate(moved, BEYOND, before)
        refused.append((caught.value.hazard, caught.value.insn))
    assert refused[0] == refused[1]
