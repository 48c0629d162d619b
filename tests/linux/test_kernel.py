"""What is said of a symbol that a kernel has not."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from tests.linux.fakes import Pages, kernel


def test_a_kernel_without_symbols_of_its_data_is_told_from_one_that_lacks_a_variable() -> None:
    with pytest.raises(NoSuchKernel, match=r"pcpu_hot$"):
        kernel(Pages(), {"d_init_task": 0x1000}).address("pcpu_hot")
    with pytest.raises(NoSuchKernel, match="KALLSYMS_ALL") as refused:
        kernel(Pages(), {"vfs_read": 0x1000}).address("pcpu_hot")
    assert "vmlinux" in refused.value.hint
