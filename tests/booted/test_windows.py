"""Windows of the kernel's real text do the same elsewhere, and iced-x86 reads all of that text as we do."""

from __future__ import annotations

from pathlib import Path

import iced_x86 as iced
import pytest

from qemu.guest import Guest
from tests.booted.conftest import FULL
from tests.booted.kernel_text import kernel_text
from tests.isa.x86_64 import windows
from tests.isa.x86_64.second_opinion import agrees_with_iced, allowed_by_iced
from tests.isa.x86_64.windows import KernelCode

WINDOWS = 52_000 if FULL else 2_000
EACH = 1 if FULL else 20


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


def test_iced_reads_the_kernels_text_as_we_do(code: KernelCode) -> None:
    """Every length and branch target; of every encoding, its parts, and nothing used that we say it does not use."""
    encodings, count, cut = set(), 0, []
    for start, end in [*code.functions()][::EACH]:
        insns = code.decode(start, end)
        others = iced.Decoder(64, code.data[start - code.base : end - code.base], ip=start)
        for insn, other in zip(insns, others, strict=False):
            assert (insn.address, insn.size) == (other.ip, other.len), f"{insn.text} at {insn.address:#x} is {other}"
            assert insn.target in (None, other.near_branch_target), f"{insn.text} at {insn.address:#x} is {other}"
        if not insns or insns[-1].end < end:
            cut.append(hex(insns[-1].end if insns else start))
        encodings.update(insn.data for insn in insns)
        count += len(insns)
    for data in encodings:
        agrees_with_iced(data)
        allowed_by_iced(data)
    print(f"{count:,} instructions, {len(encodings):,} encodings; data among text at {', '.join(cut) or 'no place'}")
    assert count > 2_000_000 // EACH and len(cut) <= 8, cut
