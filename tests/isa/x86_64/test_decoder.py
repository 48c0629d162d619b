"""Lengths, flows, targets and the places of operands, against iced-x86."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.decoder import LONGEST, PIECE, UNKNOWN_TO_CAPSTONE
from tests.examples import examples

from .second_opinion import agrees_with_iced

HERE = 0xFFFF_FFFF_8100_0000


@pytest.mark.parametrize(
    "data, flow, target",
    [
        ("4889d8", Flow.NEXT, None),
        ("f30f1efa", Flow.NEXT, None),  # endbr64
        ("f4", Flow.NEXT, None),  # hlt
        ("0f01ca", Flow.NEXT, None),  # clac
        ("eb10", Flow.JUMP, 0x12),
        ("e910000000", Flow.JUMP, 0x15),
        ("7510", Flow.BRANCH, 0x12),
        ("48e210", Flow.BRANCH, 0x13),
        ("67e310", Flow.BRANCH, 0x13),
        ("0f8510000000", Flow.BRANCH, 0x16),
        ("c7f810000000", Flow.BRANCH, 0x16),  # xbegin
        ("2ee810000000", Flow.CALL, 0x16),
        ("ffd0", Flow.INDIRECT_CALL, None),
        ("41ff1424", Flow.INDIRECT_CALL, None),
        ("3effe0", Flow.INDIRECT_JUMP, None),
        ("f3c3", Flow.RETURN, None),
        ("c20800", Flow.RETURN, None),
        ("48cb", Flow.SYSTEM, None),
        ("48cf", Flow.SYSTEM, None),
        ("480f07", Flow.SYSTEM, None),
        ("f30f01ca", Flow.SYSTEM, None),  # erets, which capstone calls clac
        ("cc", Flow.TRAP, None),
        ("0f0b", Flow.TRAP, None),
        ("0fb9c0", Flow.TRAP, None),
    ],
)
def test_flow_and_target(data: str, flow: Flow, target: int | None) -> None:
    insn, *rest = X86_64.decode(bytes.fromhex(data), HERE)
    assert not rest and insn.flow is flow
    assert insn.target == (None if target is None else HERE + target)


def test_target_below_and_across_the_top() -> None:
    assert X86_64.decode(b"\xeb\xfe", HERE)[0].target == HERE
    assert X86_64.decode(b"\xe9\x00\x00\x00\x10", 0xFFFF_FFFF_F800_0000)[0].target == 0x0800_0005


def test_text_is_att_with_addresses_as_gdb_writes_them() -> None:
    text = [insn.text for insn in X86_64.decode(bytes.fromhex("48c7c000000080 e800000000 0f1f440000"), HERE)]
    assert text == ["movq $0xffffffff80000000, %rax", f"callq {HERE + 12:#x}", "nopl (%rax, %rax)"]


def test_sweep_ends_before_what_is_no_instruction_or_is_cut() -> None:
    assert [insn.size for insn in X86_64.decode(b"\x90\x06\x90", HERE)] == [1]
    assert [insn.size for insn in X86_64.decode(b"\x90\xe8\x00\x00", HERE)] == [1]
    assert X86_64.decode(b"", HERE) == []


@pytest.mark.parametrize("data", UNKNOWN_TO_CAPSTONE)
def test_instructions_that_capstone_does_not_know(data: bytes) -> None:
    insns = X86_64.decode(b"\x90" + data + b"\x90", HERE)
    assert [insn.size for insn in insns] == [1, len(data), 1]


@pytest.mark.parametrize("data", ["0fb9cc", "670fb94010", "670fb9801002f4ff", "480fb90425cccccccc"])
def test_operands_of_ud1_belong_to_it(data: str) -> None:
    code = bytes.fromhex(data)
    insns = X86_64.decode(b"\x90" + code + b"\xf4", HERE)
    assert [insn.size for insn in insns] == [1, len(code), 1]
    assert insns[1].flow is Flow.TRAP
    assert len(X86_64.decode(b"\x90" + code[:-1], HERE)) == 1


def test_collector_of_cycles_is_as_it_was() -> None:
    X86_64.decode(b"\x90", HERE)
    assert gc.isenabled()
    gc.disable()
    try:
        X86_64.decode(b"\x90", HERE)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pieces_meet() -> None:
    data = bytes.fromhex("48b8112233445566778848ff05112233440f84001020300f1f440000") * (2 * PIECE // 26 + 3)
    insns = X86_64.decode(data, HERE)
    assert insns[-1].end == HERE + len(data) and len(data) > 2 * PIECE + LONGEST
    assert all(here.end == there.address for here, there in pairwise(insns))
    assert b"".join(insn.data for insn in insns) == data


@settings(max_examples=examples(1500), deadline=None)
@given(st.binary(min_size=15, max_size=15))
def test_any_bytes(data: bytes) -> None:
    agrees_with_iced(data)


@settings(max_examples=examples(1500), deadline=None)
@given(
    st.lists(st.sampled_from([b"\x66", b"\x67", b"\xf2", b"\xf3", b"\x2e", b"\x65", b"\xf0"]), max_size=2),
    st.sampled_from(
        [b"", b"\x48", b"\x41", b"\x0f", b"\x48\x0f", b"\x0f\x38", b"\x0f\x3a", b"\xff", b"\xc5\xf8", b"\xc4\xe2\x79"]
    ),
    st.binary(min_size=12, max_size=12),
)
def test_any_opcode_behind_any_prefix(prefixes: list[bytes], escape: bytes, rest: bytes) -> None:
    agrees_with_iced(b"".join(prefixes) + escape + rest)


def test_every_opcode_of_the_two_maps() -> None:
    rng = random.Random(1)
    for escape in (b"", b"\x0f", b"\x48", b"\x48\x0f"):
        for opcode in range(256):
            for modrm in (0x05, 0x44, 0x84, 0xC1, 0xD0, 0x25, 0x3C):
                agrees_with_iced(escape + bytes((opcode, modrm)) + rng.randbytes(12))
