"""The code of the mmap hook on Unicorn; what it does on each ISA is in tests/guest/linux/test_mmap_hook.py."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

from gdb_optprobe.guest.linux.arch.aarch64.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.user.mmap_hook import PATIENCE, WRITE, MmapKernel
from gdb_optprobe.isa.aarch64 import abi
from gdb_optprobe.maps import mmap_patches
from gdb_optprobe.maps.mmap_patches import FAILED, INSIDE, ROWS, MmapPatch
from tests.guest.linux.arch.aarch64.kernel_calls import BACK, CODE, DATA, KERNEL, STACK, Calls
from tests.guest.linux.mmap_hook import HookRun, Ran

MAPS, WRITES, WAITS = KERNEL, KERNEL + 0x200, KERNEL + 0x400
PER_CPU, FILE, TASK, TABLE = DATA + 0x1000, DATA + 0x2000, DATA + 0x3000, DATA + 0x4000
INODE, MM = 0xFFFF_0000_0765_4300, 0xFFFF_0000_0123_4500
ROOM, FORCE, START = 8, 0x11, 0xFFFF_9000_1000
ARGUMENTS = ("x0", "x1", "x2", "x3", "x4", "x5")


def ran(
    arguments: Mapping[str, int], rows: tuple[MmapPatch, ...], result: int = START, fails: bool = False, rest: int = 0
) -> Ran:
    """See HookRun. What the file has is zeros."""
    rng = random.Random(3)
    before = {name: rng.getrandbits(64) for name in abi.GENERAL} | {abi.FLAGS: rng.getrandbits(4) << 28}
    before |= {**arguments, abi.SP: STACK, abi.LR: BACK}
    pieces = [piece for row in rows for piece in row.split()]
    inside: list[int] = []

    def mapping(calls: Calls, _: list[int]) -> int:
        inside.append(calls.word(TABLE + INSIDE))
        return result

    def access(calls: Calls, found: list[int]) -> int:
        """Return an int, which says nothing of the upper half of x0."""
        inside.append(calls.word(TABLE + INSIDE))
        return 0xDEAD << 32 | (1 if fails else found[3])

    functions = {MAPS: mapping, WRITES: access, WAITS: lambda _, found: found[0] + rest - PATIENCE}
    calls = Calls(functions, per_cpu=PER_CPU)
    memory = {
        TABLE: bytes(ROWS) + mmap_patches.encode(pieces, ROOM),
        PER_CPU + 0x20: struct.pack("<Q", TASK),
        TASK + 0x40: struct.pack("<Q", MM),
        FILE + 0x28: struct.pack("<Q", INODE),
    }
    kernel = MmapKernel(MAPS, WRITES, WAITS, 0x20, 0x40, 0x28, 12)
    left = calls.run(lower_mmap_hook(kernel, TABLE, FORCE)(CODE), memory, before)
    assert left["x0"] == result & (1 << 64) - 1
    assert {name: left[name] for name in abi.CALLEE_SAVED} == {name: before[name] for name in abi.CALLEE_SAVED}
    first, *others = [found for at, found in calls.notes if at != WAITS]
    assert first == [before[name] for name in ARGUMENTS]
    assert all(found[0] == MM and found[4] in (FORCE, FORCE & ~WRITE) for found in others)
    if others:
        assert set(inside) == {1} and not calls.inside()
    written = [(found[1], found[3]) for found in others if found[4] == FORCE]
    return written, (calls.word(TABLE + INSIDE), calls.word(TABLE + FAILED))


HOOK = HookRun(ARGUMENTS, FILE, INODE, 12, START, 4, 0, ran)


def test_where_the_file_has_something_else_by_now_nothing_is_written() -> None:
    changed = [MmapPatch(INODE, 0x3000, b"\xcc" * 4, old) for old in (b"\x55" * 4, b"\0\0\0\1")]
    changed.append(MmapPatch(INODE, 0x4800, b"\xcc" * 16, bytes(15) + b"\1"))
    for row in changed:
        assert ran(HOOK.arguments(), (row, HOOK.first)) == ([], (0, 1))
