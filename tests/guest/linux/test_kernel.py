"""What is said of a symbol that a kernel has not."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux import kernel as kernels
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from tests.guest.linux.fake_kernel import Pages, kernel, symbols


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
