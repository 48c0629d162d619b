"""Stubs of functions that share the code of their entries: where they go to, what they reach, and which may return."""

from __future__ import annotations

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow, OutOfReach
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.return_codegen import EntryStubs
from gdb_optprobe.isa.x86_64 import X86_64

CODE = {X86_64.name: 0xFFFF_FFFF_8200_0000, PPC64LE.name: 0xC000_0000_0200_0000, AARCH64.name: 0xFFFF_8000_0A00_0000}
TEXT = {X86_64.name: 0xFFFF_FFFF_8100_0000, PPC64LE.name: 0xC000_0000_0110_0000, AARCH64.name: 0xFFFF_8000_0810_0000}
RETURN = {
    X86_64.name: bytes.fromhex("31c05dc3"), PPC64LE.name: bytes.fromhex("2000804e"),
    AARCH64.name: bytes.fromhex("bf2303d5 c0035fd6"),
}  # fmt: skip
AWAY = {
    X86_64.name: bytes.fromhex("e900100000"), PPC64LE.name: bytes.fromhex("00100048"),
    AARCH64.name: bytes.fromhex("00040014"),
}  # fmt: skip
FOREVER = {
    X86_64.name: bytes.fromhex("ebfe"), PPC64LE.name: bytes.fromhex("00000048"),
    AARCH64.name: bytes.fromhex("00000014"),
}  # fmt: skip
EACH = pytest.mark.parametrize("isa", [X86_64, PPC64LE, AARCH64], ids=lambda isa: isa.name)


def stubs_of(isa: Isa) -> EntryStubs:
    assert isa.returning is not None and isa.returning.stubs is not None
    return isa.returning.stubs


@EACH
def test_each_stub_goes_to_the_shared_code(isa: Isa) -> None:
    at, stubs, name = CODE[isa.name], stubs_of(isa), isa.name
    shared = at + 0x1_0000
    code = stubs.encode(at, 32, shared, [TEXT[name] + 64 * number for number in range(4)], first=7)
    assert len(code) == 4 * 32
    for start in range(0, len(code), 32):
        jumps = [insn for insn in isa.decode(code[start : start + stubs.size], at + start) if insn.flow is Flow.JUMP]
        assert [jump.target for jump in jumps] == [shared]


@EACH
def test_a_stub_that_does_not_reach_it_is_not_made(isa: Isa) -> None:
    at = CODE[isa.name]
    with pytest.raises(OutOfReach):
        stubs_of(isa).encode(at, 16, at + (1 << 33), [TEXT[isa.name]])


@pytest.mark.parametrize("isa", [PPC64LE, AARCH64], ids=lambda isa: isa.name)
def test_a_number_has_16_bits(isa: Isa) -> None:
    stubs, at, text = stubs_of(isa), CODE[isa.name], TEXT[isa.name]
    assert len(stubs.encode(at, 16, at + 64, [text], first=0xFFFF)) == 16
    with pytest.raises(OutOfReach):
        stubs.encode(at, 16, at + 64, [text], first=0x1_0000)


@EACH
def test_what_may_return(isa: Isa) -> None:
    stubs, start, name = stubs_of(isa), TEXT[isa.name], isa.name
    assert stubs.may_return(RETURN[name], start) and stubs.may_return(FOREVER[name] + AWAY[name], start)
    assert not stubs.may_return(FOREVER[name], start) and not stubs.may_return(b"", start)


def test_half_of_two_instructions_is_no_return() -> None:
    """`blr` in bytes that begin in the middle of one."""
    stubs, start = stubs_of(PPC64LE), TEXT[PPC64LE.name]
    code = bytes.fromhex("00002000804e0000")
    assert RETURN[PPC64LE.name] in code and not stubs.may_return(code, start)
    assert stubs.may_return(code + RETURN[PPC64LE.name], start)
