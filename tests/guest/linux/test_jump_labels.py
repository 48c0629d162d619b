"""Jump labels: instructions that the kernel turns into jumps, and back."""

from __future__ import annotations

from struct import pack

from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
TABLE = 0xFFFFFFFF82000000


def relative(at: int, target: int) -> bytes:
    return pack("<i", target - at)


def test_jump_labels() -> None:
    memory = Pages()
    memory.put(TABLE, relative(TABLE, TEXT + 5) + relative(TABLE + 4, TEXT + 0x40) + bytes(8))
    table = JumpLabels(kernel(memory, {"__start___jump_table": TABLE, "__stop___jump_table": TABLE + 16}))
    assert table.within(TEXT, TEXT + 6) == [(TEXT + 5, TEXT + 0x40)]
    assert table.within(TEXT + 6, TEXT + 0x100) == []
