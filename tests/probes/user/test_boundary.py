"""Where an instruction begins, of code without symbols."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.guest.linux.arch.x86_64.user_traps import USER
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.probes.user.boundary import BEFORE, enclosing

START = 0x401000
CODE = bytes.fromhex(
    "803d88861600 00 55 4889e5 4883ec20 48897de8 e8a1b20000 85c0 740f 488b45e8 0fb600 3c2f 7505 b801000000 c9 c3"
)
TEXT = CODE * 8


def read(bits: int, start: int) -> Sequence[Insn]:
    return USER.decode(TEXT[start - START :], start, bits)


@pytest.mark.parametrize("bits", [64, 32])
def test_every_instruction_begins_where_it_does_and_nowhere_else(bits: int) -> None:
    code = [insn for insn in read(bits, START) if START + BEFORE <= insn.address < START + len(TEXT) - 16]
    assert len(code) > 50
    for insn in code:
        for address in range(insn.address, insn.end):
            found = enclosing(lambda start: read(bits, start), address - BEFORE, address)
            assert found is None if address == insn.address else found is not None and found.address == insn.address


def test_where_little_is_known_of_what_is_before_nothing_is_said() -> None:
    assert enclosing(lambda start: read(64, start), START, START + 2) is None
