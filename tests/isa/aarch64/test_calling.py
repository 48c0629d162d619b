"""A native call, in Unicorn: what it calls with what, the word that it takes or gives, and nothing moved."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64, abi
from gdb_optprobe.isa.aarch64.calling import CALLING
from gdb_optprobe.isa.aarch64.encodings import constant, pair, plain, scaled
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.calling import Thunk
from tests.handlers.arm import CODE, FAULTS, FRAME, STACK, processor

FUNCTION, BACK, NOTES, CELL = CODE + 0x8000, CODE + 0x3000, FAULTS + 0x100, FAULTS + 0x5008
BLOCK, RESULT = 0xFFFF_8000_0C00_0000, 0xDEA
ARGUMENTS = (0xFFFF_8000_0040_0000, 0xCC, 1 << 33)


def function() -> bytes:
    """Note its arguments, x16 and the cell; spoil all that a function of C may, and leave its frame on the stack."""
    code = [pair("push_pair", "x29", "x30", -96), *constant("x9", NOTES)]
    code += [scaled("str", name, "x9", 8 * place, 8) for place, name in enumerate(("x0", "x1", "x2", "x16"))]
    code += [*constant("x10", CELL), scaled("ldr", "x10", "x10", 0, 8), scaled("str", "x10", "x9", 32, 8)]
    code += [word for n in range(1, 19) for word in constant(f"x{n}", 99)]
    code += [plain("subs", "xzr", "x1", "x2"), *constant("x0", RESULT), pair("pop_pair", "x29", "x30", 96)]
    return to_bytes(*code, plain("ret", n="x30"))


def run(thunk: Thunk, cell: int = 0) -> tuple[Mapping[str, int], Mapping[str, int], list[int]]:
    """Return the registers after and before, and the noted arguments, x16 and cell."""
    rng, machine = random.Random(3), processor()
    before = {name: rng.getrandbits(64) for name in abi.GENERAL} | {abi.FLAGS: 0xB000_0000, abi.SP: STACK}
    machine.uc.ctl_flush_tb()
    for at, data in ((thunk.address, thunk.data), (FUNCTION, function()), (CELL, struct.pack("<Q", cell))):
        machine.write(at, data)
    machine.write(FRAME.start, bytes(len(FRAME)))
    machine.set_registers(before)
    machine.uc.emu_start(thunk.address, BACK)
    assert machine.pc == BACK
    return machine.registers(), before, [*struct.unpack("<5Q", machine.read(NOTES, 40))]


def moves_nothing(left: Mapping[str, int], before: Mapping[str, int], cell: int) -> None:
    assert left == before
    words = struct.unpack(f"<{len(FRAME) // 8}Q", processor().read(FRAME.start, len(FRAME)))
    assert not any(CODE <= word < CODE + 0x400 for word in words), "a scan finds no way into the thunk"
    assert struct.unpack("<Q", processor().read(CELL, 8)) == (cell,)


def test_a_call_moves_nothing() -> None:
    left, before, noted = run(CALLING.thunk(CODE, FUNCTION, ARGUMENTS, BACK))
    moves_nothing(left, before, 0)
    assert noted[:3] == [*ARGUMENTS] and noted[3] == FUNCTION


@pytest.mark.parametrize("held", [0, BLOCK])
def test_a_cell_has_the_result(held: int) -> None:
    left, before, noted = run(CALLING.thunk(CODE, FUNCTION, (0x2800, 5), BACK, gives=CELL), held)
    moves_nothing(left, before, RESULT)
    assert noted[:2] == [0x2800, 5] and noted[4] == held


@pytest.mark.parametrize("held", [0, BLOCK])
def test_a_cell_is_0_before_the_function_is_called_with_what_it_had(held: int) -> None:
    left, before, noted = run(CALLING.thunk(CODE, FUNCTION, (5,), BACK, takes=CELL), held)
    moves_nothing(left, before, 0)
    assert noted[:2] == [held, 5] and noted[4] == 0


def test_where_the_call_has_returned_and_where_it_is_done() -> None:
    """At the first the result is still there, and all is restored at the second."""
    thunk = CALLING.thunk(CODE, FUNCTION, (0x2800, 5), BACK, gives=CELL)
    insns = {insn.address: insn for insn in AARCH64.decode(thunk.data, CODE)}
    assert insns[thunk.done].target == BACK and thunk.done + 4 == CODE + len(thunk.data)
    assert insns[thunk.returned - 4].text == "str x0, [x16]"
    behind = [insn for at, insn in insns.items() if thunk.returned <= at < thunk.done]
    assert not any("x0" in insn.text.split(",")[0].split() for insn in behind[:-1])
    assert behind[-1].text.startswith("ldp x0, x1, [sp]")
