"""Copies of instructions do elsewhere what these do where they are, and where a program is loaded anywhere too."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.user_traps import USER
from gdb_optprobe.isa.base import Flow, Hazard, Unrelocatable
from gdb_optprobe.isa.x86_64 import abi
from tests.examples import samples
from tests.guest.linux.arch.x86_64 import user_windows
from tests.guest.linux.arch.x86_64.user_windows import Windows

TEXT, COPY, DATA = 0x10_0000, 0x18_0000, 0x20_0000
MODES = {64: unicorn.UC_MODE_64, 32: unicorn.UC_MODE_32}
NAMES = {64: (*abi.GENERAL, "rip", "eflags"), 32: (*(f"e{name[1:]}" for name in abi.GENERAL[:8]), "eip", "eflags")}
AT = TEXT + 0x800
CODE = {
    64: ("8b442408", "48034718", "e810000000", "ff5708", "ffd0", "488d0510000000", "0fb60511000000", "c3", "5d",
         "ff2510000000", "c5f877"),
    32: ("55", "89e5", "83ec10", "8b442408", "e810000000", "ffd0", "c3", "5d", "0fa2", "ff6008", "0fb60500402000"),
}  # fmt: skip


def ran(bits: int, at: int, code: bytes, shift: int, seed: int, steps: int) -> dict[str, int]:
    """All registers once execution has left the code, and the stack's top."""
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, MODES[bits])
    machine.mem_map(TEXT + shift, 0x10_0000)
    machine.mem_map(DATA, 0x1_0000)
    machine.mem_write(DATA, random.Random(seed).randbytes(0x1_0000))
    machine.mem_write(at, code)
    chosen = random.Random(seed)
    numbers = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in NAMES[bits]}
    for number in numbers.values():
        machine.reg_write(number, DATA + 0x4000 + 8 * chosen.randrange(0x100))
    machine.reg_write(numbers["eflags"], 0x202 | chosen.getrandbits(8) & abi.ARITHMETIC_FLAGS)
    with contextlib.suppress(unicorn.UcError):
        machine.emu_start(at, AT + shift + len(code), count=steps)
    found = {name: machine.reg_read(number) for name, number in numbers.items()}
    top = machine.mem_read(found["rsp" if bits == 64 else "esp"], bits // 8)
    return found | {"top": int.from_bytes(top, "little")}


@pytest.mark.parametrize(("bits", "text"), [(bits, text) for bits, some in CODE.items() for text in some])
@pytest.mark.parametrize("pie", [False, True])
def test_a_copy_does_the_same(bits: int, text: str, pie: bool) -> None:
    (insn,) = USER.decode(bytes.fromhex(text), AT, bits)
    try:
        copy = USER.copy(insn, COPY, bits, pie)
    except Unrelocatable:
        assert pie and insn.flow in (Flow.CALL, Flow.INDIRECT_CALL)
        return
    steps = len(USER.decode(copy, COPY, bits))
    for seed in range(samples(4)):
        for shift in (0, 0x400_0000) if pie else (0,):
            assert ran(bits, COPY + shift, copy, shift, seed, steps) == ran(bits, AT + shift, insn.data, shift, seed, 1)


@pytest.mark.parametrize("bits", [64, 32])
def test_system_calls_go_on_behind(bits: int) -> None:
    """And what traps has no copy."""
    entering = {64: b"\x0f\x05", 32: b"\xcd\x80"}[bits]
    (insn,) = USER.decode(entering, AT, bits)
    assert USER.copy(insn, COPY, bits, True)[:2] == entering
    for data in (b"\xcc", b"\x0f\x0b"):
        (insn,) = USER.decode(data, AT, bits)
        with pytest.raises(Unrelocatable):
            USER.copy(insn, COPY, bits, False)


@pytest.mark.parametrize("text", ["e210", "e0f0", "e310", "c7f810000000"])
def test_a_branch_of_32_bits_that_is_not_emulated_has_no_copy(text: str) -> None:
    """loop, loopne, jecxz, xbegin: they lead to a distance from where they are."""
    (insn,) = USER.decode(bytes.fromhex(text), AT, 32)
    with pytest.raises(Unrelocatable):
        USER.copy(insn, COPY, 32, False)


def refused(text: str, bits: int = 32, at: int = AT) -> Hazard | None:
    (insn,) = USER.decode(bytes.fromhex(text), at, bits)
    try:
        USER.copy(insn, COPY, bits, False)
    except Unrelocatable as why:
        return why.hazard
    return None


ABSOLUTE = ("a1{}", "a3{}", "8b0d{}", "890d{}", "ff25{}", "ff35{}", "8b0c25{}", "c705{}00000000")


@pytest.mark.parametrize("opcode", ABSOLUTE)
def test_an_absolute_operand_of_32_bits_in_the_trap_is_the_trap(opcode: str) -> None:
    size = len(bytes.fromhex(opcode.format("00000000")))
    for offset in range(-6, size + 3):
        text = opcode.format((AT + offset).to_bytes(4, "little").hex())
        expected = Hazard.READS_ITS_ADDRESS if -4 < offset < size else None
        assert refused(text) is expected, offset


@pytest.mark.parametrize("text", ["488b05f5ffffff", "488905f5ffffff", "ff35f6ffffff", "488b0425fc071000"])
def test_an_operand_of_64_bits_that_ends_in_the_trap_is_the_trap(text: str) -> None:
    assert refused(text, 64) is Hazard.READS_ITS_ADDRESS


PREFIXES = ("", "66", "67", "6667", "f2", "f3", "3e", "2e", "65", "66f2", "663e", "f0")
FLOWS = (
    "e802000000", "e80200", "ffd0", "ffd4", "ff10", "ff542408", "c3", "c20800", "ffe0", "ff20", "eb02", "7402",
    "e902000000", "0f8402000000", "e202", "e302", "06", "07", "0fa0", "6a05", "6805000000", "50", "5c", "58", "9c",
    "60", "61", "c9", "c8100000", "8f00", "ff30", "54",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("text", FLOWS)
def test_a_prefix_on_what_branches_or_pushes_in_32_bits_is_kept_or_refused(prefix: str, text: str) -> None:
    """66 on a call takes 16 bits of its target, and pushes 16."""
    found = USER.decode(bytes.fromhex(prefix + text), user_windows.TEXT + 0x100, 32)
    judge, chosen = Windows(32), random.Random(prefix + text)
    for _ in range(4 if found else 0):
        judge.compare(found[0], chosen)


@pytest.mark.parametrize("text", ["66ffd0", "66e80200", "6667ffd0", "66f2ffd0", "66e90200", "66ff10"])
def test_a_call_of_16_bits_is_refused(text: str) -> None:
    assert refused(text) is Hazard.NOT_SUPPORTED
