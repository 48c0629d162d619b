"""The code that writes into programs, under qemu-ppc64le: what it calls with what, its results, and nothing moved."""

from __future__ import annotations

import random
import struct

from gdb_optprobe.guest.linux.arch.ppc64le.program_writer import WRITING
from gdb_optprobe.guest.linux.user.program_writer import DONE, HEAD, ROW
from gdb_optprobe.isa.ppc64le import abi
from gdb_optprobe.isa.ppc64le.encodings import logical, number, plain
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from tests.isa.ppc64le.oracle import DATA, HERE, NEAR, SIGTRAP, STACK, execute, needs_oracle

pytestmark = needs_oracle

TABLE, NOTES, BACK, TOC = DATA + 0x2000, DATA + 0x4000, HERE + 0x3000, 0x5555
WRITES, PUTS = NEAR, NEAR + 0x100
MMS = (0xC000_0000_0123_4500, 0xC000_0000_0765_4300)
SPOILT = [f"r{n}" for n in (0, *range(4, 12))]


def function(*result: int) -> bytes:
    """Notes its arguments and whether r12 is its address, spoils all that a function of C may, and its TOC."""
    notes = [plain("mflr", "r11"), number("std", "r11", "r1", abi.LR_SAVE), number("ld", "r11", "r13", 0)]
    notes += [number("std", f"r{n}", "r11", 8 * (n - 3)) for n in range(3, 8)]
    notes += [number("std", "r12", "r11", 40), number("addi", "r11", "r11", 48), number("std", "r11", "r13", 0)]
    spoils = [number("addi", name, "r0", 99) for name in (*SPOILT, "r2", "r12")]
    spoils += [plain("mtctr", "r12"), plain("mtxer", "r12"), plain("mtcr", "r12")]
    return to_bytes(*notes, *result, *spoils, plain("blr"))


def test_it_calls_for_each_row_and_goes_back_with_nothing_moved() -> None:
    code = WRITING.code(HERE, WRITES, PUTS)
    rng = random.Random(7)
    before = {name: rng.getrandbits(64) for name in (*abi.GENERAL, abi.LR, abi.CTR)}
    before |= {abi.FLAGS: rng.getrandbits(32), abi.XER: rng.getrandbits(32) & 0xE00C_007F}
    now = before | {"r31": TABLE, "r1": STACK, "r13": NOTES, abi.PC: HERE}
    rows = [(MMS[0], 0x1000_0130, TABLE + 0x500, 4, 17, 0), (MMS[1], 0x1000_8000, TABLE + 0x504, 8, 17, 0)]
    table = HEAD.pack(before["r31"], BACK, 0) + b"".join(ROW.pack(*row) for row in rows) + bytes(8)
    memory = {TABLE: table, NOTES: struct.pack("<Q", NOTES + 0x100), HERE: code}
    # What it writes is a size; what is put gives nothing back.
    memory |= {WRITES: function(logical("or", "r3", "r6", "r6")), PUTS: function(number("addi", "r3", "r0", 77))}
    patches = [(at + i, data[i : i + 4]) for at, data in memory.items() for i in range(0, len(data), 4)]
    (left,) = execute([(now, patches)], room=512)
    assert left.signal == SIGTRAP and left.pc == BACK
    kept = set(before) - {abi.CTR, "r1", "r13"}
    assert {name: left.registers[name] for name in kept} == {name: before[name] for name in kept}
    assert (left.registers["r1"], left.registers["r13"]) == (STACK, NOTES)
    notes = [[left.memory[NOTES + 0x100 + 48 * call + 8 * n] for n in range(6)] for call in range(4)]
    assert [(note[:5], note[5]) for note in notes[::2]] == [([*row[:5]], WRITES) for row in rows]
    assert [(note[0], note[5]) for note in notes[1::2]] == [(row[0], PUTS) for row in rows]
    assert left.memory[TABLE + DONE] == 1
    assert not any(HERE <= word < HERE + 0x400 for word in left.memory.values()), "nobody seems to be in it any more"
    results = [left.memory[TABLE + HEAD.size + ROW.size * number + 32] & 0xFFFF_FFFF for number in range(2)]
    assert results == [4, 8]
    assert WRITING.back({abi.CTR: left.registers[abi.CTR]}, lambda at: 0) == {abi.PC: BACK}
