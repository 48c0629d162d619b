"""Copies of programs' instructions: system calls too, and wherever the program is loaded."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.user_code import copied, decoded, is_landing_pad, reserved_in
from gdb_optprobe.isa.base import Hazard, Unrelocatable
from tests.examples import samples
from tests.isa.aarch64.test_relocator import random_words

AT, TO = 0x41_0234, 0x41_8000


@pytest.mark.parametrize("pie", [False, True])
def test_a_copy_is_that_of_the_kernels_code(pie: bool) -> None:
    for word in random_words(samples(300), 5):
        [insn] = decoded(word, AT, 64)
        try:
            found = AARCH64.relocate([insn], TO).data
        except Unrelocatable:
            continue
        assert copied(insn, TO, 64, pie) == found


def test_a_system_call_is_made_in_the_copy() -> None:
    [insn] = decoded(to_bytes(0xD4000001), AT, 64)
    assert copied(insn, TO, 64, True) == insn.data + AARCH64.branch(TO + 4, AT + 4)


@pytest.mark.parametrize("word", [0xD4000002, 0xD69F03E0, 0xD4200000])
def test_what_traps_or_is_the_kernels_is_refused(word: int) -> None:
    [insn] = decoded(to_bytes(word), AT, 64)
    with pytest.raises(Unrelocatable) as refusal:
        copied(insn, TO, 64, False)
    assert refusal.value.hazard in (Hazard.SYSTEM, Hazard.TRAP)


def test_where_a_trap_would_end_exclusive_access() -> None:
    insns = decoded(to_bytes(0xC85F7C01, 0x91000421, 0xC8027C01, 0x35FFFFA2), AT, 64)
    assert {*reserved_in(insns)} == {AT + 4, AT + 8}


def test_a_program_of_32_bits_is_not_decoded() -> None:
    assert decoded(random.Random(1).randbytes(64), AT, 32) == []


def test_landing_pads() -> None:
    """bti, bti c, bti j, bti jc, paciasp, pacibsp; not nop, paciaz, autiasp."""
    words = [0xD503_241F, 0xD503_245F, 0xD503_249F, 0xD503_24DF, 0xD503_233F, 0xD503_237F]
    others = [0xD503_201F, 0xD503_231F, 0xD503_23BF, 0xD503_225F]
    found = [insn for insn in decoded(to_bytes(*words, *others), AT, 64) if is_landing_pad(insn)]
    assert [insn.data for insn in found] == [to_bytes(word) for word in words]
