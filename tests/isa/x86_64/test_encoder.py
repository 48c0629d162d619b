"""What we encode is what capstone reads: every register in every place, every size, every kind of address."""

from __future__ import annotations

from itertools import product

import capstone
import pytest
from capstone import x86

from gdb_optprobe.isa.codegen import Address, Label
from gdb_optprobe.isa.x86_64.abi import GENERAL
from gdb_optprobe.isa.x86_64.branch_relaxation import Item, LabelBranch, encode_items
from gdb_optprobe.isa.x86_64.encoder import LOCK, instruction

ENGINE = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
ENGINE.detail = True
MOV = {1: b"\x8a", 2: b"\x8b", 4: b"\x8b", 8: b"\x8b"}  # register, r/m
_BYTES = {"rax": "al", "rcx": "cl", "rdx": "dl", "rbx": "bl", "rsp": "spl", "rbp": "bpl", "rsi": "sil", "rdi": "dil"}


def part(register: str, size: int) -> str:
    """The name of its lowest bytes."""
    if register[1:].isdigit():
        return register + {1: "b", 2: "w", 4: "d", 8: ""}[size]
    return {1: _BYTES[register], 2: register[1:], 4: "e" + register[1:], 8: register}[size]


def decoded(data: bytes) -> capstone.CsInsn:
    (insn,) = ENGINE.disasm(data, 0)
    assert insn.size == len(data)
    return insn


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_registers(size: int) -> None:
    for one, other in product(GENERAL, GENERAL):
        insn = decoded(instruction(MOV[size], one, other, size))
        assert (insn.mnemonic, insn.op_str) == ("mov", f"{part(one, size)}, {part(other, size)}")


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("per_cpu", [False, True])
def test_addresses(size: int, per_cpu: bool) -> None:
    indices = [None, *(name for name in GENERAL if name != "rsp")]
    for base, index, offset in product(
        (None, *GENERAL), indices, (0, 1, -128, 127, 128, -129, 0x7FFF_FFFF, -(1 << 31))
    ):
        insn = decoded(instruction(MOV[size], "r9", Address(base, offset, index, per_cpu), size))
        to, memory = insn.operands
        assert insn.reg_name(to.reg) == part("r9", size) and memory.size == size
        names = [insn.reg_name(register) for register in (memory.mem.base, memory.mem.index)]
        assert names == [base, index] and memory.mem.disp == offset
        assert index is None or memory.mem.scale == 8
        assert memory.mem.segment == (x86.X86_REG_GS if per_cpu else x86.X86_REG_INVALID)


def test_high_addresses_are_named_as_they_are() -> None:
    insn = decoded(instruction(b"\xff", 0, Address(None, 0xFFFF_FFFF_9200_0008), prefix=LOCK))
    assert (insn.mnemonic, insn.op_str) == ("lock inc", "qword ptr [0xffffffff92000008]")
    with pytest.raises(ValueError, match="no such address"):
        instruction(b"\xff", 0, Address(None, 0xFFFF_8880_0000_0000))


@pytest.mark.parametrize("condition", [None, 4])
@pytest.mark.parametrize("between", [0, 1, 126, 127, 128, 129, 40_000])
def test_a_jump_is_as_short_as_it_can_be_and_arrives(condition: int | None, between: int) -> None:
    start, end = Label(), Label()
    filler: list[Item] = [b"\x90"] * between
    forward = encode_items([LabelBranch(condition, end), *filler, end])
    backward = encode_items([start, *filler, LabelBranch(condition, start)])
    (jump,) = ENGINE.disasm(forward, 0x1000, 1)
    assert jump.operands[0].imm == 0x1000 + len(forward)
    assert (jump.size == 2) is (between <= 127)
    (jump,) = ENGINE.disasm(backward[between:], 0x1000 + between)
    assert jump.operands[0].imm == 0x1000
    assert (jump.size == 2) is (between + 2 <= 128)
    assert jump.mnemonic == ("jmp" if condition is None else "je")
