"""A caller's registers, before each instruction of functions that make their frames in every usual way."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import unicorn
from unicorn import arm64_const

from gdb_optprobe.guest.linux.arch.aarch64.frame_records import FrameRecords
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import FP, GENERAL, LR, PC, SP
from gdb_optprobe.isa.assemble import assemble

PAGE = 4096
TEXT, STACK = 0xFFFF_8000_0800_0000, 0xFFFF_8000_0901_0000
ENTRY = TEXT, TEXT + 0x100
START, CALLER = TEXT + 0x400, TEXT + 0x800
NUMBERS = {name: getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in (*GENERAL, SP, PC)}
SIGNATURE = 0x7FBF << 48
"""In place of the bits above an address, but for bit 55."""

FUNCTIONS = {
    "a pair is pushed": "stp x29, x30, [sp, #-64]!; mov x29, sp; stp x19, x20, [sp, #16]; mov x20, #1;"
    "ldp x19, x20, [sp, #16]; ldp x29, x30, [sp], #64; ret",
    "the record is in the middle": "sub sp, sp, #128; stp x29, x30, [sp, #32]; add x29, sp, #32; sub sp, sp, #64;"
    "mov x9, #2; sub sp, x29, #32; ldp x29, x30, [sp, #32]; add sp, sp, #128; ret",
    "of a size that varies": "stp x29, x30, [sp, #-32]!; mov x29, sp; mov x9, #48; sub sp, sp, x9; mov x10, #1;"
    "mov sp, x29; ldp x29, x30, [sp], #32; ret",
    "only where it calls": "cbnz x0, #12; mov x0, #1; ret; str x19, [sp, #-32]!; stp x29, x30, [sp, #16];"
    "add x29, sp, #16; ldp x29, x30, [sp, #16]; ldr x19, [sp], #32; ret",
    "none": "mov x9, x30; nop; sub sp, sp, #16; str x0, [sp]; add sp, sp, #16; ret",
}


def unwinder(source: str, read: Any) -> FrameRecords:
    code = assemble(source, "KS_ARCH_ARM64", "KS_MODE_LITTLE_ENDIAN")
    own = {insn.address: insn for insn in AARCH64.decode(code, START)}
    text: Any = SimpleNamespace(
        function=lambda at: SimpleNamespace(start=START, own=own) if START <= at < START + len(code) else None
    )
    return FrameRecords((TEXT, TEXT + PAGE), (0, 0), ENTRY, 0x130, text, read)


def states(source: str, argument: int) -> Iterator[tuple[dict[str, int], FrameRecords]]:
    """The registers before each instruction that is executed."""
    code = assemble(source, "KS_ARCH_ARM64", "KS_MODE_LITTLE_ENDIAN")
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    uc.mem_map(TEXT, PAGE)
    uc.mem_map(STACK - PAGE, 2 * PAGE)
    uc.mem_write(START, code)
    found = unwinder(source, lambda address, size: bytes(uc.mem_read(address, size)))
    values = {name: 0x1000 + number for number, name in enumerate(GENERAL)}
    values |= {"x0": argument, FP: STACK + 0x100, LR: CALLER, SP: STACK, PC: START}
    for name, value in values.items():
        uc.reg_write(NUMBERS[name], value)
    while values[PC] != CALLER:
        yield values, found
        uc.emu_start(values[PC], 0, count=1)
        values = {name: uc.reg_read(number) for name, number in NUMBERS.items()}


@pytest.mark.parametrize("argument", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_caller_is_found_before_each_instruction(name: str, argument: int) -> None:
    seen = 0
    for registers, found in states(FUNCTIONS[name], argument):
        caller = found.caller(registers, True)
        assert caller is not None, hex(registers[PC] - START)
        wanted = {PC: CALLER, FP: STACK + 0x100}
        if name != "of a size that varies" or found.frame(registers[PC]).record is not None:
            wanted[SP] = STACK
        assert {key: caller[0][key] for key in wanted} == wanted, hex(registers[PC] - START)
        assert not caller[1]
        seen += 1
    assert seen >= 3


@pytest.mark.parametrize("signed", [CALLER, CALLER & ~(0xFF7F << 48) | SIGNATURE])
def test_an_outer_frame_is_that_of_the_call(signed: int) -> None:
    words = {STACK: STACK + 0x100, STACK + 8: signed}

    def read(address: int, size: int) -> bytes:
        return b"".join(words[at].to_bytes(8, "little") for at in range(address, address + size, 8))

    found = unwinder("stp x29, x30, [sp, #-64]!; mov x29, sp; bl #0x100; ldp x29, x30, [sp], #64; ret", read)
    registers = dict.fromkeys(GENERAL, 0) | {FP: STACK, SP: STACK - 0x40, PC: START + 12}
    caller = found.caller(registers, False)
    assert caller is not None
    assert (caller[0][PC], caller[0][SP], caller[0][FP]) == (CALLER, STACK + 64, STACK + 0x100)


@pytest.mark.parametrize(("mode", "wanted"), [(5, 0x1234_5678), (0, None)])
def test_an_exception_leads_to_what_it_has_interrupted(mode: int, wanted: int | None) -> None:
    words = {STACK + 8 * number: number for number in range(31)}
    words |= {STACK + 0xF8: STACK + 0x200, STACK + 0x100: 0x1234_5678, STACK + 0x108: mode}

    def read(address: int, size: int) -> bytes:
        return b"".join(words[at].to_bytes(8, "little") for at in range(address, address + size, 8))

    registers = dict.fromkeys(GENERAL, 0) | {FP: STACK + 0x130, SP: STACK, PC: ENTRY[0] + 8}
    caller = unwinder("ret", read).caller(registers, False)
    if wanted is None:
        assert caller is None
        return
    assert caller is not None and caller[1]
    assert (caller[0][PC], caller[0][SP], caller[0]["x7"]) == (wanted, STACK + 0x200, 7)
