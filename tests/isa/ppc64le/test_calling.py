"""A native call, under qemu-ppc64le: what it calls with what, the word that it takes or gives, and nothing moved."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

import pytest

from gdb_optprobe.isa.calling import Thunk
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.calling import CALLING
from gdb_optprobe.isa.ppc64le.encodings import number, plain
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from tests.isa.ppc64le.oracle import DATA, HERE, NEAR, SIGTRAP, STACK, Outcome, execute, needs_oracle

pytestmark = needs_oracle

FUNCTION, BACK, NOTES, CELL = NEAR, HERE + 0x3000, DATA + 0x4000, DATA + 0x5008
BLOCK, RESULT = 0xC000_0000_0400_0000, 0xDEA
ARGUMENTS = (0xC008_0000_0040_0000, 0xCC, 1 << 33)


def function() -> bytes:
    """Notes its arguments, r12 and the cell; spoils all that a function of C may, its TOC, and its caller's header."""
    code = [plain("mflr", "r11"), number("std", "r11", "r1", abi.LR_SAVE), plain("mfcr", "r11")]
    code += [number("std", "r11", "r1", abi.CR_SAVE), number("ld", "r11", "r13", 8)]
    code += [number("ld", "r11", "r11", 0), number("std", "r11", "r13", 40)]
    code += [number("std", f"r{n}", "r13", 16 + 8 * (n - 3)) for n in (3, 4, 5)]
    code += [number("std", "r12", "r13", 48)]
    code += [number("addi", f"r{n}", "r0", 99) for n in (0, 2, *range(4, 13))]
    code += [plain("mtctr", "r12"), plain("mtxer", "r12"), plain("mtcr", "r12"), number("addi", "r3", "r0", RESULT)]
    return to_bytes(*code, plain("blr"))


def run(thunk: Thunk, cell: int = 0) -> tuple[Outcome, Mapping[str, int], list[int]]:
    """Return what it left, what was before, and the noted arguments, cell and r12."""
    rng = random.Random(3)
    before = {name: rng.getrandbits(64) for name in (*abi.GENERAL, abi.LR, abi.CTR)}
    before |= {abi.FLAGS: rng.getrandbits(32), abi.XER: rng.getrandbits(32) & 0xE00C_007F}
    before |= {"r1": STACK, "r13": NOTES}
    memory = {HERE: thunk.data, FUNCTION: function(), NOTES + 8: struct.pack("<Q", CELL)}
    memory |= {CELL: struct.pack("<Q", cell)}
    patches = [(at + i, data[i : i + 4]) for at, data in memory.items() for i in range(0, len(data), 4)]
    (left,) = execute([(before | {abi.PC: HERE}, patches)], room=512)
    return left, before, [left.memory.get(NOTES + 16 + 8 * n, 0) for n in range(5)]


def moves_nothing(left: Outcome, before: Mapping[str, int], cell: int) -> None:
    assert left.signal == SIGTRAP and left.pc == BACK
    assert {name: left.registers[name] for name in before} == before
    assert not any(HERE <= word < HERE + 0x400 for word in left.memory.values()), "a scan finds no way into the thunk"
    elsewhere = [at for at in left.memory if not STACK - 2048 <= at < STACK - abi.RED_ZONE and at & ~63 != NOTES]
    assert elsewhere in ([], [CELL]) and left.memory.get(CELL, cell) == cell


def test_a_call_moves_nothing() -> None:
    left, before, noted = run(CALLING.thunk(HERE, FUNCTION, ARGUMENTS, BACK))
    moves_nothing(left, before, 0)
    assert noted[:3] == [*ARGUMENTS] and noted[4] == FUNCTION


@pytest.mark.parametrize("held", [0, BLOCK])
def test_a_cell_has_the_result(held: int) -> None:
    left, before, noted = run(CALLING.thunk(HERE, FUNCTION, (0x2800, 5), BACK, gives=CELL), held)
    moves_nothing(left, before, RESULT)
    assert noted[:2] == [0x2800, 5] and noted[3] == held


@pytest.mark.parametrize("held", [0, BLOCK])
def test_a_cell_is_0_before_the_function_is_called_with_what_it_had(held: int) -> None:
    left, before, noted = run(CALLING.thunk(HERE, FUNCTION, (5,), BACK, takes=CELL), held)
    moves_nothing(left, before, 0)
    assert noted[:2] == [held, 5] and noted[3] == 0


def test_where_the_call_has_returned_and_where_it_is_done() -> None:
    """At the first the result is still there, and all is restored at the second."""
    thunk = CALLING.thunk(HERE, FUNCTION, (0x2800, 5), BACK, gives=CELL)
    insns = {insn.address: insn for insn in PPC64LE.decode(thunk.data, HERE)}
    assert insns[thunk.done].target == BACK and thunk.done + 4 == HERE + len(thunk.data)
    behind = [insn for at, insn in insns.items() if thunk.returned <= at < thunk.done]
    assert all(insn.target is None for insn in behind)
    assert [insn.text for insn in behind[:2]] == ["li r12, 0", f"std r12, 0x{abi.LR_SAVE:x}(r1)"]
    assert behind[-1].text.startswith("addi r1, r1, ")
