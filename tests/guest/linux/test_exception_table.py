"""The kernel's exception table: where a fault in an instruction continues."""

from __future__ import annotations

from struct import pack

from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
TABLE = 0xFFFFFFFF82000000


def relative(at: int, target: int) -> bytes:
    return pack("<i", target - at)


def test_exception_table() -> None:
    memory = Pages()
    rows = [(TEXT + 0x10, TEXT + 0x80), (TEXT + 0x20, TEXT + 0x70)]
    for number, (insn, fixup) in enumerate(rows):
        at = TABLE + 12 * number
        memory.put(at, relative(at, insn) + relative(at + 4, fixup) + pack("<i", 3))
    table = ExceptionTable(kernel(memory, {"__start___ex_table": TABLE, "__stop___ex_table": TABLE + 24}))
    assert table.faulting(TEXT, TEXT + 0x11) == [TEXT + 0x10]
    assert table.faulting(TEXT + 0x11, TEXT + 0x20) == []
    assert table.fixups(TEXT + 0x70, TEXT + 0x80) == [(TEXT + 0x20, TEXT + 0x70)]


def test_a_kernel_without_a_table() -> None:
    empty = kernel(Pages(), {"other": TEXT})
    assert ExceptionTable(empty).faulting(0, 2**64) == [] and JumpLabels(empty).within(0, 2**64) == []
