"""Emulated instructions against the same in Unicorn, from random states."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.isa.base import Effects
from gdb_optprobe.isa.x86_64 import X86_64, abi
from tests.examples import examples, samples

from .differential import DATA, STACK, Outcome, contents, execute, random_state

HERE = 0xFFFF_FFFF_8100_1230


def read(address: int, size: int) -> bytes:
    # The last page is followed by the first.
    pages = contents(address & ~0xFFF) + contents((address & ~0xFFF) + 0x1000 & (1 << 64) - 1)
    return pages[address & 0xFFF : (address & 0xFFF) + size]


def run(data: bytes, state: dict[str, int]) -> Outcome:
    inside = [(HERE, HERE + 1)]  # one instruction, even a branch to itself
    return execute({HERE: data}, HERE, inside, {HERE: (HERE,)}, state, again=None)


def assert_emulated(data: str, **fixed: int) -> None:
    (insn,) = X86_64.decode(bytes.fromhex(data), HERE)
    for seed in range(samples(12)):
        state = random_state(random.Random(seed)) | fixed
        registers = {name: value for name, value in state.items() if not name.startswith("xmm")}
        effects = X86_64.emulate(insn, registers | {"rip": HERE}, read)
        assert effects is not None
        assert_same(effects, registers, run(insn.data, state))


def assert_same(effects: Effects, before: dict[str, int], after: Outcome) -> None:
    assert not after.fault
    assert effects.registers["rip"] == after.reached
    for name in (*abi.GENERAL, "eflags"):
        assert effects.registers.get(name, before[name]) == after.registers[name], name
    memory = {page: bytearray(contents(page)) for page in after.memory}
    for address, data in effects.writes:
        for offset, byte in enumerate(data):
            page = (address + offset) & ~0xFFF
            memory.setdefault(page, bytearray(contents(page)))[(address + offset) & 0xFFF] = byte
    assert {page: bytes(data) for page, data in memory.items()} == dict(after.memory)


@pytest.mark.parametrize("register", range(8))
@pytest.mark.parametrize("prefix", ["", "41"])
def test_push_and_pop_of_each_register(prefix: str, register: int) -> None:
    assert_emulated(prefix + f"{0x50 + register:02x}")
    assert_emulated(prefix + f"{0x58 + register:02x}")


@pytest.mark.parametrize(
    "data", ["6a80", "6a7f", "68000000 80", "68ffffff7f", "ff3424", "ff742408", "ff30", "9c", "c9"]
)
def test_the_stack(data: str) -> None:
    assert_emulated(data, rax=DATA, rbp=STACK + 64)


@pytest.mark.parametrize("data", ["90", "0f1f440000", "6690", "f30f1efa"])
def test_nothing(data: str) -> None:
    assert_emulated(data)


@pytest.mark.parametrize("condition", range(16))
def test_jcc(condition: int) -> None:
    assert_emulated(f"{0x70 + condition:02x}40")
    assert_emulated(f"0f{0x80 + condition:02x}40100000")


@pytest.mark.parametrize("rcx", [0, 1, 2, 3, 1 << 32, (1 << 32) + 1, (1 << 64) - 1])
@pytest.mark.parametrize("data", ["e040", "e140", "e240", "e340", "67e040", "67e140", "67e240", "67e340"])
def test_loop_decrements_before_it_tests(data: str, rcx: int) -> None:
    assert_emulated(data, rcx=rcx)


@pytest.mark.parametrize(
    "data", ["eb40", "ebf0", "e900100000", "e800100000", "e8f0ffffff", "2ee800100000", "c3", "c20800"]
)
def test_direct_branches_calls_and_returns(data: str) -> None:
    assert_emulated(data)


@pytest.mark.parametrize(
    "data",
    [
        "ffe0",
        "41ffe5",
        "ffd0",
        "ffd4",
        "41ffd3",
        "ff10",
        "ff60f8",
        "ff1424",
        "ff542410",
        "ff14d8",
        "ff2500100000",
        "ff1500100000",
    ],
)
def test_indirect_branches_and_calls(data: str) -> None:
    assert_emulated(data, rax=DATA, rbx=3)


@pytest.mark.parametrize(
    "data",
    [
        "4889d8",
        "89d8",
        "4d8bf8",
        "418bc0",
        "4889e5",
        "b878563412",
        "49bb8877665544332211",
        "48c7c0000000 80",
        "c7c000000080",
    ],
)
def test_moves(data: str) -> None:
    assert_emulated(data)


@pytest.mark.parametrize(
    "data",
    [
        "488d0500100000", "8d4308", "488d44d810", "4a8d04c500000080", "488d442408", "4c8d6424f0", "418d4500", 
        "678d4308", "67488d44d810", "488d0425000000 80",
    ],
)  # fmt: skip
def test_lea(data: str) -> None:
    assert_emulated(data)


@pytest.mark.parametrize("extension", ["c0", "e8", "f8"], ids=["add", "sub", "cmp"])
@pytest.mark.parametrize("opcode", ["83{}01", "83{}80", "4883{}08", "4883{}ff", "4881{}00000080", "81{}ffffff7f"])
def test_add_sub_cmp_of_an_immediate(opcode: str, extension: str) -> None:
    assert_emulated(opcode.format(extension))
    assert_emulated(opcode.format(extension), rax=0x8000_0000_0000_0000)
    assert_emulated(opcode.format(extension), rax=0x7FFF_FFFF)


@pytest.mark.parametrize(
    "data",
    [
        "f3aa",
        "488b07",
        "4889 07",
        "0f05",
        "cc",
        "0f0b",
        "48cf",
        "ff28",
        "6650",
        "66c3",
        "9d",
        "f4",
        "31c0",
        "480fafc3",
        "41 90",
        "f390",
    ],
)
def test_not_emulated(data: str) -> None:
    (insn,) = X86_64.decode(bytes.fromhex(data), HERE)
    known = (*abi.REGISTERS, *abi.SEGMENT_BASES.values())
    assert X86_64.emulate(insn, dict.fromkeys(known, 0), read) is None


def test_segment_bases() -> None:
    (insn,) = X86_64.decode(bytes.fromhex("65ff142500010000"), HERE)  # call *%gs:0x100
    registers = dict.fromkeys(abi.REGISTERS, 0) | {"rsp": STACK}
    assert X86_64.emulate(insn, registers, read) is None
    effects = X86_64.emulate(insn, registers | {"gs_base": DATA}, read)
    assert effects is not None and effects.registers["rip"] == int.from_bytes(read(DATA + 0x100, 8), "little")


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from([b"", b"\x48", b"\x41", b"\x4f", b"\x67", b"\x2e", b"\xf3"]),
    st.sampled_from(
        [
            *range(0x50, 0x62),
            0x68,
            0x6A,
            *range(0x70, 0x84),
            0x89,
            0x8B,
            0x8D,
            0x90,
            *range(0xB8, 0xCA),
            *range(0xE0, 0xEC),
            0xFF,
        ]
    ),
    st.binary(min_size=10, max_size=10),
    st.integers(0, 1 << 32),
)
def test_whatever_is_emulated_is_exact(prefix: bytes, opcode: int, rest: bytes, seed: int) -> None:
    insns = X86_64.decode(prefix + bytes((opcode,)) + rest, HERE)
    if not insns:
        return
    if insns[0].data[-3:-2] == b"\xc2" and insns[0].data[-1] & 0x80:  # Unicorn sign-extends imm16; processors do not
        return
    state = random_state(random.Random(seed))
    registers = {name: value for name, value in state.items() if not name.startswith("xmm")}
    effects = X86_64.emulate(insns[0], registers, read)
    if effects is None:
        return
    touched = [address for address, _ in effects.writes] + [effects.registers["rip"]]
    if any(HERE - 0x2000 < address < HERE + 0x2000 for address in touched[:-1]):
        return
    assert_same(effects, registers, run(insns[0].data, state))
