"""Traps of programs on Unicorn: what is ours, what is the kernel's, and what the instruction under one does."""

from __future__ import annotations

import random
import struct

import pytest
from unicorn import arm64_const

from gdb_optprobe.guest.linux.arch.aarch64.user_stops import Stopping
from gdb_optprobe.guest.linux.arch.aarch64.user_traps import REGISTERS, SCRATCH, ArmUser
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import CALLEE_SAVED, GENERAL, LR, PC, SP
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.codegen import EntryState
from tests.guest.linux.arch.aarch64.kernel_calls import BACK, CODE, DATA, KERNEL, STACK, Calls

FRAME, AT = DATA + 0x1000, 0x40_1000
USER = ArmUser(KERNEL, Stopping(0, has_pan=False))
ESR = (5, 2, 3, 0, 0)  # by crn, crm, op0, op1, op2
NOP, BL, B = 0xD503_201F, 0x9400_0040, 0x17FF_FFF0


def ran(code: bytes, syndrome: int = 0) -> tuple[list[int], Calls]:
    """The saved registers and PC after code at a trap, and the calls of the kernel's handler."""
    rng = random.Random(1)
    saved = [rng.getrandbits(64) for _ in range(34)]
    saved[REGISTERS[PC] // 8] = AT
    before = {name: rng.getrandbits(64) for name in GENERAL} | {"x0": FRAME, LR: BACK, SP: STACK}
    calls = Calls({KERNEL: lambda *_: 0})
    calls.uc.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (*ESR, syndrome))
    left = calls.run(code, {FRAME: struct.pack("<34Q", *saved)}, before)
    kept = {name for name in CALLEE_SAVED if name != "sp"}
    assert {name: left[name] for name in kept} == {name: before[name] for name in kept}
    assert [found[0] for _, found in calls.notes] in ([], [FRAME])
    after = list(struct.unpack("<34Q", calls.uc.mem_read(FRAME, 34 * 8)))
    changed = {number: value for number, value in enumerate(after) if value != saved[number]}
    return [changed.get(REGISTERS[name] // 8, 0) for name in (PC, LR)], calls


@pytest.mark.parametrize(("syndrome", "is_ours"), [(0, True), (0x0200_0000, True), (0x5600_0000, False)])
def test_only_undefined_instructions_are_looked_at(syndrome: int, is_ours: bool) -> None:
    """A system call has the class 0x15."""
    emit = USER.emitter(EntryState(USER.scratch, frozenset((USER.frame,))))
    emit.begin()
    emit.back()
    _, calls = ran(emit.finish(CODE), syndrome)
    assert [at for at, _ in calls.notes] == ([] if is_ours else [KERNEL])


@pytest.mark.parametrize(
    ("word", "pc", "link"), [(NOP, AT + 4, 0), (BL, AT + 0x100, AT + 4), (B, AT - 0x40, 0)]
)
def test_an_instruction_is_emulated_wherever_the_program_is(word: int, pc: int, link: int) -> None:
    (insn,) = AARCH64.decode(to_bytes(word), AT)
    made = USER.emulation(insn, 64, 0)
    assert made is not None and not made.may_fail
    assert ran(made.code(CODE))[0] == [pc, link]


def test_the_saved_pc_can_be_moved_far() -> None:
    assert ran(USER.moved(0x123_4564)(CODE))[0] == [AT + 0x123_4564, 0]


def test_the_trap_is_no_instruction_and_its_code_changes_what_a_function_may() -> None:
    assert USER.trap == AARCH64.trap and USER.frame not in SCRATCH
    assert USER.scratch.registers.isdisjoint({LR, *CALLEE_SAVED})
    assert not USER.decode(to_bytes(NOP), AT, 32), "AArch32 is not read"
