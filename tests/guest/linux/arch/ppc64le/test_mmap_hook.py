"""The code of the mmap hook under qemu-ppc64le; what it does on each ISA is in tests/guest/linux/test_mmap_hook.py."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

from gdb_optprobe.guest.linux.arch.ppc64le.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.user.mmap_hook import PATIENCE, WRITE, MmapKernel
from gdb_optprobe.isa.ppc64le import abi
from gdb_optprobe.isa.ppc64le.encodings import logical, number, plain
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.maps import mmap_patches
from gdb_optprobe.maps.mmap_patches import FAILED, INSIDE, ROWS, MmapPatch
from tests.guest.linux.mmap_hook import HookRun, Ran
from tests.isa.ppc64le.oracle import DATA, HERE, MASK, NEAR, SIGTRAP, STACK, execute, needs_oracle

pytestmark = needs_oracle

MAPS, WRITES, WAITS, BACK = NEAR, NEAR + 0x200, NEAR + 0x400, HERE + 0x3000
PACA, FILE, TASK, INODE, MM = DATA + 0x1000, DATA + 0x2000, DATA + 0x3000, 0xC000_0000_0765_4300, 0xC000_0000_0123_4500
TABLE, NOTES, ROOM, FORCE = DATA + 0x4000, DATA + 0x6000, 8, 0x11
START = 0x1_0001_0000
ARGUMENTS = ("r3", "r4", "r5", "r6", "r7", "r8")


def function(*result: int) -> bytes:
    """Notes its arguments, how many are at it and r2, and spoils all that a function of C may."""
    notes = [number("ld", "r11", "r13", 0), *(number("std", f"r{n}", "r11", 8 * (n - 3)) for n in range(3, 9))]
    notes += [*load(12, TABLE), number("ld", "r12", "r12", INSIDE), number("std", "r12", "r11", 48)]
    notes += [number("std", "r2", "r11", 56), number("addi", "r11", "r11", 64), number("std", "r11", "r13", 0)]
    spoils = [number("addi", f"r{n}", "r0", 99) for n in (0, *range(4, 13))]
    return to_bytes(*notes, *result, *spoils, *(plain(name, "r12") for name in ("mtctr", "mtlr", "mtxer", "mtcr")))


def ran(
    arguments: Mapping[str, int], rows: tuple[MmapPatch, ...], result: int = START, fails: bool = False, rest: int = 0
) -> Ran:
    """See HookRun. What the file has is zeros."""
    rng = random.Random(3)
    before = {name: rng.getrandbits(64) for name in (*abi.GENERAL, abi.CTR)} | {abi.FLAGS: rng.getrandbits(32)}
    before |= {**arguments, "r1": STACK, "r13": PACA, abi.LR: BACK, abi.XER: 0, abi.PC: HERE}
    pieces = [piece for row in rows for piece in row.split()]
    # What it returns to is in a register that functions keep: LR is spoilt before.
    leave = to_bytes(plain("mtlr", "r14"), plain("blr"))
    kept = to_bytes(plain("mflr", "r14"), number("std", "r14", "r1", abi.LR_SAVE))
    wrote = number("addi", "r3", "r0", 1) if fails else logical("or", "r3", "r6", "r6")
    memory = {
        HERE: lower_mmap_hook(MmapKernel(MAPS, WRITES, WAITS, 0x20, 0x40, 0x28, 16), TABLE, FORCE)(HERE),
        MAPS: kept + function(*load(3, result)) + leave,
        WRITES: kept + function(wrote) + leave,
        WAITS: to_bytes(number("addi", "r3", "r3", rest - PATIENCE), plain("blr")),
        TABLE: bytes(ROWS) + mmap_patches.encode(pieces, ROOM),
        PACA: struct.pack("<Q", NOTES),
        PACA + 0x20: struct.pack("<Q", TASK),
        TASK + 0x40: struct.pack("<Q", MM),
        FILE + 0x28: struct.pack("<Q", INODE),
    }
    patches = [(at + i, data[i : i + 4]) for at, data in memory.items() for i in range(0, len(data), 4)]
    (left,) = execute([(before, patches)], room=512)
    assert left.signal == SIGTRAP and left.pc == BACK
    assert left.registers["r3"] == result & MASK
    kept_by_callee = {*abi.CALLEE_SAVED, "r2", "r13"} - {"r14"}
    assert {name: left.registers[name] for name in kept_by_callee} == {name: before[name] for name in kept_by_callee}
    left_there = [word for at, word in left.memory.items() if at < STACK and HERE <= word < HERE + 0x400]
    assert not left_there, "nobody seems to be in it any more"
    calls = (left.memory[PACA] - NOTES) // 64
    notes = [[left.memory.get(NOTES + 64 * call + 8 * n) for n in range(8)] for call in range(calls)]
    assert notes[0][:6] == [before[f"r{n}"] for n in range(3, 9)]
    assert all(note[7] == before["r2"] for note in notes)
    for note in notes[1:]:
        assert note[0] == MM and note[4] in (FORCE, FORCE & ~WRITE) and note[6] == 1
    words = [left.memory.get(TABLE + at, 0) for at in (INSIDE, FAILED)]
    written = [(note[1] or 0, note[3] or 0) for note in notes[1:] if note[4] == FORCE]
    return written, (words[0], words[1])


HOOK = HookRun(ARGUMENTS, FILE, INODE, 16, START, 4, 0, ran)


def test_where_the_file_has_something_else_by_now_nothing_is_written() -> None:
    changed = [MmapPatch(INODE, 0x3_0000, b"\xcc" * 4, old) for old in (b"\x55" * 4, b"\0\0\0\1")]
    changed.append(MmapPatch(INODE, 0x4_8000, b"\xcc" * 16, bytes(15) + b"\1"))
    for row in changed:
        assert ran(HOOK.arguments(), (row, HOOK.first)) == ([], (0, 1))
