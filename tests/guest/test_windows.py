"""Windows of the kernel's real text do the same elsewhere, and iced-x86 reads all of that text as we do."""

from __future__ import annotations

from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.guest.conftest import FULL
from tests.guest.kernel_text import kernel_text
from tests.isa.x86_64 import windows
from tests.isa.x86_64.windows import KernelCode

WINDOWS = 52_000 if FULL else 2_000


@pytest.fixture
def code(linux: Guest, tmp_path: Path) -> KernelCode:
    return kernel_text(linux, tmp_path)


def test_windows_of_the_kernels_text_do_the_same_near_and_far(code: KernelCode) -> None:
    found = windows.survey(code, WINDOWS, seed=1)
    print(found)
    assert found.differences == []
    assert len(found.executed) == 3 * len(windows.KINDS), "each kind in each place"
    assert min(found.executed.values()) >= WINDOWS // 100
    assert found.counters >= WINDOWS // 2 and found.spoiled > found.counters // 2
    assert found.absolute >= WINDOWS // 100
    assert set(found.refused) <= {"RETURNS_INSIDE", "TRAP", "SYSTEM", "MASKS_INTERRUPTS", "READS_ITS_ADDRESS"}
    assert found.refused.total() < found.windows.total() // 4
