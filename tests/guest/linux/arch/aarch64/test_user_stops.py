"""What a trap's code does to be stopped: it comes back as if it had not been."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.guest.linux.arch.aarch64.user_stops import Stopping
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import FLAGS, GENERAL, LR, SP
from gdb_optprobe.isa.aarch64.fields import to_bytes, word_of
from tests.guest.linux.arch.aarch64.kernel_calls import BACK, CODE, STACK, Calls

PLACE = CODE + 0x100
RETURNS = 0xD65F_03C0
LOST = ("x1", "x16", "x17")


@pytest.mark.parametrize("number", [1, 4_000, 0x12_3456])
def test_it_comes_back_with_the_kernel_s_return_address(number: int) -> None:
    stopping, calls = Stopping(0, has_pan=False), Calls({})
    seen: list[int] = []
    code = stopping.call(number, PLACE)(CODE)
    assert len(code) <= PLACE - CODE - 4
    chosen = random.Random(number)
    before = {name: chosen.getrandbits(64) for name in GENERAL} | {LR: BACK, SP: STACK, FLAGS: 0}
    calls.uc.hook_add(4, lambda uc, at, *_: seen.append(at))  # each instruction
    after = calls.run(code + to_bytes(RETURNS), {PLACE: stopping.place}, before)
    assert seen.count(PLACE) == 1
    assert after["x1"] == number
    assert {name for name in (*GENERAL, SP) if after[name] != before[name]} <= {*LOST}


def test_a_stub_may_read_the_program_meanwhile() -> None:
    code = AARCH64.decode(Stopping(0, has_pan=True).call(1, PLACE)(CODE), CODE)
    words = [word_of(insn.data) for insn in code]
    (call,) = (at for at, insn in enumerate(code) if insn.target == PLACE)
    assert words[call - 2 : call] == [0xD538_4270, 0xD500_409F]  # mrs x16, pan; msr pan, #0
    assert words[call + 1] == 0xD518_4270  # msr pan, x16
