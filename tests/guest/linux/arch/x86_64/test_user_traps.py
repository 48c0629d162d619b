"""What a user's instruction does to saved registers, against the processor that runs it, in Unicorn."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.user_traps import REGISTERS, USER
from gdb_optprobe.isa.x86_64 import X86_64, abi
from tests.examples import samples

CODE, TEXT, STACK, FRAME, OURS, CALLER = (place << 20 for place in range(1, 7))
WRITABLE = CODE + 0x8000
SIZE = 0x10000
SEEDS = samples(6)
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*abi.GENERAL, "rip", "eflags")}
# stc; ret, and clc; ret: a stack that cannot be written, and one that can where it is.
FAILS, WORKS = b"\xf9\xc3", b"\xf8\xc3"


@dataclass(frozen=True)
class State:
    registers: dict[str, int]
    stack: bytes


def machine() -> Any:
    found: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for place in (CODE, TEXT, STACK, FRAME, OURS, CALLER):
        found.mem_map(place, SIZE)
    return found


def some(seed: int) -> State:
    chosen = random.Random(seed)
    registers = {name: chosen.choice((chosen.getrandbits(64), chosen.getrandbits(8), 0)) for name in abi.GENERAL}
    flags = 0x202 | chosen.getrandbits(12) & abi.ARITHMETIC_FLAGS
    registers |= {"rsp": STACK + 0x800 + 8 * chosen.randrange(64), "rip": TEXT + 0x100, "eflags": flags}
    return State(registers, chosen.randbytes(0x1000))


def plain(data: bytes, before: State) -> State:
    found = machine()
    found.mem_write(TEXT + 0x100, data)
    found.mem_write(STACK, before.stack)
    for name, value in before.registers.items():
        found.reg_write(NUMBERS[name], value)
    with contextlib.suppress(unicorn.UcError):  # a return to where nothing is
        found.emu_start(TEXT + 0x100, 0, count=1)
    return State(
        {name: found.reg_read(number) for name, number in NUMBERS.items()}, bytes(found.mem_read(STACK, 0x1000))
    )


def emulated(data: bytes, before: State, writable: bytes = WORKS) -> State | None:
    """None where it is not emulated, or could not be."""
    (insn,) = X86_64.decode(data, TEXT)
    found = USER.emulation(insn, 64, WRITABLE)
    if found is None:
        return None
    where = machine()
    code = found.code(CODE)
    saved = bytearray(168)
    for name, value in (before.registers | {"rip": TEXT + 0x101}).items():
        saved[REGISTERS[name] : REGISTERS[name] + 8] = value.to_bytes(8, "little")
    for place, some_bytes in ((CODE, code), (WRITABLE, writable), (STACK, before.stack), (FRAME, bytes(saved))):
        where.mem_write(place, some_bytes)
    where.mem_write(OURS + 0x800, CALLER.to_bytes(8, "little"))
    kept = {name: random.Random(name).getrandbits(64) for name in abi.CALLEE_SAVED} | {"rsp": OURS + 0x800}
    kept["rdi"] = FRAME
    for name, value in kept.items():
        where.reg_write(NUMBERS[name], value)
    ends: list[int] = []

    def end(_: object, address: int, *__: object) -> None:
        if address in (CALLER, CODE + len(code)):
            ends.append(address)
            where.emu_stop()

    where.hook_add(unicorn.UC_HOOK_CODE, end)
    where.emu_start(CODE, 0, count=300)
    kept["rsp"] += 8 * (ends == [CALLER])
    assert {name: where.reg_read(NUMBERS[name]) for name in kept} == kept
    after = bytes(where.mem_read(FRAME, len(saved)))
    stack = bytes(where.mem_read(STACK, 0x1000))
    if ends == [CODE + len(code)]:
        assert found.may_fail
        assert (after, stack) == (bytes(saved), before.stack)
        return None
    assert ends == [CALLER]
    return State({name: int.from_bytes(after[REGISTERS[name] :][:8], "little") for name in NUMBERS}, stack)


def without(state: State, undefined: int) -> State:
    flags = state.registers["eflags"] & ~undefined
    return State(state.registers | {"eflags": flags}, state.stack)


ALL = (
    "55", "4155", "53", "90", "6690", "f30f1efa", "f30f1efb", "0f1f00", "0f1f440000", "660f1f840000000000",
    "4883ec28", "4881ec00010000", "83ec08", "4883c408", "4889e5", "89fb", "4989f4", "4531c0", "31c0", "4885ff",
    "85c0", "4839d8", "39c3", "4883f805", "83f8ff", "4883e4f0", "4801c8", "4829d9", "4c21d1", "4c09ea", "4819c0",
    "4811d1", "4883d000", "83d905", "488d0510000000", "488d3dF0FFFFFF", "488d442408", "488d04bd00000000",
    "4c8d7c1d00", "8d0412", "8d4701", "488d6424f8", "4a8d04e510000000", "b801000000", "41bfffffffff",
    "48c7c0ffffffff", "41c7c501000000", "6a05", "6aff", "6800000080", "e810000000", "e8f0ffffff", "eb10", "ebf0",
    "e910020000", "c3", "c21000", "4803442408", "0307", "480fafc1",
)  # fmt: skip


@pytest.mark.parametrize("text", ALL)
def test_as_the_processor_does(text: str) -> None:
    data = bytes.fromhex(text)
    emulates = 0
    for seed in range(SEEDS):
        before = some(seed)
        after = emulated(data, before)
        if after is None:
            continue
        emulates += 1
        expected = plain(data, before)
        assert without(after, 0x2) == without(expected, 0x2)
    assert emulates == (0 if text in ("4803442408", "0307", "480fafc1") else SEEDS)


@pytest.mark.parametrize("condition", range(16))
@pytest.mark.parametrize("form", (b"\x70\x20", b"\x70\xe0", b"\x0f\x80\x00\x01\x00\x00"))
def test_jumps_on_conditions(condition: int, form: bytes) -> None:
    at = 1 if len(form) == 6 else 0
    data = form[:at] + bytes((form[at] + condition,)) + form[at + 1 :]
    for seed in range(SEEDS):
        before = some(seed)
        after, expected = emulated(data, before), plain(data, before)
        assert after is not None
        assert without(after, 2) == without(expected, 2)


@pytest.mark.parametrize("text", ("55", "6a05", "e810000000", "c3"))
def test_a_stack_that_is_not_there_leaves_all_as_it_was(text: str) -> None:
    assert emulated(bytes.fromhex(text), some(1), FAILS) is None
    assert emulated(bytes.fromhex(text), some(1)) is not None
