"""The code that writes into programs, on Unicorn: what it calls with what, its results, and nothing moved."""

from __future__ import annotations

import random

from gdb_optprobe.guest.linux.arch.aarch64.program_writer import WRITING
from gdb_optprobe.guest.linux.user.program_writer import DONE, HEAD, ROW
from gdb_optprobe.isa.aarch64.abi import FLAGS, GENERAL, SP
from tests.guest.linux.arch.aarch64.kernel_calls import BACK, CODE, DATA, KERNEL, STACK, Calls

TABLE, WRITES, PUTS = DATA + 0x2000, KERNEL, KERNEL + 0x100
MMS = (0xFFFF_0000_0123_4500, 0xFFFF_0000_0765_4300)


def test_it_calls_for_each_row_and_goes_back_with_nothing_moved() -> None:
    rng = random.Random(7)
    before = {name: rng.getrandbits(64) for name in GENERAL} | {FLAGS: rng.getrandbits(4) << 28, SP: STACK}
    rows = [(MMS[0], 0x1000_0130, TABLE + 0x500, 4, 17, 0), (MMS[1], 0x1000_8000, TABLE + 0x504, 8, 17, 0)]
    table = HEAD.pack(before["x28"], BACK, 0) + b"".join(ROW.pack(*row) for row in rows) + bytes(8)
    # What it writes is a size; what is put gives nothing back.
    calls = Calls({WRITES: lambda _, arguments: arguments[3], PUTS: lambda *_: 77})
    left = calls.run(WRITING.code(CODE, WRITES, PUTS), {TABLE: table}, before | {"x28": TABLE})
    kept = set(before) - {"x17"}
    assert {name: left[name] for name in kept} == {name: before[name] for name in kept}
    assert [(at, arguments[:5]) for at, arguments in calls.notes[::2]] == [(WRITES, [*row[:5]]) for row in rows]
    assert [(at, arguments[0]) for at, arguments in calls.notes[1::2]] == [(PUTS, row[0]) for row in rows]
    assert calls.word(TABLE + DONE) == 1 and not calls.inside()
    assert [calls.word(TABLE + HEAD.size + ROW.size * number + 32, 4) for number in range(2)] == [4, 8]
    assert WRITING.back({"x17": left["x17"]}, lambda at: 0) == {"pc": BACK}
