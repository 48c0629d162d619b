"""The linear map of an aarch64 kernel is found by a thread and proven by the kernel's text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.aarch64 import reads
from gdb_optprobe.guest.linux.arch.aarch64.paging import ACCESSED, TABLE, USER, VALID
from tests.guest.linux.fake_kernel import Pages, kernel

TCR = 16 | 16 << 16 | 2 << 30
TEXT, TEXT_AT, INIT_TASK = 0xFFFF_C2C5_1CE0_0000, 0x4100_0000, 0xFFFF_C2C5_1E00_0000
OFFSET = 0xFFFF_1234_0000_0000 - 0x4000_0000
THREAD, THREAD_AT = OFFSET + 0x4300_0000, 0x4300_0000
TABLES, PROGRAM, PROGRAM_AT = 0x4400_0000, 0x40_0000, 0x4600_0000
MACHINE: Any = SimpleNamespace(vcpus=lambda: [None], registers=lambda _, names: dict.fromkeys(names, TCR))


def found(thread: int, physical: dict[int, int]) -> reads.Reads:
    memory = Pages()
    names = {"_stext": TEXT, "init_task": INIT_TASK}
    memory.put_words(INIT_TASK + 0x20, thread)
    return reads.reads(MACHINE, kernel(memory, names, {"task_struct.tasks": 0x20}), physical.get)


def test_a_thread_tells_where_the_linear_map_is() -> None:
    known = {THREAD: THREAD_AT, TEXT: TEXT_AT, OFFSET + TEXT_AT: TEXT_AT}
    assert found(THREAD, known).linear.offset == OFFSET


@pytest.mark.parametrize(
    ("thread", "known"),
    [
        (THREAD, {THREAD: THREAD_AT, TEXT: TEXT_AT}),
        (THREAD, {THREAD: THREAD_AT, TEXT: TEXT_AT, OFFSET + TEXT_AT: TEXT_AT + 0x1000}),
        (THREAD, {TEXT: TEXT_AT}),
        (INIT_TASK + 0x20, {INIT_TASK + 0x20: THREAD_AT, TEXT: TEXT_AT}),
    ],
)
def test_what_does_not_prove_itself_is_no_linear_map(thread: int, known: dict[int, int]) -> None:
    with pytest.raises(OptprobeError, match="linear map is not known"):
        found(thread, known)


def test_a_hit_that_stops_the_guest_reads_what_the_routine_would() -> None:
    """Of a program's page that is there; the next one is not."""
    known = {THREAD: THREAD_AT, TEXT: TEXT_AT, OFFSET + TEXT_AT: TEXT_AT}
    memory = Pages()
    tables = [TABLES + 0x1000 * number for number in range(4)]
    for table, below in zip(tables, [*tables[1:], PROGRAM_AT], strict=True):
        is_last = below == PROGRAM_AT
        index = (PROGRAM >> 21 & 511) if table == tables[2] else 0
        flags = VALID | TABLE | (ACCESSED | USER if is_last else 0)
        memory.put_words(OFFSET + table + 8 * index, below | flags)
    # In the kernel's tables, a block of 1 GiB of the linear map.
    upper = TABLES + 0x8000
    memory.put_words(OFFSET + upper + 8 * (OFFSET + PROGRAM_AT >> 39 & 511), upper + 0x1000 | TABLE | VALID)
    entry = 0x4000_0000 | VALID | ACCESSED
    memory.put_words(OFFSET + upper + 0x1000 + 8 * (OFFSET + PROGRAM_AT >> 30 & 511), entry)
    memory.put(OFFSET + PROGRAM_AT, b"abcd" * 1024)
    registers = {"TTBR0_EL1": tables[0] | 5 << 48, "TTBR1_EL1": upper | 1}
    made = reads.Reads(found(THREAD, known).linear, memory.read)
    assert made.read(registers, PROGRAM + 2, 3) == b"cda"
    assert made.read(registers, PROGRAM + 1 | 0x5A << 56, 3) == b"bcd"
    for address, size in ((PROGRAM + 4094, 4), (PROGRAM + 4096, 1), (PROGRAM | 1 << 50, 1), ((1 << 64) - 2, 4)):
        with pytest.raises(Unreadable):
            made.read(registers, address, size)
