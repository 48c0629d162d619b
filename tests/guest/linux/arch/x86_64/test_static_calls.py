"""Static calls, and their trampolines."""

from __future__ import annotations

from struct import pack

from gdb_optprobe.guest.linux.arch.x86_64.static_calls import StaticCalls
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
TABLE = 0xFFFFFFFF82000000


def relative(at: int, target: int) -> bytes:
    return pack("<i", target - at)


def test_static_calls_and_their_trampolines() -> None:
    memory = Pages()
    memory.put(TABLE, relative(TABLE, TEXT + 9) + pack("<i", 1))
    names = {
        "__start_static_call_sites": TABLE,
        "__stop_static_call_sites": TABLE + 8,
        "__static_call_text_start": TEXT + 0x1000,
        "__static_call_text_end": TEXT + 0x2000,
    }
    table = StaticCalls(kernel(memory, names))
    assert table.within(TEXT, TEXT + 10) == [TEXT + 9]
    assert table.within(TEXT + 0x1008, TEXT + 0x100D) == [TEXT + 0x1008]
