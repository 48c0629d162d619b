"""What is said of a symbol that a kernel has not."""

from __future__ import annotations

from struct import Struct

import pytest

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.guest.linux import kernel as kernels
from gdb_optprobe.guest.linux.kernel import MASK, MOST_ROWS, Kernel, NoSuchKernel
from tests.guest.linux.fake_kernel import PAGE, Pages, kernel, symbols

TABLE = 0xFFFF_FFFF_8200_0000


def test_a_kernel_without_symbols_of_its_data_is_told_from_one_that_lacks_a_variable() -> None:
    with pytest.raises(NoSuchKernel, match=r"pcpu_hot$"):
        kernel(Pages(), {"d_init_task": 0x1000}).address("pcpu_hot")
    with pytest.raises(NoSuchKernel, match="KALLSYMS_ALL") as refused:
        kernel(Pages(), {"vfs_read": 0x1000}).address("pcpu_hot")
    assert "vmlinux" in refused.value.hint


def test_100_mib_of_text() -> None:
    """What lies between two symbols may be so long; it can be read then."""

    class Zeros:
        def read(self, address: int, size: int) -> bytes:
            return bytes(size)

        def write(self, address: int, data: bytes) -> None:
            raise AssertionError("nothing is written")

    there = Kernel(Zeros(), symbols(_stext=0x1000, _etext=0x1000 + (100 << 20)))
    assert len(there.read(*there.range("_stext", "_etext"))) == 100 << 20
    assert kernels.LARGEST_READ == kernels.LARGEST_RANGE


def test_references_are_what_rows_say() -> None:
    """Wherever the table is: one beyond the end of addresses begins anew."""
    row = Struct("<iiq")
    for start, numbers in ((TABLE, (5, -9)), (TABLE + 4, (-(1 << 31), (1 << 31) - 1)), (MASK - 0x1F, (0x30, -4))):
        memory = Pages()
        memory.put(start & -PAGE, bytes(PAGE))
        memory.put(start, b"".join(row.pack(first, second, -1) for first, second in (numbers, numbers[::-1]))[:31])
        found, end = kernel(memory, {}), start + 31
        rows = [(at + one[0] & MASK, at + 4 + one[1] & MASK) for at, one in found.rows(start, end, row)]
        assert [*zip(*found.references(start, end, row.size, 2), strict=True)] == rows and len(rows) == 1
        assert found.references(start, end, row.size, 1) == [[first for first, _ in rows]]
    assert kernel(Pages(), {}).references(0, 0, 8, 2) == [[], []]
    with pytest.raises(OverBudget):
        kernel(Pages(), {}).references(0, 8 * MOST_ROWS + 8, 8, 2)
