"""Instructions of real programs do under a probe what they do without one: emulated, or moved elsewhere."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from qemu.kernels import busybox
from tests.booted.conftest import FULL
from tests.guest.linux.arch.x86_64.user_windows import Windows, windows

WINDOWS = 16_000 if FULL else 600
PROGRAMS = {64: "amd64", 32: "i386" if FULL else "amd64"}
"""Of the shorter form's code for 64 bits most is code for 32 bits, too: another's."""


@pytest.mark.parametrize("bits", [64, 32])
def test_a_probed_instruction_does_what_it_does(bits: int) -> None:
    program = busybox(PROGRAMS[bits])
    chosen = random.Random(bits)
    judge = Windows(bits)
    for insn in islice(windows(program, "busybox", bits, chosen), WINDOWS):
        judge.compare(insn, chosen)
    found = judge.found
    assert sum(found.ways.values()) > 0.7 * WINDOWS, found
    assert min(found.ways["emulated"], found.ways["moved"]) > 0.1 * WINDOWS, found
