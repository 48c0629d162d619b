"""The kernel's table of BUG and WARN, whatever a row of it has."""

from __future__ import annotations

from struct import pack

import pytest

from gdb_optprobe.guest.linux.bug_table import BugTable, row_size
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
TABLE = 0xFFFFFFFF82000000


def relative(at: int, target: int) -> bytes:
    return pack("<i", target - at)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("size", [8, 12, 16], ids=["terse", "with lines", "with formats"])
def test_bug_table_whatever_a_row_has(size: int, typed: bool) -> None:
    """Behind the address of the instruction, references to other data; the last are the flags."""
    memory, count = Pages(), 9
    for number in range(count):
        at = TABLE + size * number
        others = b"".join(relative(at + 4 * n, TABLE + 0x10000) for n in range(1, size // 4))
        memory.put(at, relative(at, TEXT + 2 * number) + others)
    names = {"a": TEXT, "b": TEXT + 4 * count, "d_data": TABLE - 0x1000, "d_end": TABLE + 0x20000}
    names |= {"d___start___bug_table": TABLE, "d___stop___bug_table": TABLE + count * size}
    table = BugTable(kernel(memory, names, {"bug_entry.flags": size - 2 if size > 8 else 4} if typed else {}))
    assert [table.has(TEXT + n) for n in range(2 * count)] == [True, False] * count


def test_a_bug_table_of_an_unknown_length_may_have_any_instruction() -> None:
    memory = Pages()
    memory.put(TABLE, relative(TABLE, TABLE + 0x8000) * 12)
    names = {"a": TEXT, "d_end": TEXT + 64, "d___start___bug_table": TABLE, "d___stop___bug_table": TABLE + 48}
    known = kernel(memory, names, {})
    assert BugTable(known).has(TEXT) and BugTable(known).has(TEXT + 8)
    with pytest.raises(NoSuchKernel, match="bug table are of an unknown length"):
        row_size(known)
